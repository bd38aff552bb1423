# SPDX-License-Identifier: Apache-2.0
"""The K blocks that come nearest to given values.

A block has parts, and a part's scale and offset are small integers times the block's own two: x ≈ d s q - m t. What is
best for a part alone is known (`scale_search`); what is best on that lattice is found by turns, each of which can only
lower Σ h (x - x̂)² or is not kept:

    codes    every element on the nearest value, for the scales as they are
    parts    for these codes s and t in closed form, rounded to the best of the integers around
    block    for these codes, s and t the two numbers d and m in closed form, rounded to float16
    beside   s and t one up and one down, each with codes of its own; parts are independent once d and m are given

It begins at the best scales of the parts alone, and at plain minima and maxima, so it never ends above these.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from fewbit.algorithms import scale_search
from fewbit.algorithms._base import Problem
from fewbit.exporters._gguf_blocks import Blocks
from fewbit.exporters._gguf_types import BlockType

_CHUNK = 1 << 11  # blocks at a time: half a million elements stay in the cache
_TURNS = 3
_DAMPING = 0.01  # inputs that were never seen count a little, as in scale_search
_TINY = 1e-30


def search(values: Tensor, kind: BlockType, importance: Tensor | None) -> Blocks:
    """The nearest blocks to values `[out, in]`, `in` a multiple of 256.

    Args:
        values: float.
        kind: a type whose blocks have parts.
        importance: E[x²] of each of the `in` inputs, or none.
    """
    problem = Problem(values, kind.grid, (1, kind.part), importance=importance)
    alone = scale_search.solve(problem).qtensor.qparams
    parts = kind.block // kind.part
    scale = alone.step.reshape(-1, parts)
    offset = None if alone.zero_point is None else alone.step.mul(alone.zero_point).reshape(-1, parts)
    x = values.float().reshape(-1, parts, kind.part)
    h = _weights(importance, values, x.shape)
    found = []
    for start in range(0, len(x), _CHUNK):
        here = slice(start, start + _CHUNK)
        own = (scale[here], None if offset is None else offset[here])
        found.append(_Search(kind, x[here], h if len(h) == 1 else h[here]).run([_plain(kind, x[here]), own]))
    return Blocks.joined(found)


class _Search:
    """The best blocks so far for `x` `[N, parts, part]`, and their errors."""

    def __init__(self, kind: BlockType, x: Tensor, h: Tensor) -> None:
        self.kind, self.x, self.h = kind, x, h
        self.best: Blocks | None = None
        self.error = x.new_full((len(x),), torch.inf)

    def run(self, starts: list[tuple[Tensor, Tensor | None]]) -> Blocks:
        """The best blocks, from several scales and offsets of parts to begin with."""
        for scale, offset in starts:
            now = self._keep(self._coded(self._on_lattice(scale, offset)))
            for _ in range(_TURNS):
                now = self._keep(self._coded(self._refit_block(self._refit_parts(now))))
        assert self.best is not None
        for _ in range(2):
            self._keep(self._coded(self._refit_block(self._beside(self.best))))
        self._keep(self._beside(self.best))
        return self.best

    def _keep(self, now: Blocks) -> Blocks:
        """Take over the blocks that are better than the best so far."""
        error = self._error(now).sum(1)
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.best = now if self.best is None else now.or_else(better, self.best)
        return now

    def _error(self, now: Blocks) -> Tensor:
        """By part, `[N, parts]`."""
        return (now.values().view_as(self.x) - self.x).square_().mul_(self.h).sum(-1)

    def _on_lattice(self, scale: Tensor, offset: Tensor | None) -> Blocks:
        """Blocks without codes whose parts have nearly the given scales and offsets."""
        assert self.kind.scales is not None
        lowest, highest = self.kind.scales
        top = scale.gather(1, scale.abs().argmax(1, keepdim=True))  # with its sign: the largest scale is exact
        d = _half(top / (lowest or highest))
        s = (scale / d).nan_to_num_(0, 0, 0).round_().clamp_(lowest, highest)
        now = Blocks(self.kind, torch.zeros_like(self.x), d[:, 0], scales=s)
        if offset is None:
            return now
        m = _half(offset.amax(1, keepdim=True).clamp(min=0) / highest)
        t = (offset / m).nan_to_num_(0, 0, 0).round_().clamp_(0, highest)
        return replace(now, offset=m[:, 0], offsets=t)

    def _coded(self, now: Blocks) -> Blocks:
        """The same scales, every element on the nearest value."""
        assert now.scales is not None
        step = (now.scale[:, None] * now.scales)[..., None]
        x = self.x
        if now.offset is not None and now.offsets is not None:
            x = x + (now.offset[:, None] * now.offsets)[..., None]
        codes = (x / torch.where(step == 0, torch.inf, step)).round_().clamp_(self.kind.lowest, self.kind.highest)
        return replace(now, codes=codes)

    def _refit_parts(self, now: Blocks) -> Blocks:
        """The best integers for the codes as they are."""
        assert now.scales is not None and self.kind.scales is not None
        lowest, highest = self.kind.scales
        qq, qx, q, x, h = self._sums(now.codes)
        d = now.scale[:, None]
        if now.offset is None:
            free = _ratio(qx, d * qq, now.scales)
            return replace(now, scales=free.round_().clamp_(lowest, highest))
        m = now.offset[:, None]
        free = _ratio(h * qx - q * x, d * (h * qq - q * q), now.scales).round_()
        tried = []
        for away in (-1.0, 0.0, 1.0):
            s = (free + away).clamp_(lowest, highest)
            t = _ratio(d * s * q - x, m * h, torch.zeros_like(s)).round_().clamp_(0, highest)
            a, b = d * s, m * t
            tried.append((a * a * qq - 2 * a * b * q + b * b * h - 2 * a * qx + 2 * b * x, s, t))
        error, s, t = (torch.stack(each) for each in zip(*tried))
        best = error.argmin(0, keepdim=True)
        return replace(now, scales=s.gather(0, best)[0], offsets=t.gather(0, best)[0])

    def _refit_block(self, now: Blocks) -> Blocks:
        """The best two numbers for codes and integers as they are."""
        assert now.scales is not None
        qq, qx, q, x, h = self._sums(now.codes)
        s = now.scales
        a, p = (s * s * qq).sum(1), (s * qx).sum(1)
        if now.offset is None or now.offsets is None:
            return replace(now, scale=_half(_ratio(p, a, now.scale)))
        t = now.offsets
        b, c, r = (s * t * q).sum(1), (t * t * h).sum(1), (t * x).sum(1)
        determinant = a * c - b * b
        one, two = (c * p - b * r) / determinant, (b * p - a * r) / determinant
        good = (determinant > 1e-6 * a * c) & (one > 0) & (two > 0)
        alone = torch.where(c > 0, now.scale, _ratio(p, a, now.scale))  # no part has an offset
        one, two = torch.where(good, one, alone), torch.where(good, two, now.offset)
        return replace(now, scale=_half(one), offset=_half(two))

    def _beside(self, now: Blocks) -> Blocks:
        """Every part with the best of the integers beside its own."""
        assert now.scales is not None and self.kind.scales is not None
        lowest, highest = self.kind.scales
        error = self._error(now)
        best = now
        for up, along in product((0, -1, 1), (0,) if now.offsets is None else (0, -1, 1)):
            if not up and not along:
                continue
            t = None if now.offsets is None else (now.offsets + along).clamp_(0, highest)
            tried = self._coded(replace(now, scales=(now.scales + up).clamp_(lowest, highest), offsets=t))
            its = self._error(tried)
            best = tried.or_else(its < error, best)
            error = torch.minimum(its, error)
        return best

    def _sums(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of each part: Σ h q², Σ h q x, Σ h q, Σ h x, Σ h."""
        hq, hx = self.h * codes, self.h * self.x
        total = self.h.expand_as(self.x).sum(-1)
        return (hq * codes).sum(-1), (hq * self.x).sum(-1), hq.sum(-1), hx.sum(-1), total


def _plain(kind: BlockType, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scales and offsets of parts from their extremes."""
    low, high = x.amin(-1), x.amax(-1)
    if kind.offset:
        low = low.clamp(max=0)
        return (high - low) / kind.highest, -low
    return torch.where(-low >= high, -low, -high) / -kind.lowest, None


def _weights(importance: Tensor | None, values: Tensor, shape: torch.Size) -> Tensor:
    if importance is None:
        return torch.ones(1, 1, 1)
    h = importance.float()
    h = torch.where(h.mean() > 0, h / h.mean() + _DAMPING, 1.0)
    return h.expand(values.shape).reshape(shape)


def _ratio(above: Tensor, below: Tensor, otherwise: Tensor) -> Tensor:
    """A quotient, and something else where there is none."""
    return torch.where(below.abs() > _TINY, above / torch.where(below == 0, 1.0, below), otherwise)


def _half(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float16).float()
