# SPDX-License-Identifier: Apache-2.0
"""A block of CSV records for a survey: the good ones by columns, measured without a loop, the odd ones one by one."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_blocks import Block, Odd
from fewbit.data.tables.csv_header import COLUMNS
from fewbit.data.tables.csv_kinds import kinds
from fewbit.data.tables.csv_row import RowReader
from fewbit.data.tables.csv_scan import QUOTE, Positions
from fewbit.data.tables.table import Columns, Row, Survey
from fewbit.data.tables.text_column import TextColumn

_BITS = np.array([byte.bit_count() for byte in range(256)], np.int64)
_WEIGHTS: list[int] = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, COLUMNS, np.int64).tolist()


def hand_out(block: Block | Odd, reader: RowReader, survey: Survey) -> None:
    """Hand a block to a survey.

    Args:
        block: whole records, or a single one.
        reader: makes rows of those that need a closer look.
        survey: who listens.
    """
    if isinstance(block, Odd):
        _hand_out_rows([reader.odd(block)], reader, survey)
        return
    names = reader.names
    good = ~suspects(block, len(names))
    found = columns(block, good, len(names))
    failing = _not_castable(found, reader)
    if failing.any():
        good[np.flatnonzero(good)[failing]] = False
        found = columns(block, good, len(names))
    odd = np.flatnonzero(~good).tolist()
    if len(odd) < len(good):
        values = [_typed(*pair, reader) for pair in zip(names, found)]
        # Arrays are sequences of ints too, and the survey keeps a million of them in no time.
        lines = array("q", block.lines[good].tobytes())
        survey.columns(Columns(names, values, lines, _digests(block, good, found)))
    if odd:
        places = zip(odd, block.lines[odd].tolist(), (block.begins()[odd] + block.offset).tolist())
        _hand_out_rows([reader.row(block.record(index), line, at) for index, line, at in places], reader, survey)


def _hand_out_rows(rows: Sequence[Row], reader: RowReader, survey: Survey) -> None:
    values = [["" if value is None else str(value) for value in (row.values or {}).values()] for row in rows]
    survey.rows(rows, [digest(fields, reader.delimiter) for fields in values])


def _not_castable(found: Sequence[TextColumn], reader: RowReader) -> NDArray[np.bool_]:
    failing = np.zeros(len(found[0]), bool)
    for name, cast in reader.casts.items():
        column = found[reader.names.index(name)]
        for index in np.flatnonzero(~np.isin(column.kinds, cast.kinds)).tolist():
            try:
                cast.read(column[index])
            except ValueError:
                failing[index] = True
    return failing


def _typed(name: str, column: TextColumn, reader: RowReader) -> Iterable[Any]:
    cast = reader.casts.get(name)
    return column if cast is None else [cast.read(text) for text in column]


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


def _digests(block: Block, good: NDArray[np.bool_], found: Sequence[TextColumn]) -> Sequence[int]:
    """A hash of each good record that is the same with and without quotes round its fields.

    It is made of the record's bytes without any quote, and of the lengths of its values, which say where one ends
    and the next begins. Records with a quote inside a value are rare enough to be taken apart.
    """
    starts, ends = block.begins(), block.ends[block.first[1:] - 1]
    data = block.data
    if block.quotes is not None:
        before: Positions = np.concatenate(([data.count(b'"', 0, int(starts[0]))], block.quotes)).cumsum()
        data = data.replace(b'"', b"")
        starts, ends = starts - before[block.first[:-1]], ends - before[block.first[1:]]
    pieces = map(data.__getitem__, map(slice, starts[good].tolist(), ends[good].tolist()))
    hashes = np.fromiter(map(hash, pieces), np.int64, int(good.sum()))
    for weight, column in zip(_WEIGHTS, found):
        hashes += column.lengths * weight
    if block.quotes is not None:
        quoted = np.frombuffer(block.data, np.uint8)[block.starts] == QUOTE
        inside = np.logical_or.reduceat(block.quotes != 2 * quoted, block.first[:-1])[good]
        for row in np.flatnonzero(inside).tolist():
            hashes[row] = hash(tuple(column[row] for column in found))
    return array("q", hashes.tobytes())


def digest(values: Sequence[str], delimiter: str) -> int:
    """The same hash of a record that was taken apart.

    >>> digest(["a,b", "c"], ",") == digest(["a", "b,c"], ",")
    False
    """
    if any('"' in value for value in values):
        return hash(tuple(values))
    whole = hash(delimiter.join(values).encode()) + sum(len(value) * weight for value, weight in zip(values, _WEIGHTS))
    return (whole + (1 << 63)) % (1 << 64) - (1 << 63)  # as numpy's integers wrap
