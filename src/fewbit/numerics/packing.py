# SPDX-License-Identifier: Apache-2.0
"""Codes of fewer than eight bits as bytes: element 0 in the lowest bits of byte 0, along the last axis, no gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.dtypes import Dtype


def is_packed(dtype: Dtype) -> bool:
    """Whether codes of a type share bytes."""
    return dtype.bits not in (8, 16, 32)


def pack(codes: Tensor, dtype: Dtype) -> Tensor:
    """Codes `[…, n]` as bytes `[…, ceil(n * bits / 8)]`; types of whole bytes come back as they are.

    >>> pack(torch.tensor([1, -1, 7], dtype=torch.int8), Dtype.int4)
    tensor([241,   7], dtype=torch.uint8)
    """
    if not is_packed(dtype):
        return codes
    bits = dtype.bits
    n = codes.shape[-1]
    flat = codes.to(torch.int32) & ((1 << bits) - 1)
    each = flat.unsqueeze(-1) >> torch.arange(bits, device=codes.device, dtype=torch.int32) & 1
    stream = each.to(torch.uint8).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -(n * bits) % 8)).unflatten(-1, (-1, 8))
    weights = (1 << torch.arange(8, device=codes.device)).to(torch.uint8)
    return (stream * weights).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, dtype: Dtype, n: int) -> Tensor:
    """The inverse of `pack`: `n` codes along the last axis, in `dtype.storage`."""
    if not is_packed(dtype):
        return packed
    bits = dtype.bits
    each = packed.unsqueeze(-1) >> torch.arange(8, device=packed.device, dtype=torch.uint8) & 1
    stream = each.flatten(-2)[..., : n * bits].unflatten(-1, (n, bits)).to(torch.int32)
    codes = (stream << torch.arange(bits, device=packed.device, dtype=torch.int32)).sum(-1, dtype=torch.int32)
    if dtype.is_integer and dtype.signed:
        codes = codes - ((codes >> (bits - 1)) << bits)
    return codes.to(dtype.storage)
