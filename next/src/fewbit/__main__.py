# SPDX-License-Identifier: Apache-2.0
"""`python -m fewbit` is the command `fewbit`."""

from fewbit.cli import entry

entry()
