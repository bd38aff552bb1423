# SPDX-License-Identifier: Apache-2.0
"""Readers of model signatures: a plain file is a framework, `_base.py` is the contract."""
