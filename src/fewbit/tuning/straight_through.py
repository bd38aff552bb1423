# SPDX-License-Identifier: Apache-2.0
"""Rounding that can be learned through: values on a grid going forward, a useful gradient coming back.

Rounding has no slope anywhere, so that of the identity stands for it inside the range of a grid (Bengio et al., arXiv
1308.3432). Outside of it nothing an element does changes the output, and its gradient is zero. The range ends half a
gap beyond the last value: up to there an element is only rounded, as all others are, and beyond it is clipped.

The gradient of a scale is that of LSQ (Esser et al., arXiv 1902.08153, equation 3) for every type: with v the rounded
element, dv̂/ds = v - x/s inside the range and v outside. For integers v is a code, for small floats a value of the type.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype, Float, Table
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType, round_scale

_SLACK = 2.0**-18  # relative; a block's largest element lies on the end of its range, up to float32's rounding


def on_grid(x: Tensor, qparams: QParams, scale: Tensor | None = None, *, share: float = 1.0) -> Tensor:
    """`x` on its grid, bit by bit what its codes will stand for, with a gradient.

    Args:
        x: a weight in fewbit's layout, or an activation.
        qparams: the grid and its scales.
        scale: the same scales as a tensor that learns; or none, to take them as given.
        share: what the gradient of a scale is multiplied with; see `lsq_share`.

    >>> x = torch.tensor([0.6, 9.0], requires_grad=True)
    >>> from fewbit.numerics.grid import Grid
    >>> on_grid(x, QParams(Grid(Dtype.int4), (2,), torch.ones(1))).sum().backward()
    >>> x.grad
    tensor([1., 0.])
    """
    if not torch.is_grad_enabled() or not (x.requires_grad or (scale is not None and scale.requires_grad)):
        return fake_quantize(x, qparams)
    moved: Tensor = _OnGrid.apply(x, scale, qparams, share)  # type: ignore[no-untyped-call]
    return moved


def stretched(scale: Tensor, stretch: Tensor, kind: ScaleType) -> Tensor:
    """Scales times `exp(stretch)`, on the values their type has; the gradient passes by that rounding.

    A scale that learns is learned as the logarithm of a factor. It cannot become zero or change its sign, one learning
    rate suits scales of every size, and weight decay pulls it to what was found before and not to nothing.
    """
    moved: Tensor = _Rounded.apply(scale * stretch.exp(), kind)  # type: ignore[no-untyped-call]
    return moved


def lsq_share(elements: int, dtype: Dtype) -> float:
    """LSQ's factor of a scale's gradient, 1/√(N·Q): a scale sums over N elements, and would outrun them.

    `elements` are those of a block; of an activation, those of one position, so that a batch in parts learns the same.
    """
    return float((max(elements, 1) * dtype.highest) ** -0.5)


def is_inside(x: Tensor, qparams: QParams) -> Tensor:
    """Which elements are rounded only, and not clipped."""
    blocks = Blocks(tuple(x.shape), qparams.block)
    units = blocks.lay(x.detach().float()) / blocks.over(qparams.step)
    if qparams.zero_point is not None:
        units = units + blocks.over(qparams.zero_point)
    low, high = ends(qparams.grid.dtype)
    return ((units >= low) & (units <= high)).reshape(x.shape)


def half_gap(dtype: Dtype) -> float:
    """Half the gap before a type's largest value, in units.

    >>> half_gap(Dtype.int4), half_gap(Dtype.fp4)
    (0.5, 1.0)
    """
    if isinstance(dtype.value, Table):
        *_, before, last = dtype.value.values
        return (last - before) / 2
    number = dtype.value
    return 2.0 ** (number.largest_exponent - number.mantissa) / 2 if isinstance(number, Float) else 0.5


@cache
def ends(dtype: Dtype) -> tuple[float, float]:
    """Where a type's range ends, in units: half a gap beyond its last value on either side.

    >>> [round(end, 3) for end in ends(Dtype.int4)], [round(end, 3) for end in ends(Dtype.fp4)]
    ([-8.5, 7.5], [-7.0, 7.0])
    """
    if isinstance(dtype.value, Table):
        first, second, *_, last = dtype.value.values
        low, high = first - (second - first) / 2, last + half_gap(dtype)
    else:
        low, high = dtype.lowest - half_gap(dtype), dtype.highest + half_gap(dtype)
    return low - abs(low) * _SLACK, high + abs(high) * _SLACK


class _OnGrid(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, scale: Tensor | None, qparams: QParams, share: float
    ) -> Tensor:
        ctx.qparams, ctx.share, ctx.learns = qparams, share, scale is not None and scale.requires_grad
        ctx.save_for_backward(x if ctx.learns else is_inside(x, qparams))
        return fake_quantize(x, qparams)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # type: ignore[override]
        (kept,) = ctx.saved_tensors
        if not ctx.learns:
            return grad.masked_fill(~kept, 0), None, None, None
        qparams: QParams = ctx.qparams
        inside, blocks = is_inside(kept, qparams), Blocks(tuple(kept.shape), qparams.block)
        step = blocks.over(qparams.step)
        # v - x/s inside the range and v outside: (x̂ - x)/s, but for x that is clipped x̂/s.
        moved = fake_quantize(kept.float(), qparams) - kept.float().masked_fill(~inside, 0)
        slope = (grad.float() * (blocks.lay(moved) / step).reshape(kept.shape)).reshape(kept.shape)
        summed = blocks.rows(slope).sum(1).reshape(blocks.counts) * ctx.share
        if qparams.super_scale is not None:
            summed = summed * qparams.super_scale
        return grad.masked_fill(~inside, 0), summed, None, None


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: Tensor, kind: ScaleType) -> Tensor:  # type: ignore[override]
        return round_scale(scale, kind)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None
