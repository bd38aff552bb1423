# SPDX-License-Identifier: Apache-2.0
"""Dataset formats: a plain file is a format, `_base.py` is the contract."""
