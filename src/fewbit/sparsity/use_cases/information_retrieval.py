# SPDX-License-Identifier: Apache-2.0
"""Say which texts are about the same: models whose answer to a text is a vector. One-shot only.

No task of fewbit trains or judges it: texts show what the layers of the model read.
"""

from __future__ import annotations

KIND = "texts"
ALIASES = ("ir", "information_retrieval_haystack", "embeddings", "feature_extraction")
FORMATS = ("rows", "npz", "huggingface")
