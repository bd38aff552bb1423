# SPDX-License-Identifier: Apache-2.0
"""Dialogues and their summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.presets._base import TEXT_STEPS, text_in

HUB = "knkarthick/samsum"
SPLITS = {"train": "train", "validation": "validation"}
TASK = "causal_lm"
STEPS = TEXT_STEPS
KEYS = ()
COLUMNS = ("dialogue", "summary")


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A dialogue as the prompt, its summary as the answer.

    >>> example({"dialogue": "A: hi", "summary": "A greets."}, {})
    {'prompt': 'Summarize this dialog:\\nA: hi\\n---\\nSummary:\\n', 'answer': 'A greets.'}
    """
    prompt = f"Summarize this dialog:\n{text_in(row, 'dialogue')}\n---\nSummary:\n"
    return {"prompt": prompt, "answer": text_in(row, "summary")}
