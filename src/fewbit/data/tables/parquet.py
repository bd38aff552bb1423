# SPDX-License-Identifier: Apache-2.0
"""Parquet files as tables: batches in order, row groups on demand, both in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.tables.table import Fault, Row, Table
from fewbit.errors import require

_BATCH = 1024
_KEPT_BYTES = 256 << 20


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
            return parquet.ParquetFile(self.path)
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
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH, use_threads=False):
                yield from _rows(batch)
        except Exception as error:
            yield Row(None, None, (_fault(error),))

    def count(self) -> int:
        """The number the file's footer gives."""
        return 1 if isinstance(self._file, Fault) else self._starts[-1]

    def row(self, index: int) -> Row:
        """One row; the row group it lies in is kept for the next."""
        if isinstance(self._file, Fault):
            return Row(None, None, (self._file,))
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        inside = index - self._starts[group]
        try:
            for number, batch in enumerate(self._batches(group)):
                if inside < (number + 1) * _BATCH:
                    return next(_rows(batch.slice(inside - number * _BATCH, 1)))
        except Exception as error:
            return Row(None, None, (_fault(error),))
        return Row(None, None, (Fault("bad-parquet", f"row group {group} holds fewer rows than the footer says"),))

    def line(self, index: int) -> int | None:
        """Parquet has no lines."""
        return None

    def _batches(self, group: int) -> Iterator[Any]:
        if group in self._kept:
            self._kept.move_to_end(group)
            yield from self._kept[group]
            return
        whole: list[Any] | None = []
        size = 0
        for batch in self._file.iter_batches(batch_size=_BATCH, row_groups=[group], use_threads=False):
            size += batch.nbytes
            if whole is not None and size <= _KEPT_BYTES:
                whole.append(batch)
            else:
                whole = None  # too large to keep: read again each time, never held
        if whole is not None:
            self._kept[group] = whole
            while len(self._kept) > 1 and sum(b.nbytes for kept in self._kept.values() for b in kept) > _KEPT_BYTES:
                self._kept.popitem(last=False)
            yield from whole
            return
        yield from self._file.iter_batches(batch_size=_BATCH, row_groups=[group], use_threads=False)


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


def _fault(error: Exception) -> Fault:
    return Fault("bad-parquet", f"cannot be read as parquet: {str(error).splitlines()[0] if str(error) else error!r}")
