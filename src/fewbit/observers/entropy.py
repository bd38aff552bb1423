# SPDX-License-Identifier: Apache-2.0
"""The range that loses the least information: the least Kullback-Leibler divergence of quantized from seen values.

After Migacz, "8-bit inference with TensorRT" (GTC 2017). On the one side stands what was seen, with everything beyond
the range counted in the last bin inside. On the other side stands what was seen within the range alone, each level's
share spread evenly over the bins it stands for. Four things differ:

- The levels are those of the real grid, of any type, with a real scale and with two free ends.
- Bins without values are no part of either side, so the divergence is defined without smoothing.
- The second side is not scaled up to one: what is clipped stays lost. Scaled up, a range that holds a single bin
  looks perfect.
- Zeros are left out: they are on every grid, and after a ReLU their peak would hide the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType
from fewbit.observers._search import Cost, SearchBase
from fewbit.observers._spectrum import Spectrum


@dataclass(kw_only=True, eq=False)
class EntropyObserver(SearchBase):
    """Wants many values: where most bins hold one or none, their noise is taken for information.

    A type with more levels than the histogram has bins loses nothing, and keeps the whole range.
    """

    name = "entropy"

    def cost(self, seen: Spectrum, grid: Grid, super_scale: Tensor | None = None) -> Cost:
        """The divergence in nats; infinite for a range that holds no bin in use."""
        values = seen.centres  # [R, n], ascending but for the unused columns at the end
        counts = torch.where(values == 0, 0, seen.counts).double()
        used = counts > 0

        def divergence(low: Tensor, high: Tensor) -> Tensor:
            low, high = low[..., None], high[..., None]
            each = values.expand(len(low), -1, -1)  # [C, R, n]
            qparams = from_range(low, high, grid, (1, 1, values.shape[1]), super_scale=super_scale)
            bottom, top = _covered(low, high, qparams)
            inside = used & (each >= bottom) & (each <= top)
            mass = counts * inside

            beyond = (counts * (each < bottom)).sum(-1, keepdim=True), (counts * (each > top)).sum(-1, keepdim=True)
            true = _with_ends(mass, inside, *beyond)
            level = _level(fake_quantize(each, qparams))
            model = _per_level(mass, level) / _per_level(inside.double(), level)
            terms = torch.where(inside, true * (true / model).log(), 0.0).sum(-1) / counts.sum(-1)
            return torch.where(inside.any(-1), terms, torch.inf)

        return divergence


def _covered(low: Tensor, high: Tensor, qparams: QParams) -> tuple[Tensor, Tensor]:
    """The range that is really covered: a scale kept as a power of two may be half or twice what was asked for."""
    grid = qparams.grid
    asked = from_range(low, high, grid.replace(scale_type=ScaleType.float32), qparams.block)
    ratio = (qparams.step / asked.step).abs()
    largest = torch.maximum(-low, high) * ratio
    return (low, low + (high - low) * ratio) if grid.asymmetric else (-largest, largest)


def _with_ends(mass: Tensor, inside: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """What lies beyond the range, counted in the first and the last bin inside."""
    first = inside.long().argmax(-1, keepdim=True)
    last = inside.shape[-1] - 1 - inside.flip(-1).long().argmax(-1, keepdim=True)
    return mass.scatter_add(-1, first, below).scatter_add_(-1, last, above)


def _level(quantized: Tensor) -> Tensor:
    """Bins numbered by the level they fall on, from 0 in each row."""
    changes = quantized[..., 1:] != quantized[..., :-1]
    return torch.nn.functional.pad(changes.long().cumsum(-1), (1, 0))


def _per_level(x: Tensor, level: Tensor) -> Tensor:
    """The sum of `x` over the bins of each level, given back to every bin."""
    return torch.zeros_like(x).scatter_add_(-1, level, x).gather(-1, level)


OBSERVER = EntropyObserver
