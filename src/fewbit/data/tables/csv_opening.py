# SPDX-License-Identifier: Apache-2.0
"""How a CSV file begins: its delimiter, its header, and what is to say about both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fewbit.data.tables import plain
from fewbit.data.tables.csv_blocks import Blocks, Odd
from fewbit.data.tables.csv_dialect import Dialect, sniff
from fewbit.data.tables.csv_feed import Feed
from fewbit.data.tables.csv_header import COLUMNS, header
from fewbit.data.tables.csv_record import parse
from fewbit.data.tables.csv_row import RowReader
from fewbit.data.tables.table import Broken, Fault

_BELOW = 100
"""How many rows are compared with the header."""

_ENOUGH = 1 << 20
"""How much is read at most for that: what lies behind a row without end is not waited for."""

_CUT = Fault("header-missing", "the header is too long, or its quote is never closed")
_TABS = frozenset({".tsv", ".tab"})


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a file, understood.

    Args:
        dialect: the delimiter, and how many records come before the first row.
        names: the columns; none when there is no usable header, and then there are no rows either.
        faults: what was found wrong, or had to be guessed.
    """

    dialect: Dialect
    names: tuple[str, ...]
    faults: tuple[Fault, ...]


def opening(path: Path, encoding: str | None = None, delimiter: str | None = None) -> Opening:
    """Read the beginning of a file.

    Args:
        path: the file.
        encoding, delimiter: the user's own words, if any.
    """
    if plain.beginning(path, encoding).fault is not None:
        return Opening(Dialect(","), (), ())  # whoever reads the rows meets it
    usual = "\t" if _TABS & {suffix.lower() for suffix in path.suffixes} else ","
    dialect = sniff(plain.head(path, encoding), usual=usual, chosen=delimiter)
    feed = Feed(_first(path, encoding), plain.FIRST)
    records = _records(feed, dialect)[dialect.lead - 1 :]
    if not records and feed.fault == _CUT:
        return Opening(dialect, (), (replace(_CUT, line=1),))
    names, faults = _header(records, dialect, path, encoding)
    return Opening(dialect, tuple(names), (*dialect.notes, *faults))


def _first(path: Path, encoding: str | None) -> Iterator[bytes]:
    """The beginning of the text; it breaks off, so that the record it ends in is not taken for a whole one."""
    left = _ENOUGH
    for chunk in plain.chunks(path, encoding):
        if len(chunk) > left:
            yield chunk[:left]
            raise Broken(_CUT.code, _CUT.message)
        left -= len(chunk)
        yield chunk


def _records(feed: Feed, dialect: Dialect) -> list[tuple[bytes | None, int, int]]:
    """The first records: their bytes if they can be had, their lines and offsets."""
    records: list[tuple[bytes | None, int, int]] = []
    for item in Blocks(feed, ord(dialect.delimiter)):
        if isinstance(item, Odd):
            records.append((item.data if item.quote_line is None else None, item.line, item.offset))
        else:
            records += zip(item.records(), item.lines.tolist(), (item.begins() + item.offset).tolist())
        if isinstance(item, Odd) or len(records) > _BELOW:
            break
    return records


def _header(
    records: list[tuple[bytes | None, int, int]], dialect: Dialect, path: Path, encoding: str | None
) -> tuple[list[str], list[Fault]]:
    if not records:
        return [], [Fault("header-missing", "there is no header: the file holds no text", 1)]
    data, line, offset = records[0]
    if data is None:
        return [], [replace(_CUT, line=line)]
    fields = _fields(data, dialect, COLUMNS)
    if len(fields) > COLUMNS:
        return [], [Fault("header-missing", f"the first line has more than {COLUMNS:,} fields", line)]
    below = [_fields(raw, dialect, len(fields)) for raw, _, _ in records[1 : _BELOW + 1] if raw is not None]
    names, faults = header(fields, below, line)
    # The header is a record too: its bytes and quotes can be wrong like those of any row.
    reader = RowReader(names, dialect.delimiter, {}, plain.beginning(path, encoding).shift)
    return names, [*reader.row(data, line, offset).faults, *faults]


def _fields(data: bytes, dialect: Dialect, most: int) -> list[str]:
    return parse(data.decode(errors="replace"), dialect.delimiter, most).fields
