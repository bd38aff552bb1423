# SPDX-License-Identifier: Apache-2.0
"""HQQ (Badri and Shaji, "Half-Quadratic Quantization", 2023): zero points and scales without data, robust to outliers.

Errors count as |w - q|^p with p below one, so that few large ones are accepted and the many become small. With the
accepted part e of each error as a variable, every step has a closed form:

    e = shrink(w - q)           minimizes |e|^p + β/2 (w - q - e)²
    z, s minimize Σ (w - e - q)²  for fixed integers: a mean for z, a quotient for s

in turn, with growing β; the integers are always those nearest to w. The paper moves z alone; here a zero point that
must be an integer is rounded, and s moves too, which is all there is on symmetric grids. Errors are in steps of plain
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from fewbit.algorithms._base import LayerProblem
from fewbit.errors import UsageError
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import Array, like, namespace, on_cpu, quiet
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.rounding import round_to_integer
from fewbit.numerics.scales import round_scale
from fewbit.numerics.sparsity import is_pruned

_BETA, _GROWTH = 10.0, 1.01
_TINY = 1e-30
_ELEMENTS = 1 << 17
"""Of a piece, of which about ten copies are in use."""


class Hqq:
    """Fits scales and zero points to Σ |w - q|^p; needs no data."""

    name = "hqq"
    stage = "weight"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {"p": 0.7, "iterations": 20}

    def quantize(self, problem: LayerProblem, *, p: float = 0.7, iterations: int = 20) -> QTensor:
        """The rounded weight; in no block worse than plain rounding, by |w - q|^p and by squared error.

        Args:
            problem: a weight; the second moment of its inputs, if known, weights the squared error.
            p: how little large errors count, between 0 and 1.
            iterations: of the alternation.

        >>> import numpy as np
        >>> from fewbit.numerics.dtypes import Dtype
        >>> weight = np.array([[0.1, 0.12, 0.11, 0.22, 0.21, 0.9]], np.float32)
        >>> grid = QuantizationGrid(Dtype.uint2, symmetric=False, float_zero=True)
        >>> error = abs(ALGORITHM.quantize(LayerProblem("fc", weight, grid)).dequantize() - weight)
        >>> round(float((error**0.7).sum()), 2)  # plain rounding: 0.54
        0.52
        """
        if not 0 < p < 1 or iterations < 0:
            raise UsageError(
                f"p = {p!r}, iterations = {iterations!r} for hqq", code="hqq-settings", where="p, iterations",
                expected="p between 0 and 1, iterations from 0 up", hint="p=0.7, iterations=20",
            )  # fmt: skip
        weight, grid = problem.weight, problem.grid
        shape = tuple(weight.shape)
        blocks = BlockShape(shape, grid.weight_block(shape))
        # A pruned weight keeps its zeros: its zero points are integers, as values of the grid.
        pruned = is_pruned(int((weight == 0).sum()), prod(shape))
        start = _start(weight, grid, blocks, problem.shared.get("global_scale"), integer_zero=pruned)
        if grid.dtype.is_cast or grid.scale_type.is_power:
            return QTensor.encode(weight, start)
        importance = None if problem.moments is None else problem.moments.second_moment
        columns = None if importance is None else namespace(weight).ones_like(weight) * like(importance, weight)
        rows, h = blocks.rows(weight), None if columns is None else blocks.rows(columns)
        flat, size = start.reshape((1, rows.shape[1]), (len(rows), 1)), _ELEMENTS if on_cpu(weight) else prod(shape)
        step = max(size // rows.shape[1], 1)
        parts = []
        with quiet(weight):
            for first in range(0, len(rows), step):
                piece = slice(first, first + step)
                fit = _Fit(rows[piece], flat.part(piece), p, free_zero=grid.free_zero and not pruned)
                for iteration in range(iterations):
                    fit.improve(_BETA * _GROWTH**iteration)
                parts.append(fit.result(None if h is None else h[piece]))
        xp = namespace(weight)
        scale = xp.concatenate([part.scale for part in parts])
        zero = None if start.zero_point is None else xp.concatenate([part.zero_point for part in parts])
        qparams = QParams(grid, flat.block, scale, zero, start.global_scale)
        return QTensor.encode(weight, qparams.reshape(blocks.block, blocks.counts))


def _start(
    weight: Array, grid: QuantizationGrid, blocks: BlockShape, global_scale: Array | None, *, integer_zero: bool
) -> QParams:
    """Plain rounding."""
    low, high = blocks.extremes(weight)
    plain = grid.replace(float_zero=False) if integer_zero else grid
    start = qparams_from_min_max(low, high, plain, blocks.block, global_scale=global_scale)
    return QParams(grid, start.block, start.scale, start.zero_point, start.global_scale)


class _Fit:
    """Blocks `[B, E]` with the best scales so far, `[B, 1]`."""

    def __init__(self, weight: Array, start: QParams, p: float, *, free_zero: bool) -> None:
        self._weight, self._p, self._free_zero, self._xp = weight, p, free_zero, namespace(weight)
        self._unit = self._xp.abs(start.step)
        self._start = self._now = self._best = start
        self._round()
        self._least = self._norm()

    def improve(self, beta: float) -> None:
        """Accept large errors, fit the rest, round again."""
        xp = self._xp
        size = xp.abs(self._error)
        slope = xp.clip(size, _TINY, None) ** (self._p - 1)
        accepted = xp.copysign(xp.clip(size - slope / beta, 0, None), self._error) * self._unit
        self._refit(self._weight - accepted)
        self._round()
        norm = self._norm()
        better = norm < self._least
        self._least = xp.where(better, norm, self._least)
        self._best = self._choose(better, self._now, self._best)

    def result(self, importance: Array | None) -> QParams:
        """The best scales, or those of plain rounding where its squared error is less."""
        errors = []
        for qparams in (self._best, self._start):
            difference = (fake_quantize(self._weight, qparams) - self._weight) / self._unit
            square = difference * difference
            errors.append((square if importance is None else square * importance).sum(1)[:, None])
        return self._choose(errors[0] <= errors[1], self._best, self._start)

    def _round(self) -> None:
        self._rounded = fake_quantize(self._weight, self._now)
        self._error = (self._weight - self._rounded) / self._unit

    def _norm(self) -> Array:
        return (self._xp.abs(self._error) ** self._p).sum(1)[:, None]

    def _refit(self, target: Array) -> None:
        """Zero point, then scale, with which the present integers come nearest to a target."""
        xp, now, grid = self._xp, self._now, self._now.grid
        zero, levels = now.zero_point, self._rounded / now.step  # integers less the zero point
        if grid.asymmetric and zero is not None:
            moved = (levels - target / now.step).mean(1)[:, None]
            if not self._free_zero:
                rounded = xp.clip(round_to_integer(zero + moved), grid.dtype.lowest, grid.dtype.highest)
                moved = rounded - zero
            zero, levels = zero + moved, levels - moved
        energy, product = (levels * levels).sum(1)[:, None], (levels * target).sum(1)[:, None]
        step = xp.where(energy > _TINY, product / xp.clip(energy, _TINY, None), now.step)
        usable = xp.isfinite(step) & (step * now.step > 0)
        scale = step if now.global_scale is None else step / now.global_scale
        scale = xp.where(usable, round_scale(scale, grid.scale_type), now.scale)
        self._now = QParams(grid, now.block, scale, zero, now.global_scale)

    def _choose(self, first: Array, a: QParams, b: QParams) -> QParams:
        xp = self._xp
        zero = None if a.zero_point is None else xp.where(first, a.zero_point, b.zero_point)
        return QParams(a.grid, a.block, xp.where(first, a.scale, b.scale), zero, a.global_scale)


ALGORITHM = Hqq()
