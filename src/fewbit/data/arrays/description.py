# SPDX-License-Identifier: Apache-2.0
"""What an array is, said without its values: what a `.npy` header claims, or what an array in memory has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array.

    Args:
        shape: as stored.
        dtype: numpy's name in the machine's own byte order (`"float32"`); `"str"` and `"bytes"` whatever their width.
        fortran: stored column by column.
        descr: the dtype as the file spells it, byte order and all (`">f4"`); empty for an array in memory.
        start: where the values begin, in bytes from the start of the `.npy`.

    >>> str(ArrayInfo((3, 224, 224), "uint8"))
    'uint8[3, 224, 224]'
    """

    shape: tuple[int, ...]
    dtype: str
    fortran: bool = False
    descr: str = ""
    start: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return prod(self.shape) * _width(self.descr or self.dtype)

    @property
    def row(self) -> ArrayInfo:
        """The description of one entry of the first axis."""
        return ArrayInfo(self.shape[1:], self.dtype, self.fortran, self.descr)


@lru_cache(maxsize=256)
def _width(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Numpy's name of a dtype, without byte order and text width.

    >>> dtype_name(np.dtype(">i8")), dtype_name(np.dtype("<U7"))
    ('int64', 'str')
    """
    return {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)


def describe(value: Any) -> ArrayInfo:
    """Describe a numpy array, a PyTorch tensor, or anything numpy can make an array of.

    >>> print(describe([[1.0, 2.0]]))
    float64[1, 2]
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        value = np.asarray(value)
        dtype = value.dtype
    name = dtype_name(dtype) if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    return ArrayInfo(tuple(int(size) for size in value.shape), name)
