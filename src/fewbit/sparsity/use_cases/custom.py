# SPDX-License-Identifier: Apache-2.0
"""Anything else: samples are inputs of the model as they are, such as files of arrays. One-shot only.

`"file.py:function"` in its place makes them so, and says what they are trained and judged by.
"""

from __future__ import annotations

KIND = "arrays"
ALIASES = ("arrays",)
FORMATS = ("npz", "huggingface", "rows")
