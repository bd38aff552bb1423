# SPDX-License-Identifier: Apache-2.0
"""Where in the cell of its code a weight begins to learn.

Every value that rounds to a code would do for the first forward. In the middle of its cell, where codes say it is, a
weight has half a step to go before anything changes, all others have the same way, and those that are pushed alike
arrive together: for long nothing is learned, then too much at once. A scale learns nothing at all there, since its
gradient is what rounding took (equation 3 of LSQ). So a weight begins with the value it had before it was a code, and
where nobody knows that, anywhere in the cell. What was clipped begins inside as well: beyond the range of its grid it
would have no gradient, and never come back.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Float
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import quantize
from fewbit.tuning.straight_through import half_gap, is_inside

_AT_ONCE = 2**24  # elements, so that a large weight needs little more room than itself
_HALVINGS = 32  # the widest cell of e5m2 has 2**29 times the room of the narrowest
_SHORT = 1e-3  # of the way to the edge is left, for what float32 rounds


def starting_values(codes: QTensor, original: Tensor | None, seed: int) -> Tensor:
    """Values that round to these codes, in float32: the original's where it does, anywhere in the cell elsewhere.

    Args:
        codes: of a weight.
        original: the weight before it was codes, in the same layout, if anybody knows it.
        seed: of what is drawn; on the CPU, so that a run begins alike on every device.
    """
    draw = torch.Generator().manual_seed(seed)
    found = []
    for start, stop in slices(codes):
        given = None if original is None else original[start:stop].to(codes.scale.device, torch.float32)
        found.append(_begun(codes.part(start, stop), given, draw))
    return torch.cat(found)


def slices(codes: QTensor) -> list[tuple[int, int]]:
    """The rows of a weight in parts that lie on the borders of blocks."""
    side, width = codes.shape[0], codes.block[0]
    whole = max(1, _AT_ONCE // max(1, prod(codes.shape[1:])))
    step = whole if width >= side else -(-whole // width) * width
    return [(start, min(start + step, side)) for start in range(0, max(side, 1), step)]


def _begun(codes: QTensor, original: Tensor | None, draw: torch.Generator) -> Tensor:
    wanted, qparams = codes.codes(), codes.qparams

    def stay(moved: Tensor) -> Tensor:
        return quantize(moved, qparams) == wanted

    if original is None:
        return _anywhere(codes.dequantize(torch.float32), qparams, stay, draw)
    known = stay(original) & is_inside(original, qparams)
    if known.all():
        return original
    return torch.where(known, original, _anywhere(codes.dequantize(torch.float32), qparams, stay, draw))


def _anywhere(values: Tensor, qparams: QParams, stay: Callable[[Tensor], Tensor], draw: torch.Generator) -> Tensor:
    """Values moved within their cells, as far as is drawn: half a gap at most, less where values lie closer."""
    dtype = qparams.grid.dtype
    if dtype.is_cast:  # its cells are too narrow to matter
        return values
    drawn = (2 * torch.rand(values.shape, generator=draw) - 1).to(values.device)
    if isinstance(dtype.value, Float):  # where -0 is a code of its own
        drawn = torch.where(values == 0, drawn.abs().copysign(values), drawn)
    blocks = Blocks(tuple(values.shape), qparams.block)
    room = blocks.lay(drawn.sign()) * blocks.over(qparams.step) * (half_gap(dtype) * (1 - _SHORT))
    room = room.reshape(values.shape)
    for _ in range(_HALVINGS):
        kept = stay(values + room)
        if kept.all():
            break
        room = torch.where(kept, room, room / 2)
    else:
        room = torch.where(stay(values + room), room, 0.0)
    return values + room * drawn.abs_()
