# SPDX-License-Identifier: Apache-2.0
"""The sums from which the best scale of a block follows, for many candidates at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from fewbit.algorithms._tiles import total
from fewbit.numerics.dtypes import Float, Integer
from fewbit.numerics.floats import decode, round_to_float, round_to_table
from fewbit.numerics.qparams import QParams
from fewbit.numerics.rounding import RoundType, round_

_HOST, _DEVICE = 1 << 19, 1 << 25


class Scratch(threading.local):
    """Memory that each thread uses again and again: on a CPU, fresh pages cost more than the arithmetic on them.

    Args:
        device: where it lies; on a CPU it is small enough for the cache.
    """

    def __init__(self, device: torch.device) -> None:
        self.size = _HOST if device.type == "cpu" else _DEVICE
        self._memory: dict[str, Tensor] = {}
        self._device = device

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised float32 tensor; the one that was taken under the same name before is no longer valid."""
        count = prod(shape)
        if name not in self._memory or self._memory[name].numel() < count:
            self._memory[name] = torch.empty(count, device=self._device)
        return self._memory[name][:count].view(shape)


class Sums(NamedTuple):
    """Sums over the elements of a block, `[K, B]`: h q v, h q² and h q (zero where nothing has a zero point)."""

    qv: Tensor
    qq: Tensor
    q: Tensor


class Moments(NamedTuple):
    """Sums over the elements of a block, `[B]`: h, h v and h v²."""

    h: Tensor
    v: Tensor
    vv: Tensor


@dataclass(frozen=True)
class Rows:
    """Some blocks, measured in steps of plain rounding: v = w / step.

    Args:
        rows: the weights w, `[B, E]`, any float type.
        base: the scales of plain rounding, `[B]`.
        importance: h, `[B, E]`, positive; none is all ones.
        scratch: memory to compute in.
    """

    rows: Tensor
    base: QParams
    importance: Tensor | None
    scratch: Scratch

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and highest code; where all blocks have the same zero point, counted from there."""
        grid = self.base.grid
        lowest, highest = grid.dtype.lowest, grid.dtype.highest
        middle = (lowest + highest + 1) // 2 if grid.has_zero_point and grid.symmetric else 0
        return lowest - middle, highest - middle

    @property
    def precision(self) -> torch.dtype:
        """Of the sums: eight bits lose so little that the last bits of a float32 would decide between candidates."""
        dtype = self.base.grid.dtype
        return torch.float64 if dtype.is_integer and dtype.bits > 6 else torch.float32

    def moments(self) -> Moments:
        """What does not depend on codes."""
        found = self._zeros(3, len(self.rows))
        for place, v, h, hv in self._pieces(1):
            found[0, place] += v.shape[1] if h is None else total(h)
            found[1, place] += total(hv)
            found[2, place] += total(torch.mul(hv, v, out=self.scratch.take("work", *v.shape)))
        return Moments(*found)

    def sums(self, factors: Tensor, zeros: Tensor | None) -> Sums:
        """What depends on codes: on those found by steps of `factors` and with `zeros`, if there are any; `[K, B]`."""
        found = self._zeros(3, *factors.shape)
        inverse = factors.reciprocal().unsqueeze(-1)
        for place, v, h, hv in self._pieces(len(factors)):
            near, work = (self.scratch.take(name, len(factors), *v.shape) for name in ("near", "work"))
            torch.mul(v, inverse[:, place], out=near)
            q = self._round(near if zeros is None else near.add_(zeros[:, place, None]))
            found[0, :, place] += total(torch.mul(q, hv, out=work))
            hq = q if h is None else torch.mul(q, h, out=work)
            if zeros is not None:
                found[2, :, place] += total(hq)
            found[1, :, place] += total(torch.mul(hq, q, out=work))
        return Sums(*found)

    def _round(self, x: Tensor) -> Tensor:
        """Elements of the grid: codes of integers, values of floats; in place where that can be."""
        grid, number = self.base.grid, self.base.grid.dtype.value
        mode = RoundType.half_even if grid.rounding is RoundType.stochastic else grid.rounding
        if isinstance(number, Integer):
            return round_(x, mode).clamp_(*self.ends)
        return (
            round_to_float(x, number, mode)
            if isinstance(number, Float)
            else decode(round_to_table(x, number, mode), grid.dtype)
        )

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.precision, device=self.rows.device)

    def _pieces(self, candidates: int) -> Iterator[tuple[slice, Tensor, Tensor | None, Tensor]]:
        """Which blocks, and of these v, h and h v, `[b, e]`: few enough for work on all candidates at once."""
        count, elements = self.rows.shape
        size = max(1, self.scratch.size // max(candidates, 4))  # for one alone the scratch would be four times as large
        tall, wide = max(1, size // elements), min(size, elements)
        for top in range(0, count, tall):
            place = slice(top, top + tall)
            step = self.base.step[place, None]
            for start in range(0, elements, wide):
                here = place, slice(start, start + wide)
                w = self.rows[here]
                v = torch.div(w.float(), step, out=self.scratch.take("v", *w.shape))
                h = None if self.importance is None else self.importance[here]
                yield place, v, h, v if h is None else torch.mul(v, h, out=self.scratch.take("hv", *v.shape))
