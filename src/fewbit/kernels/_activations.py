# SPDX-License-Identifier: Apache-2.0
"""Activations as int8 codes, for products in integers.

The codes are those of `numerics.quantize`, to the last bit. Scales found beforehand, and those of plain int8 grids
found in each call, take few passes over the activation; whatever else a grid can say goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType

_WHOLE = (QSchemeType.per_tensor, QSchemeType.per_token)
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127  # the bounds of scales and ranges in `from_range`


class Coding(NamedTuple):
    """Codes of an activation: `x ≈ (codes - zero) · scale`.

    Args:
        codes: int8, shaped like the activation; those of unsigned types moved down by 128, and `zero` with them.
        scale: float32 with an axis at least: one, or one a token `[tokens, 1]`.
        zero: float32 holding integers, shaped like `scale`; or none.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None


def not_int8(quantizer: ActivationQuantizer) -> str | None:
    """Why an activation cannot be int8 codes with one scale, or one a token."""
    grid = quantizer.grid
    if not grid.dtype.is_integer or grid.dtype.bits > 8:
        return f"activations are {grid.dtype.name}, not integers of eight bits"
    if grid.free_zero:
        return "the zero points of its activations are no integers"
    return None if grid.granularity in _WHOLE else f"activations are scaled {grid.granularity.value}"


def one_scale(quantizer: ActivationQuantizer) -> bool:
    """Whether the whole activation has one scale."""
    return not quantizer.dynamic or quantizer.grid.granularity is QSchemeType.per_tensor


def encoder(quantizer: ActivationQuantizer) -> Callable[[Tensor], Coding]:
    """What turns an activation into codes; `[tokens, features]` where there is a scale a token.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> encoder(ActivationQuantizer(Grid(Dtype.int8)))(torch.tensor([[0.5, -1.0]])).codes
    tensor([[  64, -127]], dtype=torch.int8)
    """
    grid = quantizer.grid
    scales = _scales(quantizer)

    def encode(x: Tensor) -> Coding:
        x = wide(x)
        scale, zero = scales(x)
        steps = x / scale
        if zero is None:
            steps.round_()  # a NaN becomes a zero in the cast
        else:
            steps.nan_to_num_(0.0).round_().add_(zero)
        return _signed(steps.clamp_(grid.dtype.lowest, grid.dtype.highest).to(grid.dtype.storage), scale, zero)

    def encode_slowly(x: Tensor) -> Coding:
        return _signed(quantize(x, quantizer.qparams(x)), *scales(wide(x)))

    return encode if grid.rounding is RoundType.half_even else encode_slowly


def _scales(quantizer: ActivationQuantizer) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """What finds the scale and zero point of an activation."""
    grid = quantizer.grid
    per_token = grid.granularity is QSchemeType.per_token

    def fixed(x: Tensor) -> tuple[Tensor, Tensor | None]:
        assert quantizer.scale is not None
        step = quantizer.scale if quantizer.super_scale is None else quantizer.scale * quantizer.super_scale
        return step, quantizer.zero_point

    def symmetric(x: Tensor) -> tuple[Tensor, Tensor | None]:
        # The scale of nothing but zeros may be anything: the codes are zeros.
        return divided(reach(x, per_token), half).clamp_(_SMALLEST, _LARGEST / half), None

    def asymmetric(x: Tensor) -> tuple[Tensor, Tensor | None]:
        axes = (-1,) if per_token else tuple(range(x.ndim))
        low = x.amin(axes, keepdim=True).float().clamp_(-_LARGEST, 0.0)
        high = x.amax(axes, keepdim=True).float().clamp_(0.0, _LARGEST)
        scale = divided(high.mul_(0.5) - low * 0.5, half).clamp_(min=_SMALLEST)
        lowest, highest = grid.dtype.lowest, grid.dtype.highest
        return scale, (lowest - (low / scale).round_()).clamp_(lowest, highest)

    def any_other(x: Tensor) -> tuple[Tensor, Tensor | None]:
        qparams = quantizer.qparams(x)
        return qparams.step, qparams.zero_point

    half = (grid.dtype.highest - grid.dtype.lowest) / 2
    if not quantizer.dynamic:
        return fixed
    plain = Grid(grid.dtype, grid.granularity, symmetric=grid.symmetric, rounding=grid.rounding, seed=grid.seed)
    if grid.replace(axis=0, group_size=-1, block_size=plain.block_size) != plain:
        return any_other
    if grid.asymmetric:
        return asymmetric
    return any_other if grid.has_zero_point else symmetric


def wide(x: Tensor) -> Tensor:
    """`x` for a division by float32: as it is where that converts on the way, as on a GPU; a CPU is slow at it."""
    return x.float() if x.device.type == "cpu" else x


def reach(x: Tensor, per_token: bool) -> Tensor:
    """The largest magnitude, of each token or of all, float32 with as many axes as `x`."""
    return x.abs().amax((-1,) if per_token else tuple(range(x.ndim)), keepdim=True).float()


def divided(x: Tensor, by: float) -> Tensor:
    """`x / by`, rounded as float32 division is; elsewhere than on a CPU it may be a product with the reciprocal."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x.div_(by)
    return (x.double() / by).float()


def _signed(codes: Tensor, scale: Tensor, zero: Tensor | None) -> Coding:
    if codes.dtype is torch.int8:
        return Coding(codes, scale, zero)
    assert zero is not None  # unsigned codes have one
    return Coding(codes.bitwise_xor(128).view(torch.int8), scale, zero - 128)
