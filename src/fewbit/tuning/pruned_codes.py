# SPDX-License-Identifier: Apache-2.0
"""Whether the zeros of a weight that is kept as codes were put there, or are what small weights were rounded to.

Zero is a code like any other, and nothing in a file tells the two apart. The weight before it was codes does, if it is
known: what was only rounded is zero where that rounds to zero. Else their number does. Weights that were only rounded
are spread without a gap: zeros are no more than twice the codes beside them, or they fall off as steeply further on
(for a log-concave density n₀n₂ ≤ n₁²). Zeros that were pruned stand out. Where they do not, as in scales so coarse that
rounding makes the same zeros, they count as rounded.
"""

from __future__ import annotations

from torch import Tensor

from fewbit.modules.coded import Quantized
from fewbit.modules.layout import to_ours, to_own
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import quantize
from fewbit.tuning.masks import pruned_zeros
from fewbit.tuning.starting import slices

_SHARE, _BITS = 0.3, 4  # with fewer bits there are too few codes to tell
_TIMES, _STEEPER = 2, 1.5
_ROUNDED = 0.7  # of the zeros are what the original rounds to: fewer where an algorithm chose among codes
_SLACK = 1e-3


def pruned_codes(layer: Quantized, weight: str, original: Tensor | None = None) -> Tensor | None:
    """Which elements of a weight were pruned before they became codes, in the layer's own layout; none if none were.

    Args:
        layer: whose codes are looked at.
        weight: its name.
        original: the weight before it was codes, or before it was pruned as well, in the layer's own layout.
    """
    codes, coded = layer.codes_of(weight), layer.coded[weight]
    told = None if original is None else pruned_zeros(original)
    if told is not None:
        return told
    if codes.grid.dtype.bits < _BITS or len(codes.shape) < 2:
        return None
    start, stop = slices(codes)[0]  # the first rows are enough to tell
    some = codes.part(start, stop)
    if not _stand_out(some):
        return None
    if original is not None:
        before = to_ours(original.detach(), coded.axes, coded.groups)[start:stop].to(some.scale.device).float()
        zeros = some.dequantize() == 0
        if float((quantize(before, some.qparams) == some.codes())[zeros].float().mean()) > _ROUNDED:
            return None
    return to_own(codes.dequantize() == 0, coded.axes, coded.groups)


def _stand_out(codes: QTensor) -> bool:
    values = codes.dequantize().float()
    zeros = int((values == 0).sum())
    if not _SHARE * values.numel() <= zeros < values.numel():
        return False
    blocks = Blocks(tuple(values.shape), codes.block)
    units = blocks.lay(values) / blocks.over(codes.qparams.step)
    first, second = (sum(counts) for counts in zip(_nearest(units), _nearest(-units)))
    steep = not second or zeros * second > _STEEPER * first**2 / 2  # both sides of zero are in these two
    return zeros > _TIMES * first and steep


def _nearest(units: Tensor) -> tuple[int, int]:
    """How many elements have the smallest positive value that there is, and the next one, up to rounding."""
    counts = []
    for _ in range(2):
        units = units[units > 0]
        lowest = units.min() * (1 + _SLACK) if len(units) else 0.0
        counts.append(int((units <= lowest).sum()))
        units = units.masked_fill(units <= lowest, 0)
    return counts[0], counts[1]
