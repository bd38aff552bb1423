# SPDX-License-Identifier: Apache-2.0
"""Say of which class each word is, such as names of people: rows with `words` and `tags`, a tag a word.

The tokenizer of the model makes tokens of words; of a word in several pieces the first has the tag.
"""

from __future__ import annotations

KIND = "texts"
TASK = "token_classification"
METRIC = "f1"
METRICS = {"f1": "max", "precision": "max", "recall": "max", "accuracy": "max", "loss": "min"}
WORDS = {"acc": "accuracy"}
ALIASES = ("ner", "named_entity_recognition")
FORMATS = ("rows", "npz", "huggingface")
