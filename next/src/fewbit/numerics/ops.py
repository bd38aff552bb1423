# SPDX-License-Identifier: Apache-2.0
"""The few array operations that numpy and torch spell differently, so that all numerics are written once for both.

Every function returns the library and the device of the array it is given. No file of `numerics` imports torch: a
torch tensor brings it along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A `np.ndarray` or a `torch.Tensor`."""

_NUMPY = (np.ndarray, np.generic)  # a tuple: torch.compile cannot trace `A | B` of numpy's types

NUMPY_CHUNK, TORCH_CHUNK = 1 << 16, 1 << 19
"""Elements that stay in the processor's cache while several operations pass over them.

Smaller pieces spend their time in calls: numpy from 2^16 down; torch, whose calls cost more, from 2^18 down.
"""


def is_numpy(x: Array) -> bool:
    """Whether an array belongs to numpy."""
    return isinstance(x, _NUMPY)


def namespace(x: Array) -> Any:
    """The module whose functions take this array: `numpy` or `torch`."""
    return np if isinstance(x, _NUMPY) else sys.modules["torch"]


def is_compiling(x: Array) -> bool:
    """Whether torch is tracing: there is then no data to look at, and a compiler may remove a cast there and back."""
    return not isinstance(x, _NUMPY) and bool(sys.modules["torch"].compiler.is_compiling())


def on_cpu(x: Array) -> bool:
    """Whether an array lies in the memory of the processor."""
    return isinstance(x, _NUMPY) or x.device.type == "cpu"


def quiet(x: Array) -> AbstractContextManager[Any]:
    """No warnings about overflow, NaN and division by zero from numpy; torch gives none."""
    return np.errstate(all="ignore") if isinstance(x, _NUMPY) else nullcontext()


def dtype_of(name: Any, x: Array) -> Any:
    """The dtype of a name in the library of `x`; a dtype stays itself.

    >>> dtype_of("int8", np.zeros(1))
    dtype('int8')
    """
    if not isinstance(name, str):
        return name
    if not isinstance(x, _NUMPY):
        return getattr(sys.modules["torch"], name)
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def cast(x: Array, dtype: Any) -> Array:
    """Values as another dtype, given by name; the array itself if it has that dtype.

    >>> cast(np.array([1.7, -1.2]), "int8").tolist()
    [1, -1]
    """
    kind = dtype_of(dtype, x)
    return np.asarray(x).astype(kind, copy=False) if isinstance(x, _NUMPY) else x.to(kind)


def bitcast(x: Array, dtype: Any) -> Array:
    """The same bytes as another dtype, without a copy; of another width along the last axis.

    >>> hex(bitcast(np.array([1.0], np.float32), "int32")[0])
    '0x3f800000'
    """
    return np.asarray(x).view(dtype_of(dtype, x)) if isinstance(x, _NUMPY) else x.view(dtype_of(dtype, x))


def like(values: Any, x: Array, dtype: str = "float32") -> Array:
    """A small constant on the device of `x`."""
    if isinstance(x, _NUMPY):
        return np.asarray(values, dtype=dtype)
    return sys.modules["torch"].asarray(values, dtype=dtype_of(dtype, x), device=x.device)


def empty(shape: Sequence[int], x: Array, dtype: Any) -> Array:
    """An uninitialized array on the device of `x`."""
    if isinstance(x, _NUMPY):
        return np.empty(tuple(shape), dtype_of(dtype, x))
    return sys.modules["torch"].empty(tuple(shape), dtype=dtype_of(dtype, x), device=x.device)


def amin(x: Array, axes: int | tuple[int, ...]) -> Array:
    """The smallest value along axes; NaN if there is one."""
    return np.asarray(np.min(x, axis=axes)) if isinstance(x, _NUMPY) else x.amin(axes)


def amax(x: Array, axes: int | tuple[int, ...]) -> Array:
    """The largest value along axes; NaN if there is one."""
    return np.asarray(np.max(x, axis=axes)) if isinstance(x, _NUMPY) else x.amax(axes)


