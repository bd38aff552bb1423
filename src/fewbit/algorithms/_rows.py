# SPDX-License-Identifier: Apache-2.0
"""Rows of a weight that are settled apart: how they are dealt, chosen among, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

_LANE, _DEVICE_LANE = 640, 16384  # rows to a thread at a time


def lanes(rows: int, height: int, device: torch.device) -> list[slice]:
    """Rows that are settled together: a few to each thread, or as many as a device holds with ease.

    They are the same ones whatever the number of threads.

    >>> lanes(1300, 4, torch.device("cpu"))
    [slice(0, 652, None), slice(652, 1300, None)]
    """
    count = max(1, round(rows / (_LANE if device.type == "cpu" else _DEVICE_LANE)))
    tall = -(-rows // (count * height)) * height
    return [slice(top, min(top + tall, rows)) for top in range(0, rows, tall)]


def best(losses: Tensor, height: int) -> Tensor:
    """For each row, or so many rows that go together, the choice that loses least; the first of equals.

    Args:
        losses: `[choices, rows]`.
        height: how many rows go together.

    >>> best(torch.tensor([[1.0, 5.0, 2.0], [4.0, 1.0, 2.0]]), 2)
    tensor([1, 1, 0])
    """
    bands = Blocks(tuple(losses.shape), (1, height)).split(losses).sum((1, 3))
    return bands.argmin(0).repeat_interleave(height)[: losses.shape[1]]


def mixed(found: Sequence[QTensor], picks: Tensor) -> QTensor:
    """Of several codes for the same weight, for each row those that were picked; rows of a block go together."""
    height, beside = found[0].block[0], (-1, *(1,) * (len(found[0].shape) - 1))
    blocks = picks[::height].reshape(beside)
    codes, params = found[0].codes(), found[0].qparams
    scale, zero = params.scale, params.zero_point
    for index, other in enumerate(found[1:], 1):
        codes = torch.where((picks == index).reshape(beside), other.codes(), codes)
        scale = torch.where(blocks == index, other.qparams.scale, scale)
        moved = other.qparams.zero_point
        if zero is not None and moved is not None:
            zero = torch.where(blocks == index, moved, zero)
    return QTensor.from_codes(codes, QParams(params.grid, params.block, scale, zero, params.super_scale))


def stacked(parts: Sequence[QTensor], shape: tuple[int, ...]) -> QTensor:
    """Rows one under the other."""
    params = [part.qparams for part in parts]
    zeros = [each.zero_point for each in params if each.zero_point is not None]
    first = params[0]
    whole = QParams(
        first.grid,
        first.block,
        torch.cat([each.scale for each in params]),
        torch.cat(zeros) if zeros else None,
        first.super_scale,
    )
    return QTensor.from_codes(torch.cat([part.codes() for part in parts]).reshape(shape), whole)
