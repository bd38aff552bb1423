# SPDX-License-Identifier: Apache-2.0
"""The range whose expected squared error is least, on the very grid it is for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._search import Cost, SearchBase
from fewbit.observers._spectrum import Spectrum


@dataclass(kw_only=True, eq=False)
class MSEObserver(SearchBase):
    """Ranges are tried by quantizing the histogram itself: integers, floats and tables alike.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = MSEObserver()
    >>> observer.observe(torch.cat([torch.linspace(-1, 1, 9999), torch.tensor([8.0])])[None])
    >>> low, high = observer.range(Grid(Dtype.int4))
    >>> bool(low == -1) and 1 < float(high) < 2
    True
    """

    name = "mse"

    def cost(self, seen: Spectrum, grid: Grid, super_scale: Tensor | None = None) -> Cost:
        """The mean squared error, in units of each row's largest magnitude."""
        values, shares = _points(seen, grid)
        largest = torch.maximum(-seen.low, seen.high)
        unit = torch.where(largest > 0, largest, 1.0)[:, None]

        def error(low: Tensor, high: Tensor) -> Tensor:
            each = values.expand(len(low), -1, -1)  # [C, R, n]
            block = (1, 1, values.shape[1])
            qparams = from_range(low[..., None], high[..., None], grid, block, super_scale=super_scale)
            # Divided before it is squared: the square of 1e30 is no float32.
            return (fake_quantize(each, qparams) - each).div_(unit).square_().mul_(shares).sum(-1)

        return error


def _points(seen: Spectrum, grid: Grid) -> tuple[Tensor, Tensor]:
    """Values that stand for the bins, and the share of each: `[R, n]`."""
    # The centre would do if steps were always wider than bins. A type with many steps, or with fine ones near zero, may
    # have a step on a centre by chance, and seem free of error; so the middle of each third is looked at.
    places = (0.5,) if grid.dtype.bits <= 4 else (1 / 6, 0.5, 5 / 6)
    within = torch.tensor(places, device=seen.low.device)
    values = seen.bottoms[..., None] + (seen.tops - seen.bottoms)[..., None] * within
    shares = (seen.counts / (seen.total[:, None] * len(places)))[..., None].expand_as(values)
    return values.flatten(1), shares.flatten(1).float()


OBSERVER = MSEObserver
