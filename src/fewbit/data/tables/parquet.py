# SPDX-License-Identifier: Apache-2.0
"""Parquet files as tables: batches in order, row groups on demand, both in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.tables import plain
from fewbit.data.tables.table import Fault, Row, Table
from fewbit.errors import require

_BATCH = 1024
_KEPT_BYTES = 256 << 20
_LIBRARIES = ("pyarrow", "pyarrow.parquet")


class ParquetTable(Table):
    """One parquet file. Rows have no lines; a place names the row's number."""

    kind = "parquet"

    def __init__(self, path: Path, name: str):
        super().__init__(path, name)
        require("pyarrow.parquet", extra="parquet", purpose="reading parquet files")
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        closed = {key: value for key, value in self.__dict__.items() if key not in ("_file", "_starts", "_fault")}
        return {**closed, "_kept": OrderedDict()}

    @cached_property
    def _file(self) -> Any:
        """The open file, or the fault that keeps it shut."""
        parquet = require("pyarrow.parquet", extra="parquet", purpose="reading parquet files")
        try:
            # A packed file must be unpacked as a whole: what lies where is said at its end.
            unpacked = plain.plain_file(self.path)
            return unpacked.fault or parquet.ParquetFile(unpacked.path)
        except Exception as error:  # arrow raises many kinds, for the same reason: it is not whole
            return _fault(error)

    @cached_property
    def _starts(self) -> list[int]:
        """The number of the first row of each row group, and the number of rows."""
        metadata = self._file.metadata
        return [0, *accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))]

    def notes(self) -> Sequence[Fault]:
        """Columns of the same name, of which only the last can be kept."""
        if isinstance(self._file, Fault):
            return ()
        names = self._file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1})
        return [
            Fault("duplicate-key", f"column {name!r} stands twice; the last is taken", field=name) for name in twice
        ]

    def rows(self) -> Iterator[Row]:
        """Every row in order; the first batch that cannot be decoded is the last."""
        if isinstance(self._file, Fault):
            yield Row(None, None, (self._file,))
            return
        done = 0
        try:
            for batch in self._stream():
                yield from _rows(batch)
                done += batch.num_rows
        except Exception as error:
            yield Row(None, None, (_fault(error, f"from row {done:,} on it "),))

    def _stream(self, groups: Sequence[int] | None = None) -> Iterator[Any]:
        """The batches of some row groups, or of all; one group at a time, so that damage reaches no other."""
        for group in range(self._file.num_row_groups) if groups is None else groups:
            left = self._file.metadata.row_group(group).num_rows
            for batch in self._file.iter_batches(batch_size=_BATCH, row_groups=[group], use_threads=False):
                left -= batch.num_rows
                if left >= 0:
                    yield batch
            if left:
                raise ValueError(f"row group {group} does not hold as many rows as the footer says")

    def write_kept(self, target: Path, kept: Sequence[int]) -> None:
        """Write the rows whose flag is set into a new parquet file; of columns of the same name, the last.

        Args:
            target: the new file.
            kept: a flag for each row of `rows`, 0 or 1.
        """
        arrow, parquet = (require(name, extra="parquet", purpose="parquet files") for name in _LIBRARIES)
        schema = self._file.schema_arrow
        columns = sorted({name: number for number, name in enumerate(schema.names)}.values())
        flags, left, held, stream = iter(kept), sum(kept), [], self._stream()
        with parquet.ParquetWriter(
            target, arrow.schema([schema.field(number) for number in columns], schema.metadata)
        ) as writer:
            while left:
                batch = next(stream)
                chosen = list(map(bool, islice(flags, batch.num_rows)))
                held.append(batch.select(columns).filter(arrow.array(chosen, arrow.bool_())))
                left -= sum(chosen)
                if len(held) == 64 or not left:
                    writer.write_table(arrow.Table.from_batches(held))
                    held = []

    def count(self) -> int:
        """The number the file's footer gives."""
        return 1 if isinstance(self._file, Fault) else self._starts[-1]

    def progress(self, rows: int) -> tuple[str, int, int | None]:
        """In rows."""
        return "rows", rows, self.count()

    def row(self, index: int) -> Row:
        """One row; the row group it lies in is kept for the next."""
        if isinstance(self._file, Fault):
            return Row(None, None, (self._file,))
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        inside = index - self._starts[group]
        try:
            for batch in self._batches(group):
                if inside < batch.num_rows:
                    return next(_rows(batch.slice(inside, 1)))
                inside -= batch.num_rows
        except Exception as error:
            return Row(None, None, (_fault(error),))
        raise IndexError(index)

    def line(self, index: int) -> int | None:
        """Parquet has no lines."""
        return None

    def _batches(self, group: int) -> Iterator[Any]:
        if group in self._kept:
            self._kept.move_to_end(group)
            yield from self._kept[group]
            return
        whole: list[Any] = []
        size = 0
        try:
            for batch in self._stream([group]):
                size += batch.nbytes
                if size > _KEPT_BYTES:
                    break
                whole.append(batch)
        except Exception:
            size = _KEPT_BYTES + 1  # damaged: what lies before the damage can be read again
        if size > _KEPT_BYTES:  # too large to keep: read again each time, never held
            del whole
            yield from self._stream([group])
            return
        self._kept[group] = whole
        while len(self._kept) > 1 and sum(b.nbytes for kept in self._kept.values() for b in kept) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        yield from whole


def _rows(batch: Any) -> Iterator[Row]:
    try:
        found = batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows > 1:
            for number in range(batch.num_rows):
                yield from _rows(batch.slice(number, 1))
        else:
            yield Row(None, None, (Fault("bad-encoding", f"a text of this row is not UTF-8: {error.reason}"),))
        return
    for values in found:
        yield Row(values, None)


def _fault(error: Exception, where: str = "") -> Fault:
    reason = str(error).splitlines()[0] if str(error) else repr(error)
    return Fault("bad-parquet", f"{where}cannot be read as parquet: {reason}")
