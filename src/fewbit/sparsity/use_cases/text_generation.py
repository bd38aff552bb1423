# SPDX-License-Identifier: Apache-2.0
"""Say the next token: texts, prompts with answers, or chats, as rows of JSON or CSV, or plain text.

The tokenizer of the model makes tokens of texts; one-shot reads running text of `seqlen` tokens a sample.
"""

from __future__ import annotations

KIND = "texts"
TASK = "causal_lm"
METRIC = "perplexity"
METRICS = {"perplexity": "min", "token_accuracy": "max", "loss": "min"}
WORDS = {"ppl": "perplexity", "accuracy": "token_accuracy"}
ALIASES = ("nlg", "causal_lm", "llm", "clm", "language_modeling", "language_modelling")
FORMATS = ("rows", "npz", "huggingface")
