# SPDX-License-Identifier: Apache-2.0
"""Rows that repeat another row, and rows that occur in two splits. Eight bytes per row, on disk when there are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import orjson

from fewbit.data.rows.table import Row, Table, split_ranges
from fewbit.data.types import MOST_ISSUES, DataReport, IssueType, Severity

IN_MEMORY = 1 << 21
"""Hashes that are sorted at once."""
_CANONICAL = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

DUPLICATE_ROW = IssueType("duplicate-row", Severity.WARNING, "row that repeats another one", "remove the copies")
SPLIT_LEAK = IssueType("split-leak", Severity.WARNING, "row that occurs in two splits", "remove it from one of them")
ISSUES = (DUPLICATE_ROW, SPLIT_LEAK)


class Duplicates:
    """Hashes of all rows, in order.

    Args:
        text_only: every value is text, so that hashes of tuples distinguish rows.
    """

    def __init__(self, *, text_only: bool = False):
        self._text_only = text_only
        self._blocks: list[np.ndarray] = []
        self._file: BinaryIO | None = None
        self.count = 0

    def add(self, rows: Sequence[Row], lists: Mapping[str, list[Any]] | None = None) -> None:
        """Add the next rows; by column too, if all have the same columns."""
        if self._text_only and lists is not None:
            names = sorted(lists)
            key = hash(tuple(names))
            hashes = [key ^ hashed for hashed in map(hash, zip(*(lists[name] for name in names)))]
        else:
            try:
                hashes = getattr(rows, "hashes", None) or hash_rows(rows)[0]
            except TypeError:  # a value orjson does not know is in one of them
                hashes = [hash(canonical(row)) for row in rows]
        self._blocks.append(np.array(hashes, np.int64))
        self.count += len(rows)
        if self.count > IN_MEMORY and self._file is None:
            self._file = tempfile.TemporaryFile()  # type: ignore[assignment]  # noqa: SIM115
        if self._file is not None:
            for block in self._blocks:
                self._file.write(block.tobytes())
            self._blocks = []

    def groups(self) -> Iterator[np.ndarray]:
        """Positions of equal rows, in order; one array per distinct row that occurs several times."""
        buckets = max(1, -(-self.count // IN_MEMORY))
        for bucket in range(buckets):
            hashes, positions = self._bucket(bucket, buckets)
            order = np.argsort(hashes, kind="stable")
            ordered = hashes[order]
            borders = np.flatnonzero(np.diff(ordered)) + 1
            sizes = np.diff(np.concatenate(([0], borders, [len(ordered)])))
            starts = np.concatenate(([0], borders))
            for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist()):
                yield np.sort(positions[order[start : start + size]])

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def _bucket(self, bucket: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of one residue class and their positions, so that only one bucket is in memory."""
        if self._file is None:
            hashes = np.concatenate([np.zeros(0, np.int64), *self._blocks])
            return hashes, np.arange(len(hashes))
        bucket_hashes, bucket_positions = [], []
        self._file.seek(0)
        for start in range(0, self.count, IN_MEMORY // 4):
            piece = np.frombuffer(self._file.read(8 * (IN_MEMORY // 4)), np.int64)
            inside = np.flatnonzero(piece.view(np.uint64) % buckets == bucket)
            bucket_hashes.append(piece[inside])
            bucket_positions.append(inside + start)
        return np.concatenate(bucket_hashes), np.concatenate(bucket_positions)

    def report(self, report: DataReport, table: Table) -> None:
        """Report every row that repeats an earlier one, in order of rows."""
        ranges = split_ranges(table)
        ends = np.array([stop for _, stop in ranges.values()])
        repeats: list[tuple[int, int, bool]] = []  # the later row, the earlier one, whether both are of one split
        counts = {DUPLICATE_ROW: 0, SPLIT_LEAK: 0}
        for positions in self.groups():
            codes = np.searchsorted(ends, positions, side="right")
            splits = len(np.unique(codes))
            counts[DUPLICATE_ROW] += len(positions) - splits
            counts[SPLIT_LEAK] += splits - 1
            if len(repeats) < 2 * MOST_ISSUES:
                repeats += _pairs(positions.tolist()[: 2 * MOST_ISSUES], codes.tolist())
        listed = {DUPLICATE_ROW: 0, SPLIT_LEAK: 0}
        for position, earlier, same in sorted(repeats):
            kind = DUPLICATE_ROW if same else SPLIT_LEAK
            listed[kind] += 1
            if listed[kind] <= MOST_ISSUES:
                report.add(kind, f"the same as {table.location(earlier)}", table.location(position))
        for kind, total in counts.items():  # counts stay exact where locations are not kept
            missing = total - min(listed[kind], MOST_ISSUES)
            if missing:
                report.counts[kind.code] += missing
                report.affected[kind.code] += missing


def _pairs(positions: Sequence[int], codes: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Each row with the first equal one of its split, or of another one."""
    earlier: dict[int, int] = {}
    for position, code in zip(positions, codes):
        if earlier:
            yield position, earlier.get(code, next(iter(earlier.values()))), code in earlier
        earlier.setdefault(code, position)


class ParsedRows(list[Any]):
    """Rows that remember their hashes, because the reader that makes them writes them again anyway."""

    hashes: list[int] | None = None


def hash_rows(rows: Sequence[Row]) -> tuple[list[int], int]:
    """A hash of each row that does not depend on the order of keys, and how many `":` the rows have when written again.

    Raises:
        TypeError: orjson alone cannot write one of them.
    """
    hashes: list[int] = []
    keys = 0
    for start in range(0, len(rows), 256):  # each result occupies 4 KB, whatever its length
        written = [orjson.dumps(row, option=_CANONICAL) for row in rows[start : start + 256]]
        keys += b"\n".join(written).count(b'":')
        hashes.extend(map(hash, written))
    return hashes, keys


def canonical(row: Row) -> bytes:
    """A row as bytes that do not depend on the order of its keys.

    >>> canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    True
    """
    try:
        return orjson.dumps(row, option=_CANONICAL, default=repr)
    except (TypeError, orjson.JSONEncodeError):  # an integer beyond 64 bits, half of a character: rare
        return repr(sorted((str(key), repr(value)) for key, value in row.items())).encode("utf-8", "surrogatepass")
