# SPDX-License-Identifier: Apache-2.0
"""The command line: `main(argv)` returns the exit code. Nothing heavy is imported before a command starts."""

from fewbit.cli.main import entry, main

__all__ = ["entry", "main"]
