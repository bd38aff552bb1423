# SPDX-License-Identifier: Apache-2.0
"""A block of CSV records by columns: which records need a closer look, and the rest measured without a loop."""

from __future__ import annotations

import codecs

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_blocks import Block
from fewbit.data.tables.csv_kinds import kinds
from fewbit.data.tables.csv_scan import QUOTE, Positions
from fewbit.data.tables.text_column import TextColumn

_BITS = np.array([byte.bit_count() for byte in range(256)], np.int64)


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
        _mark_undecodable(block, found)
    return found


def _mark_undecodable(block: Block, found: NDArray[np.bool_]) -> None:
    try:
        codecs.utf_8_decode(block.data, "strict", False)  # the data may end inside a character, in a later record
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
    view = np.frombuffer(block.data, np.uint8)
    quoted = view[block.starts] == QUOTE
    starts, ends = block.starts + quoted, block.ends - quoted
    lengths = _lengths(block, view, quoted)
    if not good.all():
        chosen = np.repeat(good, np.diff(block.first))
        starts, ends, quoted, lengths = starts[chosen], ends[chosen], quoted[chosen], lengths[chosen]
    looks = kinds(view, starts, ends)
    by_column = [array.reshape(-1, width).T for array in (starts, ends, quoted, looks, lengths)]
    return [TextColumn(block.data, *(array[column] for array in by_column)) for column in range(width)]


def _lengths(block: Block, view: NDArray[np.uint8], quoted: NDArray[np.bool_]) -> Positions:
    """The characters of each value: its bytes, less those inside a character, less one of each pair of quotes."""
    lengths = block.ends - block.starts - 2 * quoted
    if block.quotes is not None:
        lengths -= (block.quotes - 2 * quoted) >> 1
    if not block.data.isascii():
        lengths -= _counted(view.view(np.int8) < -64, block.starts, int(block.ends[-1]))  # 0x80 to 0xBF
    return lengths


def _counted(mask: NDArray[np.bool_], starts: Positions, stop: int) -> Positions:
    """How often the mask is set between each start and the next, at an eighth of what adding it up would cost."""
    packed = np.packbits(mask)
    before = np.zeros(len(packed) + 1, np.int64)
    np.cumsum(_BITS[packed], out=before[1:])
    edges = np.append(starts, stop)
    byte, bit = edges >> 3, (edges & 7).astype(np.uint8)
    counted: Positions = np.diff(before[byte] + _BITS[packed[byte] >> (8 - bit)])
    return counted
