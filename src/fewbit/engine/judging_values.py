# SPDX-License-Identifier: Apache-2.0
"""Two models whose answers are neither words nor classes: how far the answers are apart, output by output."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewbit.engine.confidence import Estimate, ratio
from fewbit.engine.non_finite import refuse_non_finite
from fewbit.engine.pairing import Pair


class ValueJudge:
    """Takes answers of any shape in, padding left out, and gives figures."""

    kind = "values"

    def __init__(self) -> None:
        self.samples = 0
        self._outputs: list[_Output] = []

    def take(self, pair: Pair) -> None:
        """Take one item's answers in."""
        self._outputs = self._outputs or [_Output() for _ in pair.ours]
        self.samples += pair.question.samples
        for output, ours, theirs in zip(self._outputs, pair.ours, pair.theirs):
            real = pair.question.real(ours)
            rows = len(ours) if ours.ndim and len(ours) == pair.question.samples else 1
            for row in range(rows):
                a, b = (
                    each.reshape(rows, -1)[row] if real is None else each[row][real[row]] for each in (ours, theirs)
                )
                if a.numel():
                    refuse_non_finite(a, b, pair.question.place)
                    output.take(a.double().cpu(), b.double().cpu())

    def facts(self) -> dict[str, Any]:
        """Error and cosine of each output, and of the one that is furthest off before all."""
        each = [output.facts() for output in self._outputs if output.rows]
        worst = max(each, key=lambda found: found["error"]["value"])
        return worst | ({"outputs": each} if len(each) > 1 else {})

    def verdict(self) -> str:
        """What may be said, in words."""
        rests = f"on {self.samples} sample{'s' if self.samples > 1 else ''}"
        if not any(output.apart for output in self._outputs):
            return f"the answers are the same, bit by bit, {rests}"
        error = max((output.error() for output in self._outputs if output.rows), key=lambda found: found.value)
        ends = "" if error.low is None else f", 95 % interval {error.low:.2g} to {error.high:.2g}"
        return f"the answers are off by {error.value:.2g} of their energy{ends}, {rests}"


class _Output:
    """Sums over each row of one output."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, float, float, int]] = []
        self._cosines: list[tuple[float, int]] = []
        self.apart = False

    @property
    def rows(self) -> int:
        return len(self._sums)

    def take(self, a: Tensor, b: Tensor) -> None:
        """One sample's answer, `[values]` or `[positions, values]`."""
        self.apart = self.apart or not torch.equal(a, b)
        off = float((b - a).square().sum())
        self._sums.append((off, float(a.sum()), float(a.square().sum()), a.numel()))
        if a.shape[-1] > 1:
            cosines = torch.cosine_similarity(a, b, dim=-1).reshape(-1)
            self._cosines.append((float(cosines.sum()), len(cosines)))

    def error(self) -> Estimate:
        """The energy of the difference over that of the answers about their mean."""
        off, total, square, count = (np.array(each, dtype=float) for each in zip(*self._sums))
        mean = total.sum() / count.sum()
        energy = square - 2 * mean * total + count * mean**2
        if not energy.sum() > 0:  # one number, always the same
            energy = square
        return ratio(off, np.maximum(energy, 1e-300)).at_least(0.0)

    def facts(self) -> dict[str, Any]:
        cosine = ratio(*zip(*self._cosines)).to_dict() if self._cosines else None
        return {"error": self.error().to_dict(), "cosine": cosine}
