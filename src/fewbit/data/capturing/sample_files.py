# SPDX-License-Identifier: Apache-2.0
"""Captured samples as a sequence that reads each file when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from numpy.typing import NDArray

from fewbit.data.arrays.npz_archive import read_npz

Arrays = dict[str, NDArray[Any]]


class SampleFiles(Sequence[Arrays]):
    """Samples on disk, one dict of arrays each.

    Args:
        paths: called for the files as they are now, so that the sequence grows with the capture.
    """

    def __init__(self, paths: Callable[[], list[Path]]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths())

    @overload
    def __getitem__(self, index: int) -> Arrays: ...
    @overload
    def __getitem__(self, index: slice) -> list[Arrays]: ...
    def __getitem__(self, index: int | slice) -> Arrays | list[Arrays]:
        """One sample, or a list of them."""
        if isinstance(index, slice):
            return [read_npz(path) for path in self._paths()[index]]
        return read_npz(self._paths()[index])
