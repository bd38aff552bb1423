# SPDX-License-Identifier: Apache-2.0
"""Sentences with faults and the same without; files of your own, with the columns input and target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.presets._base import TEXT_STEPS, text_in

HUB = None
SPLITS = {"train": "train", "validation": "validation"}
TASK = "causal_lm"
STEPS = TEXT_STEPS
KEYS = ()
COLUMNS = ("input", "target")


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A sentence as the prompt, the corrected one as the answer.

    >>> example({"input": "He go.", "target": "He goes."}, {})
    {'prompt': 'Correct this to standard English: He go.\\n---\\nCorrected:\\n', 'answer': 'He goes.'}
    """
    prompt = f"Correct this to standard English: {text_in(row, 'input').strip()}\n---\nCorrected:\n"
    return {"prompt": prompt, "answer": text_in(row, "target")}
