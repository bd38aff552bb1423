# SPDX-License-Identifier: Apache-2.0
"""fewbit's codes as blocks of 32 with a scale, and an offset where there is one; bit by bit where float16 has them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fewbit.algorithms import scale_search
from fewbit.algorithms._base import Problem
from fewbit.errors import DataError
from fewbit.exporters._gguf_blocks import Blocks
from fewbit.exporters._gguf_types import BlockType
from fewbit.numerics.qtensor import QTensor

_PART = 32


def map_codes(tensor: QTensor, kind: BlockType) -> Blocks:
    """The blocks that hold a tensor's codes, `[out, in]`; scales of longer groups are repeated.

    Codes that lie too far from their zero point for a type without offset are found anew, block by block.

    Raises:
        DataError: a scale that float16 cannot hold.
    """
    qparams = tensor.qparams
    scale = _spread(qparams.step, tensor)
    zero = torch.zeros_like(scale) if qparams.zero_point is None else _spread(qparams.zero_point, tensor)
    codes = tensor.codes().reshape(-1, 1, _PART).float()
    if kind.offset:
        lowest = tensor.grid.dtype.lowest  # codes begin at zero there
        return _checked(_with_offset(kind, codes - lowest, scale, zero - lowest))
    codes = codes - zero[:, None, None]
    found = _checked(Blocks(kind, codes, _to_half(scale)))
    far = ((codes < kind.lowest) | (codes > kind.highest)).flatten(1).any(1)
    if not far.any():
        return found
    anew = search(codes[far, 0] * scale[far, None], kind, None)
    found.codes[far], found.scale[far] = anew.codes, anew.scale
    return found


def search(values: Tensor, kind: BlockType, importance: Tensor | None) -> Blocks:
    """The blocks that come nearest to values `[out, in]`, by the search that the default algorithm makes.

    Args:
        values: float, `in` a multiple of 32.
        kind: a type whose blocks have no parts.
        importance: E[x²] of each of the `in` inputs, or none.
    """
    problem = Problem(values, kind.grid, (1, _PART), importance=importance)
    found = map_codes(scale_search.solve(problem).qtensor, kind)
    if found.offset is None:
        return found
    # The search knew the offset before it was a float16.
    step = torch.where(found.scale == 0, torch.inf, found.scale)
    codes = ((values.float().reshape(-1, 1, _PART) - found.offset[:, None, None]) / step[:, None, None]).round_()
    return replace(found, codes=codes.clamp_(kind.lowest, kind.highest))


def _with_offset(kind: BlockType, codes: Tensor, scale: Tensor, zero: Tensor) -> Blocks:
    """`scale (q - zero)` as `d q + m`, or with the codes turned round.

    Turned round, 15 - q instead of q, the offset is scale (15 - zero): the shorter of the two has three bits more than
    the scale and not four, so that float16 holds it wherever the scale is a bfloat16.
    """
    turned = zero > kind.highest / 2
    offset = torch.where(turned, scale * (kind.highest - zero), -scale * zero)
    codes = torch.where(turned[:, None, None], kind.highest - codes, codes)
    return Blocks(kind, codes, _to_half(torch.where(turned, -scale, scale)), _to_half(offset))


def _spread(per_block: Tensor, tensor: QTensor) -> Tensor:
    """One number for each 32 elements, in their order; from one for each block of a tensor."""
    rows, width = tensor.shape
    wide = per_block.reshape(tensor.blocks.counts).repeat_interleave(tensor.block[0], 0)[:rows]
    return wide.repeat_interleave(max(tensor.block[1] // _PART, 1), 1)[:, : width // _PART].reshape(-1)


def _to_half(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float16).float()


def _checked(blocks: Blocks) -> Blocks:
    bad = ~torch.isfinite(blocks.scale)
    if blocks.offset is not None:
        bad = bad | ~torch.isfinite(blocks.offset)
    if bad.any():
        raise DataError(
            f"{int(bad.sum())} of {len(bad)} blocks have a scale beyond float16",
            expected="scales below 65504, which every GGUF type keeps in float16",
            try_="leave this layer in float, or export it with type='F32'",
        )
    return blocks
