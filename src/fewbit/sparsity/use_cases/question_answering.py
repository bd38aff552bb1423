# SPDX-License-Identifier: Apache-2.0
"""Say where in a text the answer to a question stands: rows with `question`, `context`, `answers`, as in SQuAD.

The tokenizer of the model makes tokens of question and context together.
"""

from __future__ import annotations

KIND = "texts"
TASK = "question_answering"
METRIC = "f1"
METRICS = {"f1": "max", "exact_match": "max", "loss": "min"}
WORDS = {"em": "exact_match"}
ALIASES = ("qa",)
FORMATS = ("rows", "npz", "huggingface")
