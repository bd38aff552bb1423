# SPDX-License-Identifier: Apache-2.0
"""All scales of a row at once, for codes that stay as they are: those whose values answer most like a weight.

With A the codes less their zero points, one row of it for each block, they are s = (A H Aᵀ)⁻¹ A H w.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.scales import ScaleType, round_scale

_MOST = 1 << 26  # numbers that are held at a time
_LITTLE = 1e-3  # of the mean of A H Aᵀ's diagonal, added to it and pulling towards the scales there were


def can_refit(scales: QParams) -> bool:
    """Whether scales lie in rows, and are of a type that is fine enough to hold what is found."""
    return scales.block[0] == 1 and scales.grid.scale_type in (ScaleType.float32, ScaleType.float16, ScaleType.bfloat16)


def refit(values: Tensor, aim: Tensor, gram: Tensor, scales: QParams) -> QParams:
    """The scales that fit codes best.

    Args:
        values: what the codes stand for with the scales there are, `[out, in]`.
        aim: the weight, `[out, in]`.
        gram: H, `[in, in]`.
        scales: the scales there are.

    Returns:
        The same, but for scales that are others by now; those of blocks without a code that counts stay.
    """
    blocks = Blocks(tuple(values.shape), scales.block[:2])
    step = scales.step.reshape(scales.step.shape[:2])
    units = (values / blocks.over(step).expand_as(blocks.lay(values)).reshape(values.shape)).nan_to_num_()
    width, count = scales.block[1], step.shape[1]
    found = torch.empty_like(step)
    tall = max(1, _MOST // (count * values.shape[1]))
    for top in range(0, len(values), tall):
        rows = slice(top, top + tall)
        found[rows] = _solved(units[rows], aim[rows], gram, step[rows], width)
    kept = torch.where(found.isfinite() & (found.sign() == step.sign()), found, step)
    return replace(scales, scale=round_scale(kept, scales.grid.scale_type).reshape(scales.scale.shape))


def _solved(units: Tensor, aim: Tensor, gram: Tensor, step: Tensor, width: int) -> Tensor:
    count = step.shape[1]
    spread = units.new_empty(len(units), count, units.shape[1])
    for at in range(count):
        place = slice(at * width, (at + 1) * width)
        spread[:, at] = units[:, place] @ gram[place]
    right = (spread * aim[:, None]).sum(2)
    spread *= units[:, None]
    pad = count * width - units.shape[1]
    left = torch.nn.functional.pad(spread, (0, pad)).reshape(len(units), count, count, width).sum(3)
    share = _LITTLE * left.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    left.diagonal(dim1=1, dim2=2).add_(share)
    lower, failed = torch.linalg.cholesky_ex(left)
    solved = torch.cholesky_solve((right + share * step)[..., None], lower)[..., 0]
    return torch.where((failed == 0)[:, None], solved, step)
