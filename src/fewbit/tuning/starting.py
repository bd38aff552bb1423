# SPDX-License-Identifier: Apache-2.0
"""Where in the cell of its code a weight begins to learn.

Every value that rounds to a code would do for the first forward. In the middle of its cell, where codes say it is, a
weight has half a step to go before anything changes, all others have the same way, and those that are pushed alike
arrive together: for long nothing is learned, then too much at once. A scale learns nothing at all there, since its
gradient is what rounding took (equation 3 of LSQ). So a weight begins with the value it had before it was a code, and
where nobody knows that, anywhere in the cell, as values before rounding are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qtensor import QTensor
from fewbit.tuning.straight_through import half_gap

_HALVINGS = 24  # the widest cell of any type has about 2**15 times the room of the narrowest


def starting_values(codes: QTensor, original: Tensor | None, draw: torch.Generator) -> Tensor:
    """Values that round to these codes, in float32: the original's where it does, anywhere in the cell elsewhere.

    Args:
        codes: of a weight.
        original: the weight before it was codes, in the same layout, if anybody knows it.
        draw: on the CPU, so that a run begins alike on every device.
    """
    values, wanted = codes.dequantize(torch.float32), codes.codes()

    def stay(moved: Tensor) -> Tensor:
        return QTensor.encode(moved, codes.qparams).codes() == wanted

    blocks = Blocks(tuple(values.shape), codes.qparams.block)
    drawn = (2 * torch.rand(values.shape, generator=draw) - 1).to(values.device) * half_gap(codes.qparams.grid.dtype)
    apart = (blocks.lay(drawn) * blocks.over(codes.qparams.step)).reshape(values.shape)
    for _ in range(_HALVINGS):
        kept = stay(values + apart)
        if kept.all():
            break
        apart = torch.where(kept, apart, apart / 2)
    values = torch.where(stay(values + apart), values + apart, values)
    return values if original is None else torch.where(stay(original), original, values)
