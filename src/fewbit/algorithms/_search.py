# SPDX-License-Identifier: Apache-2.0
"""The search for better scales of some blocks.

Weights are measured in steps of plain rounding, v = w / step, so that every number is of the size of a code, and a
scale is a factor beside that step. For any codes q, however they were found, the best factor follows in closed form:
with c = Σ h q v and d = Σ h q² it is c / d, and it explains c² / d of Σ h v². So a candidate factor serves only to find
codes, and is judged by the factor that fits these codes best:

    coarse   factors from a little above plain rounding down to the step that suits a normal distribution as wide as the
             block; for some of them also the other sign (full range) or other places of the range (asymmetric)
    fine     factors beside the best one
    refit    the codes of the best factor once more; asymmetric also with the neighbouring zero points

With a zero point z the sums are Σ h (q - z) v and Σ h (q - z)², which follow from Σ h q v, Σ h q² and Σ h q. A zero
point that need not be an integer is refitted too: it is that of a line fitted through codes and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fewbit.algorithms._sums import Rows, Sums
from fewbit.numerics.dtypes import Dtype, Float, Integer
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType, is_power, round_scale

STAGES = ("rtn", "coarse", "fine", "refit")

# The step of the uniform quantizer that is best for a normal distribution, in standard deviations (J. Max, 1960), by
# bits; of the other types, as measured. Blocks are small or have heavy tails: the best is between this and plain
# rounding.
_NORMAL_STEP = {2: 0.996, 3: 0.586, 4: 0.335, 5: 0.188, 6: 0.104, 7: 0.0569, 8: 0.0308}
_NORMAL_STEP_OF = {Dtype.fp4: 0.44, Dtype.nf4: 2.6}
_LARGE = 1 << 13  # elements
_TINY = 1e-30


class Effort(NamedTuple):
    """How many candidates: coarse ones, fine ones on each side of the best, closing refits."""

    coarse: int
    fine: int
    refits: int


def effort(grid: Grid, *, weighted: bool) -> Effort | None:
    """The candidates a grid is worth; none where plain rounding is as good as float32 can tell."""
    number = grid.dtype.value
    if isinstance(number, Float) and number.mantissa > 3:
        return None
    if isinstance(number, Integer) and number.bits >= 8:
        return Effort(4, 1, 1) if number.bits == 8 else None
    return Effort(8, 1, 1) if weighted else Effort(5, 1, 1)


class Search:
    """The best factor and zero point of some blocks so far, `[B]`, and which stage they came from.

    Args:
        rows: the blocks.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.grid = rows.base.grid
        self.lowest, self.highest = rows.ends
        self.moments = rows.moments()
        self.factor = torch.ones_like(rows.base.scale)
        self.zero = rows.base.zero_point if self.grid.asymmetric else None
        self.stage = torch.zeros_like(rows.base.scale, dtype=torch.int64)
        self.gain = torch.zeros_like(self.moments.vv)

    def run(self, effort: Effort) -> None:
        """All stages."""
        factors, ratio = self._coarse(effort.coarse)
        self._try(*self._placed(factors), stage=1)
        if ratio is not None and effort.fine:
            away = torch.arange(1, effort.fine + 1, device=factors.device).unsqueeze(1) / (effort.fine + 1)
            factors = self.factor * ratio ** torch.cat([away, -away])
            self._try(factors, self._zeros(factors, self._centre()), stage=2)
        for _ in range(effort.refits):
            self._try(*self._neighbours(), stage=3)

    # ---- candidates -------------------------------------------------------------------------------------

    def _coarse(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Factors `[K, B]`, and the ratio of each to the one before; none if the scale type has but few values."""
        one = self.factor
        if is_power(self.grid.scale_type):
            return one * one.new_tensor([[2.0], [1.0], [0.5], [0.25]]), None
        if self.grid.scale_type in (ScaleType.float8_e4m3fn, ScaleType.float8_e5m3):
            eighths = torch.arange(4, -5, -1, device=one.device)  # these types have eight values an octave
            return one * (2.0 ** (eighths / 8)).unsqueeze(1), None
        bottom, top = self._span()
        ratio = (bottom / top) ** (1 / max(count - 1, 1))
        return top * ratio ** torch.arange(count, device=one.device).unsqueeze(1), ratio

    def _span(self) -> tuple[Tensor, float]:
        """The smallest and the largest factor worth a look."""
        dtype, (h, v, vv) = self.grid.dtype, self.moments
        normal = _NORMAL_STEP.get(dtype.bits) if dtype.is_integer else _NORMAL_STEP_OF.get(dtype)
        if normal is None:
            # Floats lose the same share at any scale: what differs is how their steps fall on the weights.
            return torch.full_like(self.factor, 0.92), 1.4
        variance = vv / h if self.zero is None else vv / h - (v / h).square()
        bottom = variance.clamp_(min=0).sqrt_().float() * (0.85 * normal)
        if dtype.bits > 7:
            # So little is lost by rounding that clipping pays only in large blocks; how far, as measured.
            floor = 0.95 * min(1.0, _LARGE / self.rows.rows.shape[1]) ** 0.15
            return bottom.clamp_(floor, 0.98), 1.02
        bottom = bottom.clamp_(0.03, 0.85 if dtype.bits < 5 else 0.95)
        # With weights, a few elements may be all that matters: the others can be clipped, or be rounded roughly.
        return (bottom, 1.1) if self.rows.importance is None else (bottom * 0.7, 1.3)

    def _placed(self, factors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Coarse factors with their zero points, some of them again where a range can be placed in other ways."""
        some = factors[1::2]
        if self.grid.signed_scale:
            return torch.cat([factors, -some]), None
        middle = self._centre()
        if middle is None:
            return factors, None
        # A narrower range may lie anywhere in the wide one: as near to the mean as it can, or in the middle. Where a
        # few elements are all that matters, it may lie beside it too.
        half = (self.highest - self.lowest) / 2
        room = ((1 - factors) * half).clamp_(min=0)
        off = (self.moments.v / self.moments.h).float() - middle
        shifts = (0.0,) if self.rows.importance is None else (0.0, 0.25, -0.25)
        centres = [middle + torch.minimum(torch.maximum(off, -room), room)]
        centres += [middle + some * (shift * half) for shift in shifts]
        factors = torch.cat([factors, *(some for _ in shifts)])
        return factors, self._zeros(factors, torch.cat(centres))

    def _neighbours(self) -> tuple[Tensor, Tensor | None]:
        """The best factor, with its zero point and those beside it."""
        if self.zero is None:
            return self.factor.unsqueeze(0), None
        zeros = self.zero + self.zero.new_tensor([[0.0], [1.0], [-1.0]]) * (0.3 if self.grid.free_zero else 1.0)
        if not self.grid.free_zero:
            zeros = zeros.clamp_(self.lowest, self.highest)
        return self.factor.expand(3, -1), zeros

    def _centre(self) -> Tensor | None:
        """The middle of the range that the best scale and zero point cover."""
        return None if self.zero is None else ((self.lowest + self.highest) / 2 - self.zero) * self.factor

    def _zeros(self, factors: Tensor, centre: Tensor | None) -> Tensor | None:
        """The zero points that put the middle of the range at `centre`."""
        if centre is None:
            return None
        zeros = (self.lowest + self.highest) / 2 - centre / factors
        return zeros if self.grid.free_zero else zeros.round_().clamp_(self.lowest, self.highest)

    # ---- judging ----------------------------------------------------------------------------------------

    def _try(self, factors: Tensor, zeros: Tensor | None, *, stage: int) -> None:
        """Find codes by some factors and zero points `[K, B]`, refit, keep what is better than the best so far."""
        factors = self._storable(factors)
        c, d, q = self.rows.sums(factors, zeros)
        if zeros is not None:
            h, v, _ = self.moments
            zeros = self._refit_zeros(factors, zeros, Sums(c, d, q))
            c, d = c - zeros * v, (zeros * h - 2 * q).mul_(zeros).add_(d)  # Σ h (q - z) v, Σ h (q - z)²
        factor = self._storable((c / d.clamp(min=_TINY)).float())
        gain = factor * (2 * c - factor * d)
        if zeros is not None:
            gain = gain.masked_fill_(factor <= 0, 0)
        gain, best = gain.max(0, keepdim=True)
        better = gain[0] > self.gain
        self.gain = torch.where(better, gain[0], self.gain)
        self.factor = torch.where(better, factor.gather(0, best)[0], self.factor)
        self.stage = self.stage.masked_fill(better, stage)
        if zeros is not None and self.zero is not None:
            self.zero = torch.where(better, zeros.gather(0, best)[0], self.zero)

    def _refit_zeros(self, factors: Tensor, zeros: Tensor, sums: Sums) -> Tensor:
        """Where a line through codes and values has its zero; an integer zero point is the nearest to it already."""
        if not self.grid.free_zero:
            return zeros
        qv, qq, q = sums
        h, v, _ = self.moments
        slope = (h * qv - q * v) / (h * qq - q * q).clamp_(min=_TINY)
        # Where nearly all codes are the same, the line may have any slope.
        return torch.where(slope > 0.1 * factors, (q - v / slope) / h, zeros).float()

    def _storable(self, factors: Tensor) -> Tensor:
        """Factors beside which a scale of the grid's type lies, on just that scale."""
        if self.grid.scale_type is ScaleType.float32:
            return factors
        scale = self.rows.base.scale
        return round_scale(factors * scale, self.grid.scale_type) / scale
