# SPDX-License-Identifier: Apache-2.0
"""Grade-school mathematics: a question, an answer in steps with calculations as <<48/2=24>>, the result after ####."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.presets._base import TEXT_STEPS, text_in

HUB = "openai/gsm8k:main"
SPLITS = {"train": "train", "validation": "test"}
TASK = "causal_lm"
STEPS = TEXT_STEPS
KEYS = ()
COLUMNS = ("question", "answer")


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A question as the prompt, its answer word for word.

    >>> example({"question": "2 + 2?", "answer": "#### 4"}, {})
    {'prompt': 'Question: 2 + 2?\\nAnswer:\\n', 'answer': '#### 4'}
    """
    return {"prompt": f"Question: {text_in(row, 'question').strip()}\nAnswer:\n", "answer": text_in(row, "answer")}
