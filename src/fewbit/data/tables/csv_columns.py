# SPDX-License-Identifier: Apache-2.0
"""A block of CSV records by columns: which records need a closer look, and the rest measured without a loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_blocks import Block
from fewbit.data.tables.csv_kinds import kinds
from fewbit.data.tables.csv_scan import QUOTE, Positions
from fewbit.data.tables.text_column import TextColumn


def suspects(block: Block, width: int) -> NDArray[np.bool_]:
    """Which records are not plainly good: ragged, with odd quotes, a NUL byte or bytes that are not UTF-8.

    Args:
        block: the records.
        width: how many fields a record should have.

    Returns:
        shape (records,).
    """
    found: NDArray[np.bool_] = np.diff(block.first) != width
    begins = block.begins()
    odd = [block.stray, block.early]
    if b"\0" in block.data:
        odd.append(np.flatnonzero(np.frombuffer(block.data, np.uint8) == 0))
    for positions in odd:
        within = positions[(begins[0] <= positions) & (positions < block.ends[-1])]
        found[np.searchsorted(begins, within, "right") - 1] = True
    if not block.data.isascii():
        _mark_undecodable(block, begins, found)
    return found


def _mark_undecodable(block: Block, begins: Positions, found: NDArray[np.bool_]) -> None:
    try:
        block.data[begins[0] : block.ends[-1]].decode()
    except UnicodeDecodeError:
        for index, record in enumerate(block.records()):
            try:
                record.decode()
            except UnicodeDecodeError:
                found[index] = True


def columns(block: Block, good: NDArray[np.bool_], width: int) -> list[TextColumn]:
    """The columns of the good records.

    Args:
        block: the records.
        good: which records to take, shape (records,); each has `width` fields.
        width: the number of columns.
    """
    starts, ends = block.starts, block.ends
    if not good.all():
        chosen = np.repeat(good, np.diff(block.first))
        starts, ends = starts[chosen], ends[chosen]
    view = np.frombuffer(block.data, np.uint8)
    quoted = view[starts] == QUOTE
    if quoted.any():
        starts, ends = starts + quoted, ends - quoted
    looks = kinds(view, starts, ends)
    lengths = _lengths(block, view, starts, ends)
    shape = (-1, width)
    arrays = [array.reshape(shape).T for array in (starts, ends, quoted, looks, lengths)]
    return [TextColumn(block.data, *(array[column] for array in arrays)) for column in range(width)]


def _lengths(block: Block, view: NDArray[np.uint8], starts: Positions, ends: Positions) -> Positions:
    """The characters of each value: its bytes, less those inside a character, less one of each pair of quotes."""
    lengths = ends - starts
    if not block.data.isascii():
        later = np.zeros(len(view) + 1, np.int64)
        np.cumsum((view & 0xC0) == 0x80, out=later[1:])
        lengths -= later[ends] - later[starts]
    if b'""' in block.data:
        quotes = block.quotes
        lengths -= (np.searchsorted(quotes, ends) - np.searchsorted(quotes, starts)) // 2
    return lengths
