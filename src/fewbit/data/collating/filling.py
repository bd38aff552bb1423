# SPDX-License-Identifier: Apache-2.0
"""Arrays of different sizes in one larger array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.data.collating.padding import Ints

Array = NDArray[Any]


def fill_rows(rows: Sequence[Any], keep: NDArray[np.bool_], value: Any) -> Tensor:
    """Rows of tokens in the places that are kept for them.

    Args:
        rows: lists or 1-D arrays of whole numbers, or arrays with further axes.
        keep: `(rows, width)`, true where a row's own entries go.
        value: what everything else is.
    """
    if all(type(row) is list for row in rows):
        flat = np.array(list(chain.from_iterable(rows)))
    else:
        flat = np.concatenate([as_array(row) for row in rows])
    flat = flat.astype(np.int64) if flat.dtype.kind in "iub" else flat.astype(np.float32)
    made = np.full((*keep.shape, *flat.shape[1:]), value, flat.dtype)
    made[keep] = flat
    return torch.from_numpy(made)


def fill_blocks(blocks: Sequence[Array], shape: Sequence[int], value: Any) -> Tensor:
    """Arrays of the same number of axes, each at the beginning of its own part of a batch of this shape.

    >>> fill_blocks([np.ones((1, 2)), np.ones((2, 1))], (2, 2), 0).tolist()
    [[[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]
    """
    made = np.full((len(blocks), *shape), value, blocks[0].dtype)
    for part, block in zip(made, blocks):
        part[tuple(map(slice, block.shape))] = block
    return torch.from_numpy(made)


def where_kept(starts: Ints, lengths: Ints, width: int) -> NDArray[np.bool_]:
    """Which places of a batch of rows belong to the rows themselves."""
    place = np.arange(width)
    return (place >= starts[:, None]) & (place < (starts + lengths)[:, None])


def as_array(value: Any) -> Array:
    """A list, tensor or array as an array; numbers of Python's own become int64 and float32, as models want them."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float() if value.dtype is torch.bfloat16 else value)
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    made = np.asarray(value)
    return made.astype(np.float32) if made.dtype == np.float64 else made


def is_array(value: Any) -> bool:
    """Whether a value holds numbers on one axis or more."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, list | tuple) and not any(isinstance(item, str | dict) or item is None for item in value)
