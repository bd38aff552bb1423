# SPDX-License-Identifier: Apache-2.0
"""Where the answer to a question is in its context; the check of tables and the tokenization ask the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NO_ANSWER = "there is no answer"
_MOST_SHOWN = 40


def answer_in_context(sample: Mapping[str, Any]) -> tuple[int, int] | str:
    """The span of the answer in the context, or the reason why there is none.

    >>> answer_in_context({"context": "The sky is blue.", "answers": {"text": ["blue"], "answer_start": [11]}})
    (11, 15)
    >>> answer_in_context({"context": "The sky is blue.", "answers": {"text": ["blue"], "answer_start": [0]}})
    "the answer 'blue' is not in the context at character 0"
    """
    answers = sample.get("answers", sample.get("answer"))
    if isinstance(answers, Mapping):  # SQuAD: {"text": [...], "answer_start": [...]}
        text, start = (_first(answers.get(name)) for name in ("text", "answer_start"))
    else:
        first = _first(answers)
        text, start = (first.get("text"), first.get("answer_start")) if isinstance(first, Mapping) else (first, None)
    context = sample.get("context")
    if not isinstance(text, str) or not text or not isinstance(context, str):
        return NO_ANSWER
    shown = repr(text[:_MOST_SHOWN])
    if not isinstance(start, int | np.integer):
        start = context.find(text)
        if start < 0:
            return f"the answer {shown} is not in the context"
    if start < 0 or not context.startswith(text, int(start)):
        return f"the answer {shown} is not in the context at character {start}"
    return int(start), int(start) + len(text)


def _first(value: Any) -> Any:
    return next(iter(value), None) if isinstance(value, list | tuple | np.ndarray) else value
