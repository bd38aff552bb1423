# SPDX-License-Identifier: Apache-2.0
"""Say of which class a text is, such as how somebody feels about a film: rows of JSON or CSV with a text and a label.

The tokenizer of the model makes tokens of texts; classes may have names, which are numbered in their order.
"""

from __future__ import annotations

KIND = "texts"
TASK = "sequence_classification"
METRIC = "accuracy"
METRICS = {"accuracy": "max", "precision": "max", "recall": "max", "f1": "max", "loss": "min"}
WORDS = {"acc": "accuracy", "f1_score": "f1"}
ALIASES = ("sequence_classification", "sentiment_analysis", "sentiment", "glue")
FORMATS = ("rows", "npz", "huggingface")
