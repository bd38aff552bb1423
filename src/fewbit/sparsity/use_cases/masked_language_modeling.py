# SPDX-License-Identifier: Apache-2.0
"""Say the words that are left out of a text: encoders before they are trained for anything else. One-shot only.

No task of fewbit trains or judges it: texts show what the layers of the model read.
"""

from __future__ import annotations

KIND = "texts"
ALIASES = ("mlm", "masked_lm", "fill_mask")
FORMATS = ("rows", "npz", "huggingface")
