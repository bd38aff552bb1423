# SPDX-License-Identifier: Apache-2.0
"""What the text of a CSV field looks like: empty, an integer, a float, or anything else.

A number is what a program writes: `-12`, `0.5`, `.5`, `1.`, `3e-05`. `007`, `+1`, `1_000`, `NA` and `nan` are text,
so that nothing is lost when a column is cast by its kind. One small automaton decides, run over all fields of a
piece at a time: each step reads the next byte of every field that is still undecided.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_scan import Positions

KINDS = ("empty", "int", "float", "text")
EMPTY, INT, FLOAT, TEXT = range(len(KINDS))

Kinds = NDArray[np.uint8]
"""Indices into `KINDS`."""

_LONGEST = 64
"""A number longer than this is text: no integer or float type of any library holds it."""

_BATCH = 1 << 14
"""Fields looked at together: their arrays stay in the processor's cache."""

# State -> kind if the field ends there -> where each class of byte leads; 0 is the state of refusal.
_AUTOMATON: tuple[tuple[int, dict[str, int]], ...] = (
    (TEXT, {}),
    (TEXT, {"-": 2, "0": 3, "1": 4, ".": 5}),  # 1 nothing yet
    (TEXT, {"0": 3, "1": 4, ".": 5}),  # 2 a minus
    (INT, {".": 6, "e": 7}),  # 3 a zero, which no digit may follow
    (INT, {"0": 4, "1": 4, ".": 6, "e": 7}),  # 4 digits
    (TEXT, {"0": 6, "1": 6}),  # 5 a point with nothing before it
    (FLOAT, {"0": 6, "1": 6, "e": 7}),  # 6 digits after a point, or a point after digits
    (TEXT, {"+": 8, "-": 8, "0": 9, "1": 9}),  # 7 an exponent's letter
    (TEXT, {"0": 9, "1": 9}),  # 8 its sign
    (FLOAT, {"0": 9, "1": 9}),  # 9 its digits
)
_CLASSES = {"0": b"0", "1": b"123456789", ".": b".", "e": b"eE", "+": b"+", "-": b"-"}


def _table() -> NDArray[np.uint16]:
    """The next state, ready shifted, at `state << 8 | byte`."""
    table = np.zeros((len(_AUTOMATON), 256), np.uint16)
    for state, (_, ways) in enumerate(_AUTOMATON):
        for name, target in ways.items():
            table[state, list(_CLASSES[name])] = target << 8
    return table.reshape(-1)


_NEXT = _table()
_FIRST = _NEXT[1 << 8 : 2 << 8].copy()
_KIND = np.array([kind for kind, _ in _AUTOMATON], np.uint8)


_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def kind_of(text: str) -> int:
    """The kind of a single text, by the same rule.

    >>> [KINDS[kind_of(text)] for text in ("-1", "0.5", "007", "")]
    ['int', 'float', 'text', 'empty']
    """
    if not text:
        return EMPTY
    if len(text) > _LONGEST:
        return TEXT
    return INT if _INT.fullmatch(text) else FLOAT if _FLOAT.fullmatch(text) else TEXT


def kinds(view: NDArray[np.uint8], starts: Positions, ends: Positions) -> Kinds:
    """The kind of each field.

    Args:
        view: the bytes of a piece.
        starts: where each value begins, shape (fields,), quotes left out.
        ends: the byte after each value, shape (fields,); it is there, and no part of a number: it ends the automaton.

    >>> view = np.frombuffer(b"-1,0.5,007,,", np.uint8)
    >>> [KINDS[kind] for kind in kinds(view, np.array([0, 3, 7, 11]), np.array([2, 6, 10, 11]))]
    ['int', 'float', 'text', 'empty']
    """
    batches = range(0, len(starts), _BATCH)
    parts = [_kinds(view, starts[at : at + _BATCH], ends[at : at + _BATCH]) for at in batches]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _kinds(view: NDArray[np.uint8], starts: Positions, ends: Positions) -> Kinds:
    lengths = ends - starts
    found = np.full(len(starts), TEXT, np.uint8)
    found[lengths == 0] = EMPTY
    state = _FIRST[view[starts]]
    state[lengths > _LONGEST] = 0
    live = np.flatnonzero(state)
    state, at, stop = state[live], starts[live] + 1, ends[live]
    while going := np.count_nonzero(state):
        if 2 * going < len(state):
            chosen = np.flatnonzero(state)
            live, state, at, stop = live[chosen], state[chosen], at[chosen], stop[chosen]
        over = np.flatnonzero(at == stop)  # also fields refused before: their state says text, as it should
        found[live[over]] = _KIND[state[over] >> 8]
        state = _NEXT.take(state | view.take(at, mode="clip"))
        at += 1
    return found