def clip_in_place(x: Array, low: float, high: float) -> Array:
    """Values limited to a range, written into `x`."""
    return np.clip(x, low, high, out=x) if is_numpy(x) else x.clamp_(low, high)


def arange(count: int, x: Array, dtype: str = "int64") -> Array:
    """0, 1, … on the device of `x`."""
    if isinstance(x, _NUMPY):
        return np.arange(count, dtype=dtype)
    return sys.modules["torch"].arange(count, dtype=dtype_of(dtype, x), device=x.device)


def take(x: Array, index: Array, axis: int) -> Array:
    """Slices of `x` by their numbers along an axis."""
    return np.take(x, index, axis=axis) if isinstance(x, _NUMPY) else x.index_select(axis, index)


def pad_end(x: Array, pads: Sequence[int], value: float = 0) -> Array:
    """`x` with elements appended along each axis.

    >>> pad_end(np.ones((1, 2)), [0, 1]).tolist()
    [[1.0, 1.0, 0.0]]
    """
    xp = namespace(x)
    for axis, count in enumerate(pads):
        if count:
            more = empty((*x.shape[:axis], count, *x.shape[axis + 1 :]), x, x.dtype)
            more[...] = value
            x = xp.concatenate([x, more], axis=axis)
    return x


def tree_sum(x: Array) -> Array:
    """The sum along the last axis by halving: an order that no library, thread count or device changes.

    >>> tree_sum(np.array([[1.0, 2.0, 3.0]])).tolist()
    [6.0]
    """
    if x.shape[-1] == 0:
        return x.sum(-1)
    while (n := x.shape[-1]) > 1:
        half = n // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = namespace(x).concatenate([pairs, x[..., 2 * half :]], axis=-1) if n % 2 else pairs
    return x[..., 0]


def bincount_rows(index: Array, columns: int) -> Array:
    """How often each number occurs in each row.

    Args:
        index: [rows, n], integers from 0 to `columns` - 1.
        columns: how many numbers there are.

    Returns:
        int64 [rows, columns].

    >>> bincount_rows(np.array([[0, 2, 2], [1, 1, 0]]), 3).tolist()
    [[1, 0, 2], [1, 2, 0]]
    """
    rows = index.shape[0]
    places = cast(index, "int64") + arange(rows, index)[:, None] * columns
    if isinstance(index, _NUMPY):
        return np.bincount(places.reshape(-1), minlength=rows * columns).reshape(rows, columns)
    torch = sys.modules["torch"]
    if index.device.type == "cpu":
        return torch.bincount(places.reshape(-1), minlength=rows * columns).reshape(rows, columns)
    # On a GPU `bincount` waits for the device; integer sums do not depend on their order.
    counts = torch.zeros(rows * columns, dtype=torch.int64, device=index.device)
    flat = places.reshape(-1)
    return counts.scatter_add_(0, flat, torch.ones_like(flat)).reshape(rows, columns)


def chunked(
    work: Callable[[int, int], None], rows: int, row_size: int, *, threads: int = 1, chunk: int = NUMPY_CHUNK
) -> None:
    """Call `work(start, stop)` for pieces of about `chunk` elements that together are all rows.

    Args:
        work: fills its own part of an output; called from several threads if `threads` is above 1.
        rows: how many there are.
        row_size: elements per row.
        threads: pieces worked on at a time.
        chunk: elements per piece.

    >>> chunked(lambda start, stop: print(start, stop), 5, 3, chunk=6)
    0 2
    2 4
    4 5
    """
    step = max(chunk // max(row_size, 1), 1)
    pieces = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    if threads <= 1 or len(pieces) <= 1:
        for start, stop in pieces:
            work(start, stop)
        return
    with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
        _finish(pool.map(lambda piece: work(*piece), pieces))


def _finish(results: Iterable[None]) -> None:
    """Wait for all; the first error is raised."""
    for _ in results:
        pass
