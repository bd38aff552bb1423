# SPDX-License-Identifier: Apache-2.0
"""AdaRound (Nagel et al., arXiv 2004.10568): each weight up or down, so that the errors of a row cancel in its output.

With fixed scales the error of a row is (w - q) H (w - q)ᵀ, where each q is one of the two neighbors of w. It is
minimized over numbers between 0 and 1 that a penalty drives to the ends (Adam on a stretched sigmoid); then single
elements change as long as that lowers the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import cos, pi
from typing import TYPE_CHECKING, Any

from fewbit.algorithms._base import LayerProblem
from fewbit.algorithms._scale_search import search_scales
from fewbit.errors import DataError, UsageError, require
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

_STRETCH, _OFFSET = 1.2, 0.1
"""The sigmoid is stretched to [-0.1, 1.1] and clipped, so that it reaches both ends."""
_WARM_UP, _PENALTY, _RATE = 0.2, 0.5, 0.1
"""Share of the steps without penalty; its weight; the rate of Adam."""
_BETAS = (20.0, 2.0)


class AdaRound:
    """Learns for each weight whether it is rounded up or down. In torch."""

    name = "adaround"
    stage = "weight"
    statistics = frozenset({"hessian"})
    requires = "torch"
    settings: Mapping[str, Any] = {"steps": 300, "damping": 0.01}

    def quantize(self, problem: LayerProblem, *, steps: int = 300, damping: float = 0.01) -> QTensor:
        """The rounded weight; no row has a larger output error than with rounding to nearest.

        Args:
            problem: a weight on an integer grid of 8 bits or fewer, with the Hessian of its inputs.
            steps: of Adam.
            damping: added to the Hessian's diagonal, as a share of its mean.

        >>> import torch
        >>> from fewbit.algorithms._base import InputMoments
        >>> from fewbit.numerics.dtypes import Dtype
        >>> from fewbit.numerics.grid import QuantizationGrid
        >>> equal = InputMoments(10, hessian=torch.ones(4, 4))  # all inputs are the same: only the sum matters
        >>> weight = torch.tensor([[7.0, 0.3, 0.3, 0.3]])
        >>> tensor = ALGORITHM.quantize(LayerProblem("fc", weight, QuantizationGrid(Dtype.int4), equal))
        >>> int(tensor.codes().sum())  # rounded to nearest 7
        8
        """
        torch = require("torch", extra="torch", purpose="AdaRound")
        dtype = problem.grid.dtype
        if steps < 0 or not dtype.is_integer or dtype.bits > 8:
            raise UsageError(
                f"steps = {steps!r}, dtype {dtype.name} for adaround", code="adaround-settings", where=problem.name,
                expected="steps from 0 up, integers of 8 bits or fewer", hint="gptq, which takes every type",
            )  # fmt: skip
        assert problem.moments is not None and problem.moments.hessian is not None, problem.name
        weight = torch.as_tensor(problem.weight).detach().float()
        hessian = torch.as_tensor(problem.moments.hessian, device=weight.device).float()
        if not bool(torch.isfinite(hessian.diagonal()).all()):
            raise DataError(
                f"the inputs of the layer {problem.name} are not finite", code="activations-not-finite",
                where=problem.name, expected="finite activations on the calibration data",
                hint="{ignore=" + problem.name + "}",
            )  # fmt: skip
        qparams = search_scales(weight, problem.grid, hessian.diagonal(), problem.shared.get("global_scale"))
        blocks = BlockShape(tuple(weight.shape), qparams.block)
        step = _spread(qparams.step, blocks)
        zero = 0.0 if qparams.zero_point is None else _spread(qparams.zero_point, blocks)
        floor = (weight / step + zero).floor()
        down, up = floor.clamp(dtype.lowest, dtype.highest), (floor + 1).clamp(dtype.lowest, dtype.highest)
        choice = _Choice(weight - (down - zero) * step, (up - down) * step, _damped(hessian, damping))
        nearest = (choice.start / step).abs() > 0.5
        rounded_up = choice.best(choice.learn(steps), nearest & (up > down))
        integers = torch.where(rounded_up, up, down)
        if not problem.grid.free_zero:  # zeros, of a pruned weight among them, stay zero
            integers = torch.where(weight == 0, torch.zeros_like(integers) + zero, integers)
        return QTensor.encode((integers - zero) * step, qparams)


class _Choice:
    """Rows whose elements can be rounded down or up.

    Args:
        start: the error of each element if it is rounded down, [rows, in].
        step: what rounding up takes from it, of either sign; 0 where there is no choice.
        hessian: [in, in].
    """

    def __init__(self, start: Tensor, step: Tensor, hessian: Tensor) -> None:
        self.start, self.step, self._hessian = start, step, hessian

    def error(self, up: Tensor) -> Tensor:
        """Of each row."""
        error = self.start - up * self.step
        return ((error @ self._hessian) * error).sum(1)

    def best(self, learned: Tensor, nearest: Tensor) -> Tensor:
        """For each row the better of two choices, after single changes."""
        import torch

        first, second = self._descend(learned), self._descend(nearest)
        return torch.where((self.error(first) <= self.error(second))[:, None], first, second)

    def learn(self, steps: int) -> Tensor:
        """Which elements are rounded up, by the relaxation; bool [rows, in]."""
        import torch

        share = torch.where(self.step == 0, 0.0, self.start / self.step).clamp(0, 1)
        logits = torch.logit(((share + _OFFSET) / _STRETCH).clamp(1e-4, 1 - 1e-4))
        # Rows differ in size by orders of magnitude: each is measured by the error of rounding at random.
        unit = (self.step.square() @ self._hessian.diagonal()).div(12 * len(self._hessian)).clamp(min=1e-38)
        mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
        for step in range(steps):
            sigmoid = torch.sigmoid(logits)
            raw = sigmoid * _STRETCH - _OFFSET
            up = raw.clamp(0, 1)
            slope = (self.start - up * self.step) @ self._hessian * self.step * (-2 / unit)[:, None]
            if step >= _WARM_UP * steps:
                slope = slope + _PENALTY * _penalty_slope(up, (step / steps - _WARM_UP) / (1 - _WARM_UP))
            slope = slope * _STRETCH * sigmoid * (1 - sigmoid) * ((raw > 0) & (raw < 1))
            mean.lerp_(slope, 0.1)
            square.lerp_(slope.square(), 0.001)
            size = square.div(1 - 0.999 ** (step + 1)).sqrt_().add_(1e-8)
            logits -= _RATE / (1 - 0.9 ** (step + 1)) * mean / size
        return (torch.sigmoid(logits) > 0.5) & (self.step != 0)

    def _descend(self, up: Tensor) -> Tensor:
        """Change the element of each row that lowers its error most, until none does."""
        import torch

        up, diagonal = up.clone(), self._hessian.diagonal()
        error = self.start - up * self.step
        slope = error @ self._hessian
        rows = torch.arange(len(up), device=up.device)
        for _ in range(2 * up.shape[1]):
            change = torch.where(up, self.step, -self.step)
            gain, place = (2 * change * slope + change.square() * diagonal).min(1)
            better = gain < -1e-6 * (error * slope).sum(1).abs()
            if not bool(better.any()):
                break
            by = torch.where(better, change[rows, place], 0.0)
            error[rows, place] += by
            slope += by[:, None] * self._hessian[place]
            up[rows, place] ^= better
        return up


def _penalty_slope(up: Tensor, progress: float) -> Tensor:
    """Of 1 - |2 up - 1|^β: towards the nearer end, from far away only late."""
    beta = _BETAS[1] + (_BETAS[0] - _BETAS[1]) * (1 + cos(pi * progress)) / 2
    offset = 2 * up - 1
    return -2 * beta * offset.abs().pow(beta - 1) * offset.sign()


def _damped(hessian: Tensor, damping: float) -> Tensor:
    import torch

    mean = hessian.diagonal().mean()
    if not bool(mean > 0):
        return torch.eye(len(hessian), device=hessian.device)
    return hessian / mean + damping * torch.eye(len(hessian), device=hessian.device)


def _spread(scale: Tensor, blocks: BlockShape) -> Tensor:
    """One scale per element, [out, in]."""
    for axis, (width, side) in enumerate(zip(blocks.block, blocks.shape)):
        scale = scale.repeat_interleave(width, axis).narrow(axis, 0, side)
    return scale


ALGORITHM = AdaRound()
