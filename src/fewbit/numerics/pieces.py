# SPDX-License-Identifier: Apache-2.0
"""Tensors cut into pieces that stay in the processor's cache while several operations go over them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# On a CPU a temporary of this size stays in the cache, is not given back to the system between two operations (fresh
# pages cost more than the arithmetic on them), and is not worth a second thread. An accelerator wants large launches.
_HOST, _DEVICE = 1 << 15, 1 << 24


def piece_size(device: torch.device) -> int:
    """About how many elements a piece has on a device."""
    return _HOST if device.type == "cpu" else _DEVICE


def parts(x: Tensor, axis: int) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of a tensor of any shape with the places along one axis they belong to; every element once.

    Args:
        x: any shape and layout in memory; pieces follow it.
        axis: the one whose places are told.

    >>> [(place.start, place.stop, list(part.shape)) for place, part in parts(torch.zeros(1, 3, 20000), 1)]
    [(0, 1, [1, 1, 20000]), (1, 2, [1, 1, 20000]), (2, 3, [1, 1, 20000])]
    """
    axis %= x.ndim
    size = piece_size(x.device)
    todo = [(0, x)]
    while todo:
        start, part = todo.pop()
        if part.numel() <= size:
            yield slice(start, start + part.shape[axis]), part
            continue
        outer = max(range(x.ndim), key=lambda a: (part.shape[a] > 1, part.stride(a)))
        width = max(1, part.shape[outer] * size // part.numel())
        cuts = [(width * i, piece) for i, piece in enumerate(torch.split(part, width, outer))]
        todo += [(start + at if outer == axis else start, piece) for at, piece in reversed(cuts)]


def pieces(rows: Tensor, most_rows: int | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of `[R, E]` with the rows they belong to; every element once.

    Args:
        rows: contiguous, or the transpose of a contiguous tensor; pieces follow the layout in memory.
        most_rows: the most rows in one piece.

    >>> [(place.start, place.stop, list(piece.shape)) for place, piece in pieces(torch.zeros(2, 40000))]
    [(0, 1, [1, 32768]), (0, 1, [1, 7232]), (1, 2, [1, 32768]), (1, 2, [1, 7232])]
    """
    size = piece_size(rows.device)
    count, length = rows.shape
    most = min(count, most_rows or count)
    transposed = rows.stride(0) < rows.stride(1)
    tall = min(most, size) if transposed else max(1, min(most, size // length))
    wide = max(1, size // tall)
    for top in range(0, count, tall):
        place = slice(top, min(top + tall, count))
        for piece in torch.split(rows[place], wide, dim=1):
            yield place, piece
