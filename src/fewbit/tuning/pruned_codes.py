# SPDX-License-Identifier: Apache-2.0
"""Whether the zeros of a weight that is kept as codes were put there, or are what small weights were rounded to.

Zero is a code like any other, and nothing in a file tells the two apart. Their number does: of weights that were only
rounded, about half as many become zero as become one of the two codes beside it, and not twice as many unless most lie
far below the largest (a Laplace distribution's largest at 10 deviations). Of weights that were pruned to 40 % and then
rounded, 2.6 times as many are zero, from 50 % on more than four times.
"""

from __future__ import annotations

from torch import Tensor

from fewbit.modules.coded import Quantized
from fewbit.modules.layout import to_own
from fewbit.numerics.blocks import Blocks

_SHARE, _TIMES, _BITS = 0.3, 2, 4  # with fewer bits there are too few codes to tell
_SLACK = 1e-3


def pruned_codes(layer: Quantized, weight: str) -> Tensor | None:
    """Which elements of a weight were pruned before they became codes, in the layer's own layout; none if none were."""
    codes, coded = layer.codes_of(weight), layer.coded[weight]
    values = codes.dequantize().float()
    zeros = values == 0
    if codes.qparams.grid.dtype.bits < _BITS or float(zeros.float().mean()) < _SHARE or zeros.all():
        return None
    blocks = Blocks(tuple(values.shape), codes.qparams.block)
    units = blocks.lay(values) / blocks.over(codes.qparams.step)
    if int(zeros.sum()) <= _TIMES * (_nearest(units) + _nearest(-units)):
        return None
    return to_own(zeros, coded.axes, coded.groups)


def _nearest(units: Tensor) -> int:
    """How many elements have the smallest positive value that there is, up to rounding."""
    positive = units[units > 0]
    return int((positive <= positive.min() * (1 + _SLACK)).sum()) if len(positive) else 0
