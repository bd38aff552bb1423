# SPDX-License-Identifier: Apache-2.0
"""Roles of tokens, and what follows from them: what is learned, and what is kept of a sample that is too long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError, plural

PROMPT, ANSWER, CALCULATOR, SPECIAL = range(4)
"""Roles: the prompt; the answer with its end; what a calculator wrote in it; the tokenizer's own start and end."""
IGNORED = -100
"""The label of a token that is not learned."""

Ints = NDArray[np.int64]
Roles = NDArray[np.uint8]


def masked_labels(ids: Ints, roles: Roles, *, mask_prompt: bool = True, mask_calculator: bool = False) -> Ints:
    """Labels of tokens by their roles: -100 for prompts and special tokens.

    >>> masked_labels(np.array([1, 7, 8, 2]), np.array([SPECIAL, PROMPT, ANSWER, ANSWER], np.uint8)).tolist()
    [-100, -100, 8, 2]
    """
    hidden = [SPECIAL, *([PROMPT] if mask_prompt else []), *([CALCULATOR] if mask_calculator else [])]
    return np.where(np.isin(roles, hidden), IGNORED, ids)


def kept_tokens(roles: Roles, max_length: int) -> Ints:
    """Positions that stay: turns after the last answer go first, then the start of the prompt, then the answer's end.

    >>> kept_tokens(np.array([SPECIAL, PROMPT, PROMPT, PROMPT, ANSWER, ANSWER], np.uint8), 4).tolist()
    [0, 3, 4, 5]
    >>> kept_tokens(np.array([SPECIAL, PROMPT, ANSWER, ANSWER, ANSWER, ANSWER], np.uint8), 4).tolist()
    [0, 2, 3, 4]
    """
    special, text, room = _room(roles, max_length)
    answer = np.flatnonzero(np.isin(roles, (ANSWER, CALCULATOR)))
    if not len(answer):
        return np.sort(np.concatenate([special, text[:room]]))
    text = text[text <= answer[-1]]
    prompts = text[roles[text] == PROMPT]
    last_turn = prompts[-1] + 1 if len(prompts) else 0  # where the last answer begins
    final, earlier = text[text >= last_turn], text[text < last_turn]
    prompt_room = max(0, room - len(final))
    return np.sort(np.concatenate([special, earlier[len(earlier) - min(prompt_room, len(earlier)) :], final[:room]]))


def kept_around(roles: Roles, max_length: int) -> Ints:
    """Positions that stay of a context: a window round the answer, or its start if there is none.

    >>> kept_around(np.array([SPECIAL, PROMPT, PROMPT, PROMPT, ANSWER, PROMPT, PROMPT], np.uint8), 4).tolist()
    [0, 3, 4, 5]
    """
    special, text, room = _room(roles, max_length)
    answer = np.flatnonzero(roles[text] == ANSWER)
    first = int(answer[0]) - max(0, room - len(answer)) // 2 if len(answer) else 0
    first = max(0, min(first, len(text) - room))
    return np.sort(np.concatenate([special, text[first : first + room]]))


def _room(roles: Roles, max_length: int) -> tuple[Ints, Ints, int]:
    special, text = np.flatnonzero(roles == SPECIAL), np.flatnonzero(roles != SPECIAL)
    room = max_length - len(special)
    if room <= 0:
        raise UsageError(
            f"{plural(max_length, 'token')} leave no room for text next to {plural(len(special), 'special token')}",
            code="max-length", param="max_length", expected=f"more than {len(special)}",
            hint=f"{{max_length={max(512, 2 * len(special))}}}",
        )  # fmt: skip
    return special, text, room
