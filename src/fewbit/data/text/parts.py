# SPDX-License-Identifier: Apache-2.0
"""Whose a token is, and which tokens stand in which characters of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

NOTHING = -100
"""The label of a position at which nothing is learned."""

ASKED, ANSWERED, CALCULATED, FRAME = range(4)
"""Whose a token is: the prompt's, the answer's (its end too), a calculator's inside an answer, the tokenizer's own."""

Offsets = NDArray[np.int64]
"""From which character to which each token goes: `(tokens, 2)`."""


def as_offsets(pairs: Sequence[tuple[int, int]]) -> Offsets:
    """Offsets as an array. A token of white space may have none left: it ends where it is said to be.

    >>> as_offsets([(0, 3), (4, 4)]).tolist()
    [[0, 3], [3, 4]]
    """
    made = np.array(pairs, np.int64).reshape(-1, 2)
    empty = made[:, 0] == made[:, 1]
    made[empty, 0] -= 1
    return made


def touching(offsets: Offsets, spans: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """The tokens that hold a character of any span.

    >>> touching(as_offsets([(0, 2), (2, 5), (5, 6)]), [(3, 5)]).tolist()
    [False, True, False]
    """
    found = np.zeros(len(offsets), bool)
    for start, end in spans:
        found |= (offsets[:, 1] > start) & (offsets[:, 0] < end)
    return found


def inside(offsets: Offsets, spans: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """The tokens that hold nothing but characters of one span."""
    found = np.zeros(len(offsets), bool)
    for start, end in spans:
        found |= (offsets[:, 0] >= start) & (offsets[:, 1] <= end)
    return found
