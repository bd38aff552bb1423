# SPDX-License-Identifier: Apache-2.0
"""A column of a few thousand CSV rows that has been measured but not yet turned into strings.

Whoever surveys a file mostly wants to know kinds and lengths; those are arrays here. The values themselves are
made when they are asked for, so a column nobody looks at costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tables.csv_kinds import Kinds
from fewbit.data.tables.csv_scan import Positions


class TextColumn:
    """The values of one column as text, made on demand.

    Args:
        data: UTF-8 bytes the values lie in.
        starts, ends: where each value begins and ends, shape (rows,), quotes left out.
        doubled: whether each value was quoted, so that `""` in it stands for one quote, shape (rows,).
        kinds: what each value looks like, indices into `csv_kinds.KINDS`, shape (rows,).
        lengths: characters of each value, shape (rows,).

    >>> from fewbit.data.tables.csv_kinds import kinds
    >>> data, starts, ends = b'7,"a""b"', np.array([0, 3]), np.array([1, 7])
    >>> looks = kinds(np.frombuffer(data, np.uint8), starts, ends)
    >>> list(TextColumn(data, starts, ends, np.array([False, True]), looks, np.array([1, 3])))
    ['7', 'a"b']
    """

    def __init__(
        self,
        data: bytes,
        starts: Positions,
        ends: Positions,
        doubled: NDArray[np.bool_],
        kinds: Kinds,
        lengths: Positions,
    ):
        self.kinds = kinds
        self.lengths = lengths
        self._data, self._starts, self._ends, self._doubled = data, starts, ends, doubled

    def __len__(self) -> int:
        return len(self._starts)

    def near(self, piece: bytes) -> bool:
        """Whether the bytes the values lie in hold a piece that is not ASCII; says nothing about this column alone."""
        return not self._data.isascii() and piece in self._data

    def __getitem__(self, index: int) -> str:
        text = self._data[self._starts[index] : self._ends[index]].decode()
        return text.replace('""', '"') if self._doubled[index] else text

    def __iter__(self) -> Iterator[str]:
        data = self._data
        for start, end, doubled in zip(self._starts.tolist(), self._ends.tolist(), self._doubled.tolist()):
            text = data[start:end].decode()
            yield text.replace('""', '"') if doubled else text
