# SPDX-License-Identifier: Apache-2.0
"""Products with int4 weights: PyTorch's kernels for few tokens, float products on dequantized tiles for many.

Both kernels compute `Σ x · ((code - 8) · scale + zero)` with bfloat16 activations, scales and zeros
`[in / group, out, 2]`. They dequantize again for every few tokens, so from some number of tokens on it is faster to do
it once: a tile at a time, that what lies between stays in the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.kernels._nibbles import Cpu, Cuda

FEW = {"cpu": 80, "cuda": 180}  # tokens; measured on 4096 × 4096 weights, on an EPYC and an H200
_TILE = 1 << 20  # elements


def int4_linear(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    """bfloat16 `[m, in]` and packed codes to bfloat16 `[m, out]`."""
    if x.shape[0] <= FEW[x.device.type]:
        return int4_few(x, weight, scales, group)
    return _many_cpu(x, weight, scales, group) if x.device.type == "cpu" else _many_cuda(x, weight, scales, group)


def int4_few(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    """The same by PyTorch's kernel."""
    if x.device.type == "cpu":
        return torch._weight_int4pack_mm_for_cpu(x, weight, group, scales)
    return torch._weight_int4pack_mm(x, weight, group, scales)


def _many_cpu(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    out = x.new_empty(x.shape[0], scales.shape[1])
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        x = x.float()
    values = tile = x.new_empty(0)
    for outputs, codes in Cpu().tiles(weight, _TILE):
        blocks, features, width = codes.shape
        if values.shape != codes.shape:  # made once, because fresh memory costs more than the arithmetic on it
            values, tile = x.new_empty(codes.shape, dtype=torch.float32), x.new_empty(features, blocks, width)
        part = scales[:, outputs].float().view(-1, blocks, width, 2)  # [in / g, blocks, width, 2]
        scale, zero = part.permute(3, 1, 0, 2).unsqueeze(3).contiguous()
        values.copy_(codes).view(blocks, -1, group, width).sub_(8).mul_(scale).add_(zero)
        tile.permute(1, 0, 2).copy_(values)
        out[:, outputs] = x @ tile.flatten(1)
    return out


def _many_cuda(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    codes = Cuda(x.shape[1]).fast_unpack(weight)
    parts = codes.view(codes.shape[0], -1, group).sub_(8)
    scale, zero = scales.permute(2, 1, 0).unsqueeze(-1)  # each [out, in / group, 1]
    values: Tensor = (parts * scale).add_(zero)
    return x @ values.flatten(1).t()


_operator = torch.library.custom_op("fewbit::int4_linear", int4_linear, mutates_args=())


@_operator.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    return x.new_empty(x.shape[0], scales.shape[1])
