# SPDX-License-Identifier: Apache-2.0
"""A block of CSV records for a survey: good rows by columns, the few odd ones one by one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_blocks import Block
from fewbit.data.tables.csv_columns import columns, suspects
from fewbit.data.tables.csv_row import RowReader
from fewbit.data.tables.table import Survey
from fewbit.data.tables.text_column import TextColumn


def hand_out(block: Block, reader: RowReader, survey: Survey) -> None:
    """Hand a block to a survey.

    Args:
        block: whole records.
        reader: makes rows of those that need a closer look.
        survey: who listens.
    """
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
        lines, digests = array("q", block.lines[good].tobytes()), array("q", map(hash, block.records(good)))
        survey.columns(names, values, lines, digests)
    if odd:
        places = zip(odd, block.lines[odd].tolist(), (block.begins()[odd] + block.offset).tolist())
        survey.rows([reader.row(block.record(index), line, offset) for index, line, offset in places])


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


def _typed(name: str, column: TextColumn, reader: RowReader) -> Sequence[Any]:
    cast = reader.casts.get(name)
    return column if cast is None else [cast.read(text) for text in column]
