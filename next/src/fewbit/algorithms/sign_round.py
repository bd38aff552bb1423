# SPDX-License-Identifier: Apache-2.0
"""SignRound (Cheng et al., arXiv 2309.05516; AutoRound): signed gradient descent on the rounding of a block's weights.

Every weight starts from what another algorithm made of it. Then each element and each scale moves against the sign of
the gradient that the block's squared output error has there, as if nothing were rounded. Signs are averaged over steps
(the direction of Adam): elements near the middle of two values would otherwise go back and forth. Held-out samples
judge from time to time; the best state wins, the start included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.algorithms._base import BlockProblem
from fewbit.errors import UsageError, require
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

_FEW_STEPS, _MANY_STEPS, _NARROW = 50, 200, 3
"""Many steps pay up to three bits."""
_REACH = 1.5
"""The first step size times the number of steps: twice the distance that a constant sign covers."""
_CHECKS = 20
"""How often held-out samples judge."""


class SignRound:
    """Tunes the integers and scales of a block by signed gradients. In torch."""

    name = "sign_round"
    stage = "block"
    statistics = frozenset({"hessian"})
    requires = "torch"
    settings: Mapping[str, Any] = {"steps": None, "rate": None, "batch_size": 8}

    def tune(
        self, problem: BlockProblem, *, steps: int | None = None, rate: float | None = None, batch_size: int = 8
    ) -> tuple[dict[str, QTensor], dict[str, Any]]:
        """The weights with which the block's output is nearest to the float block's; never worse than the start.

        Args:
            problem: the weights of a block and how to run it.
            steps: by default 200 if a weight has three bits or fewer, else 50.
            rate: size of the first step, in steps of the grid and as a share of a scale; it falls to zero linearly.
            batch_size: samples per step.

        >>> import torch
        >>> from fewbit.numerics.dtypes import Dtype
        >>> from fewbit.numerics.grid import QParams, QuantizationGrid
        >>> weight = torch.tensor([[3.3, 1.4, 1.2]])
        >>> start = QTensor.encode(weight, QParams(QuantizationGrid(Dtype.int4), (1, 3), torch.ones(1, 1)))
        >>> problem = BlockProblem(  # the sum is 5.9 in float, 5 when rounded
        ...     "block", {"w": weight}, {"w": start}, lambda weights, samples: weights["w"].sum().reshape(1, 1),
        ...     lambda samples: weight.sum().reshape(1, 1), [0])
        >>> round(float(ALGORITHM.tune(problem)[0]["w"].dequantize().sum()), 1)
        5.9
        """
        torch = require("torch", extra="torch", purpose="SignRound")
        _check(problem, steps, rate, batch_size)
        if steps is None:
            narrow = min(start.grid.dtype.bits for start in problem.start.values()) <= _NARROW
            steps = _MANY_STEPS if narrow else _FEW_STEPS
        rate = _REACH / max(steps, 1) if rate is None else rate
        weights = {name: _TunedWeight(weight, problem.start[name]) for name, weight in problem.weights.items()}
        judges = problem.held_out or problem.samples
        first = best = _error(problem, weights, judges, batch_size)
        best_step = 0
        unit = 1 / max(first, 1e-30) ** 0.5  # only signs count: far from the ends of half-precision floats
        every = max(steps // _CHECKS, 1)
        for step, samples in enumerate(_batches(problem.samples, batch_size, steps), 1):
            values = {name: weight.values().requires_grad_() for name, weight in weights.items()}
            with torch.enable_grad():
                difference = problem.run(values, samples).float() - problem.target(samples).float()
                loss = (difference * unit).square().sum()
                gradients = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
            for weight, gradient in zip(weights.values(), gradients):
                if gradient is not None:
                    weight.move(gradient, rate * (1 - (step - 1) / steps))
            if step % every == 0 or step == steps:
                error = _error(problem, weights, judges, batch_size)
                if error < best:
                    best, best_step = error, step
                    for weight in weights.values():
                        weight.remember()
        facts = {"steps": steps, "best_step": best_step, "block_error_before": first, "block_error": best}
        return {name: weight.result() for name, weight in weights.items()}, facts


class _TunedWeight:
    """A quantized weight whose elements are places among the values of their type: place 3.2 is the value at 3.

    An element starts in the cell of its integer, where the float weight lies in it: near misses of rounding change
    first. Zeros of a pruned weight stay.
    """

    def __init__(self, weight: Tensor, start: QTensor) -> None:
        import torch

        from fewbit.numerics.granularity import BlockShape
        from fewbit.numerics.sparsity import is_pruned

        self._start, self._qparams = start, start.qparams
        self._blocks = BlockShape(start.shape, start.block)
        self._levels = _levels(start, weight.device)
        weight = weight.detach().float()
        zero = self._spread(self._qparams.zero_point) if self._qparams.zero_point is not None else 0.0
        elements = start.dequantize() / self._spread(self._qparams.step) + zero
        cell = self._place(elements).round()
        offset = self._place(weight / self._spread(self._qparams.step) + zero) - cell
        # Beyond the border the other way: the farther a weight is from its integer, the nearer to a change it starts.
        offset = torch.where(offset.abs() > 0.5, (1 - offset.abs()).clamp(min=0).copysign(offset), offset)
        self._first = (cell + 0.5 * offset).clamp_(0, len(self._levels) - 1)
        self._now, self._zero = self._first.clone(), zero
        zeros = weight == 0
        self._fixed = zeros if is_pruned(int(zeros.sum()), zeros.numel()) and not start.grid.free_zero else None
        fixed_scales = start.grid.scale_type.is_power
        self._factor = None if fixed_scales else torch.ones_like(self._qparams.scale)
        self._signs, self._factor_signs = _AveragedSign(), _AveragedSign()
        self._best = (self._now, self._factor)

    def values(self) -> Tensor:
        """The quantized weight, float32."""
        values: Tensor = (self._elements(self._now) - self._zero) * self._spread(self._step(self._factor))
        return values

    def move(self, gradient: Tensor, rate: float) -> None:
        """One step against the averaged sign of the gradient."""
        import torch

        gradient = gradient.float().nan_to_num(0.0, 0.0, 0.0)
        step = self._spread(self._step(self._factor))
        moved = self._now - rate * self._signs.update(gradient * step)
        moved = torch.minimum(torch.maximum(moved, self._first - 0.51), self._first + 0.51)  # just over the border
        if self._factor is not None:
            slope = self._blocks.split(gradient * (self._elements(self._now) - self._zero), 0.0)
            slope = slope.sum(tuple(range(1, slope.ndim, 2))) * self._qparams.step
            self._factor = (self._factor - rate * self._factor_signs.update(slope)).clamp(0.5, 1.5)
        self._now = moved if self._fixed is None else torch.where(self._fixed, self._first, moved)

    def remember(self) -> None:
        """The present state is the best so far; states are never changed in place."""
        self._best = (self._now, self._factor)

    def result(self) -> QTensor:
        """The best state."""
        from fewbit.numerics.grid import QParams
        from fewbit.numerics.scales import round_scale

        (now, factor), old = self._best, self._qparams
        scale = old.scale if factor is None else round_scale(old.scale * factor, old.grid.scale_type)
        qparams = QParams(old.grid, old.block, scale, old.zero_point, old.global_scale)
        return QTensor.encode((self._elements(now) - self._zero) * self._spread(qparams.step), qparams)

    def _step(self, factor: Tensor | None) -> Tensor:
        from fewbit.numerics.scales import round_scale

        old = self._qparams
        scale: Tensor = old.scale if factor is None else round_scale(old.scale * factor, old.grid.scale_type)
        return scale if old.global_scale is None else scale * old.global_scale

    def _spread(self, scale: Any) -> Any:
        """Values of blocks for each element."""
        for axis, (count, width, side) in enumerate(zip(self._blocks.counts, self._blocks.block, self._blocks.shape)):
            if count > 1 and width > 1:
                scale = scale.repeat_interleave(width, axis).narrow(axis, 0, side)
        return scale

    def _elements(self, place: Tensor) -> Tensor:
        return self._levels[place.round().clamp(0, len(self._levels) - 1).long()]

    def _place(self, element: Tensor) -> Tensor:
        """Where a value lies among those of the type, between two as a share of their distance."""
        import torch

        above = torch.searchsorted(self._levels, element.contiguous()).clamp_(1, len(self._levels) - 1)
        low, high = self._levels[above - 1], self._levels[above]
        return (above - 1) + (element - low) / (high - low)


class _AveragedSign:
    """Mean of gradients over the root of their mean square, both exponentially weighted (Adam, arXiv 1412.6980)."""

    def __init__(self) -> None:
        self._mean: Any = 0.0
        self._square: Any = 0.0
        self._count = 0

    def update(self, gradient: Tensor) -> Any:
        """About -1 to 1."""
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient.square()
        size = (self._square / (1 - 0.99**self._count)).sqrt().clamp(min=1e-38)
        return self._mean / (1 - 0.9**self._count) / size


def _levels(start: QTensor, device: Any) -> Tensor:
    """Every value of the element type, ascending."""
    import torch

    from fewbit.numerics.dtypes import value_table

    dtype = start.grid.dtype
    if dtype.is_integer:
        return torch.arange(dtype.lowest, dtype.highest + 1, dtype=torch.float32, device=device)
    number: Any = dtype.value
    table = {value for value in value_table(number) if abs(value) <= number.highest}
    return torch.tensor(sorted(table), dtype=torch.float32, device=device)


def _error(
    problem: BlockProblem, weights: Mapping[str, _TunedWeight], samples: Sequence[int], batch_size: int
) -> float:
    """Mean squared output error of the block."""
    import torch

    total, count = 0.0, 0
    with torch.no_grad():
        values = {name: weight.values() for name, weight in weights.items()}
        for start in range(0, len(samples), batch_size):
            batch = samples[start : start + batch_size]
            difference = problem.run(values, batch).float() - problem.target(batch).float()
            total += float(difference.square().sum(dtype=torch.float64))
            count += difference.numel()
    return total / max(count, 1)


def _batches(samples: Sequence[int], size: int, steps: int) -> Iterator[list[int]]:
    """So many batches; every sample once before any comes again, in an order that depends on nothing else."""
    draw, order = np.random.default_rng(0), list[int]()
    for _ in range(steps):
        while len(order) < min(size, len(samples)):
            order += [samples[index] for index in draw.permutation(len(samples))]
        yield order[:size]
        del order[:size]


def _check(problem: BlockProblem, steps: int | None, rate: float | None, batch_size: int) -> None:
    shapes = {name: tuple(weight.shape) for name, weight in problem.weights.items()}
    starts = {name: start.shape for name, start in problem.start.items()}
    if not shapes or shapes != starts or not problem.samples:
        raise UsageError(
            f"quantized weights {starts} for weights {shapes}, {len(problem.samples)} samples", code="block-problem",
            where=problem.name, expected="each weight with its quantized form, at least one sample",
            hint="quantize the block by gptq first",
        )  # fmt: skip
    if (steps is not None and steps < 0) or (rate is not None and not 0 < rate < float("inf")) or batch_size < 1:
        raise UsageError(
            f"steps = {steps!r}, rate = {rate!r}, batch_size = {batch_size!r} for sign_round",
            code="sign-round-settings", where="steps, rate, batch_size",
            expected="steps from 0 up, a rate above 0, at least one sample per batch", hint="steps=200, batch_size=8",
        )  # fmt: skip
    if wide := [name for name, start in problem.start.items() if start.grid.dtype.bits > 8]:
        raise UsageError(
            f"sign_round of {wide[0]}, which has {problem.start[wide[0]].grid.dtype.bits} bits", code="sign-round-bits",
            where=problem.name, expected="types of 8 bits or fewer", hint="leave such layers to gptq",
        )  # fmt: skip


ALGORITHM = SignRound()
