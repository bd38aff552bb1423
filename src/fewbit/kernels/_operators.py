# SPDX-License-Identifier: Apache-2.0
"""Operators for `torch.compile`: what runs on tensors that no compiler can look into.

Without a compiler the functions behind them are called directly, which spares the dispatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NO_ZERO = torch.zeros(1, dtype=torch.int32)


def packed_linear(codes: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """`step · Σ (codes - 128) · weight`: uint8 `[m, in]` and oneDNN's own layout of int8 `[in, out]` to float32."""
    run = torch.ops.onednn.qlinear_pointwise.default
    out: Tensor = run(codes, 1.0, 128, weight, step, _NO_ZERO, None, 1.0, 0, torch.float32, "none", [], "")
    return out


def packed_convolution(
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    weight: Tensor,
    step: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """`scale · step · Σ (codes - zero) · weight + bias` over a window: uint8 `[m, in, …]` to float32.

    oneDNN answers with channels last. Code after a layer may rely on the order of its input, so that order comes back.
    """
    run = torch.ops.onednn.qconv_pointwise.tensor
    factors = (codes, scale, zero, weight, step, _NO_ZERO, bias)
    out: Tensor = run(*factors, stride, padding, dilation, groups, 1.0, 0, torch.float32, "none", [], "")
    return out.contiguous(memory_format=_order(codes))


def _order(x: Tensor) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


_linear = torch.library.custom_op("fewbit::packed_linear", packed_linear, mutates_args=())
_convolution = torch.library.custom_op("fewbit::packed_convolution", packed_convolution, mutates_args=())


@_linear.register_fake
def _(codes: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    return codes.new_empty((codes.shape[0], step.shape[0]), dtype=torch.float32)


@_convolution.register_fake
def _(
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    weight: Tensor,
    step: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[-len(stride) :])]
    sides = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(codes.shape[2:], padding, reach, stride)]
    shape = (codes.shape[0], step.shape[0], *sides)
    return torch.empty(shape, dtype=torch.float32, device=codes.device, memory_format=_order(codes))
