# SPDX-License-Identifier: Apache-2.0
"""The range whose expected squared error is least, on the very grid it is for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._search import Cost, SearchBase, best_range
from fewbit.observers._spectrum import Spectrum
from fewbit.observers._tails import Tails


@dataclass(kw_only=True, eq=False)
class MSEObserver(SearchBase):
    """Ranges are tried by quantizing the histogram itself, floats and tables alike; fine integers in closed form.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = MSEObserver()
    >>> observer.observe(torch.cat([torch.linspace(-1, 1, 9999), torch.tensor([8.0])])[None])
    >>> low, high = observer.range(Grid(Dtype.int4))
    >>> bool(low == -1) and 1 < float(high) < 2
    True
    """

    name = "mse"

    def range_under(self, grid: Grid, super_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        if not _is_fine(grid) or super_scale is not None:
            return super().range_under(grid, super_scale)
        found = [self._range_of_fine(part, grid) for part in self.parts()]
        return torch.cat([low for low, _ in found]), torch.cat([high for _, high in found])

    def _range_of_fine(self, seen: Spectrum, grid: Grid) -> tuple[Tensor, Tensor]:
        """The best range by closed form; the histogram itself decides between it and the whole range."""
        tails = Tails(seen, _unit(seen))
        low, high = best_range(seen, grid, lambda low, high: tails.error(low, high, grid), self.candidates)
        lows, highs = torch.stack([seen.low, low]), torch.stack([seen.high, high])
        better = self.cost(seen, grid)(lows, highs).argmin(0, keepdim=True)
        return lows.gather(0, better)[0], highs.gather(0, better)[0]

    def cost(self, seen: Spectrum, grid: Grid, super_scale: Tensor | None = None) -> Cost:
        """The mean squared error, in units of each row's largest magnitude."""
        values, shares = _points(seen, grid)
        unit = _unit(seen)[:, None]

        def error(low: Tensor, high: Tensor) -> Tensor:
            each = values.expand(len(low), -1, -1)  # [C, R, n]
            block = (1, 1, values.shape[1])
            qparams = from_range(low[..., None], high[..., None], grid, block, super_scale=super_scale)
            # Divided before it is squared: the square of 1e30 is no float32.
            return (fake_quantize(each, qparams) - each).div_(unit).square_().mul_(shares).sum(-1)

        return error


def _is_fine(grid: Grid) -> bool:
    return grid.dtype.is_integer and grid.dtype.bits >= 8 and not grid.free_zero


def _unit(seen: Spectrum) -> Tensor:
    largest = torch.maximum(-seen.low, seen.high)
    return torch.where(largest > 0, largest, 1.0)


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
