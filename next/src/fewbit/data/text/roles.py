# SPDX-License-Identifier: Apache-2.0
"""Roles of tokens, and what follows from them: what is learned, and what remains of a sample that is too long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.data.text.content import NO_TEXT
from fewbit.data.types import Issue, Sample, SampleError
from fewbit.errors import plural

PROMPT, ANSWER, CALCULATOR, SPECIAL = range(4)
"""Roles: the prompt; the answer with its end; what a calculator wrote in it; tokens that are never cut off."""
IGNORED = -100
"""The label of a token that is not learned."""

Ints = NDArray[np.int64]
Roles = NDArray[np.uint8]


def mask_labels(sample: Sample, *, mask_prompt: bool = True, mask_calculator: bool = False) -> Sample:
    """The sample with labels of -100 for prompts and special tokens; a class label stays.

    >>> roles = np.array([SPECIAL, PROMPT, ANSWER, ANSWER], np.uint8)
    >>> mask_labels({"labels": np.array([1, 7, 8, 2]), "roles": roles})["labels"].tolist()
    [-100, -100, 8, 2]
    """
    labels, roles = sample.get("labels"), sample.get("roles")
    if labels is None or roles is None or np.ndim(labels) != 1:
        return sample
    hidden = [SPECIAL, *([PROMPT] if mask_prompt else []), *([CALCULATOR] if mask_calculator else [])]
    return sample | {"labels": np.where(np.isin(roles, hidden), IGNORED, labels)}


def supervised(sample: Sample) -> NDArray[np.bool_]:
    """Which tokens are part of an answer."""
    return np.isin(sample["roles"], (ANSWER, CALCULATOR))


def truncate(sample: Sample, max_length: int) -> Sample:
    """At most `max_length` tokens of a sample.

    Turns after the last answer go first, then the start of the prompt, then the end of the answer. Of a context a
    window around the answer remains, whose positions move along.

    Raises:
        SampleError: the tokens that are never cut off leave no room.
    """
    count = len(sample["input_ids"])
    if count <= max_length:
        return sample
    roles = sample.get("roles", np.full(count, ANSWER, np.uint8))
    text = np.flatnonzero(roles != SPECIAL)
    special = count - len(text)
    room = max_length - special
    if room <= 0:
        message = f"{plural(max_length, 'token')} leave no room next to {special:,} that cannot be cut off"
        raise SampleError(Issue(NO_TEXT, message))
    window = _window_around_answer if "start_positions" in sample else _end_of_prompt_and_answer
    remaining = np.sort(np.concatenate([np.flatnonzero(roles == SPECIAL), window(roles, text, room)]))
    shorter = {
        name: np.asarray(value)[remaining] if np.ndim(value) and len(value) == count else value
        for name, value in sample.items()
    }
    for name in ("start_positions", "end_positions"):
        if name in sample:
            shorter[name] = min(int(np.searchsorted(remaining, sample[name])), len(remaining) - 1)
    return shorter


def _end_of_prompt_and_answer(roles: Roles, text: Ints, room: int) -> Ints:
    answers = np.flatnonzero(np.isin(roles, (ANSWER, CALCULATOR)))
    if not len(answers):
        return text[:room]
    text = text[text <= answers[-1]]
    prompts = text[roles[text] == PROMPT]
    answer = text[text > prompts[-1]] if len(prompts) else text
    before = text[: len(text) - len(answer)]
    return np.concatenate([before[max(0, len(before) + len(answer) - room) :], answer[:room]])


def _window_around_answer(roles: Roles, text: Ints, room: int) -> Ints:
    answer = np.flatnonzero(roles[text] == ANSWER)
    start = int(answer[0]) - max(0, room - len(answer)) // 2
    start = max(0, min(start, len(text) - room))
    return text[start : start + room]
