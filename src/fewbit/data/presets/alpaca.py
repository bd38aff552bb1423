# SPDX-License-Identifier: Apache-2.0
"""Instructions with and without an input, and what is to be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.keys import Key, is_share
from fewbit.data.presets._base import TEXT_STEPS, text_in

HUB = "tatsu-lab/alpaca"
SPLITS = {"train": "train"}
TASK = "causal_lm"
STEPS = TEXT_STEPS
KEYS = (Key("validation_ratio", 0.05, "a number from 0 to 1", is_share, "how much of train is cut off"),)
COLUMNS = ("instruction", "output")

_ABOVE = "Below is an instruction that describes a task"
_BELOW = "Write a response that appropriately completes the request."


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The wording the dataset was made with, in its two forms.

    >>> example({"instruction": "Add.", "input": "2 and 2", "output": "4"}, {})["prompt"].splitlines()[4:]
    ['', '### Input:', '2 and 2', '', '### Response:']
    """
    asked = text_in(row, "instruction")
    given = row.get("input")
    if isinstance(given, str) and given.strip():
        above = f"{_ABOVE}, paired with an input that provides further context. {_BELOW}"
        prompt = f"{above}\n\n### Instruction:\n{asked}\n\n### Input:\n{given}\n\n### Response:\n"
    else:
        prompt = f"{_ABOVE}. {_BELOW}\n\n### Instruction:\n{asked}\n\n### Response:\n"
    return {"prompt": prompt, "answer": text_in(row, "output")}
