# SPDX-License-Identifier: Apache-2.0
"""What quantization of both sides of an activation is expected to cost, for any scaling of its channels.

With weights W, inputs x and steps Δ, the squared output error of a consumer is about

    Σ E[x²] (Q(W) - W)²  +  Σ (Δ² / 12 + producer error) W²,

the first from really rounding the weights, the second from a rounded activation, whose error is at most E[x²] (what is
below the step becomes zero). A smoothing s multiplies the columns of W and divides x. Element types that are floats
lose a share of each value, which no factor changes; they are left out. Without data inputs of producers count as 1, and
E[x²] is the energy of the producer's row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fewbit.algorithms._base import ScaledLayer, Scaling, ScalingProblem
from fewbit.algorithms._scale_search import search_scales
from fewbit.errors import DataError, UsageError
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array, amax, cast, is_numpy, like, namespace
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.scales import ScaleType

_LIMIT = 1e4
"""Largest smoothing factor and its inverse: half-precision weights stay normal numbers."""


class ScalingError:
    """The expected relative output error of the consumers.

    Args:
        problem: the layers with their statistics.
        search: round with searched scales, weighted by the inputs; otherwise with the extremes.
        rows: look at so many rows of each consumer at most, where rows have their own scales.
    """

    def __init__(self, problem: ScalingProblem, *, search: bool, rows: int | None = None) -> None:
        self.problem, self._search = problem, search
        has_data = any(layer.moments is not None for layer in problem.consumers)
        self._producers = [
            _Side(layer) for layer in problem.producers if _depends_on_rows(layer) and (layer.moments or not has_data)
        ]
        estimate = None if has_data else self._row_energy()
        self.consumers = [_Side(layer, estimate, rows=rows) for layer in problem.consumers]

    def _row_energy(self) -> np.ndarray:
        """Σ W² of the rows that produce the channels of each factor; 1 if there are none."""
        energy = np.zeros(self.problem.size)
        for layer in self.problem.producers:
            if layer.weight.ndim > 1:
                side = _Side(layer)
                energy += side.by_factor((side.weight * side.weight).sum(1), self.problem.size, "mean")
        return np.where(energy > 0, energy, 1.0)

    def __call__(self, smoothing: np.ndarray) -> float:
        """The error, as a mean over consumers; `smoothing` [size] multiplies columns and divides activations."""
        noise = self._producer_noise(smoothing)
        total, count = 0.0, 0
        for side in self.consumers:
            signal = float((side.square * side.energy).sum())
            if signal > 0:
                by = side.spread(smoothing)
                count += 1
                total += self._weight_error(side, by) / float((side.row_square() * side.weight * side.weight).sum())
                inputs = side.activation_noise(by) + side.gathered(noise)
                total += float((inputs * side.energy * by * by).sum()) / signal
        return total / max(count, 1)

    def _weight_error(self, side: _Side, by: Array) -> float:
        if side.layer.grid is None or side.layer.grid.dtype.is_cast:
            return 0.0
        columns = side.columns(by)
        scaled = side.weight * columns
        square = side.row_square() / (columns * columns)
        difference = (
            _rounded(scaled, side.layer.grid, square[0] if self._search and len(square) == 1 else None) - scaled
        )
        return float((square * difference * difference).sum())

    def _producer_noise(self, smoothing: np.ndarray) -> np.ndarray:
        """Mean squared error of each factor's channels from the weights that produce them, before smoothing."""
        noise = np.zeros(self.problem.size)
        for side in self._producers:
            assert side.layer.grid is not None
            by = side.spread(smoothing)[:, None]  # [out, 1]
            scaled = side.weight / by
            difference = (_rounded(scaled, side.layer.grid, None) - scaled) * by
            noise += side.by_factor((side.row_square() * difference * difference).sum(1), self.problem.size, "mean")
        return noise


class _Side:
    """A layer as a matrix `[out, columns]`, its kernel flattened.

    Attributes:
        square: E[x²] per input channel.
        energy: Σ W² per input channel.
    """

    def __init__(self, layer: ScaledLayer, estimate: np.ndarray | None = None, *, rows: int | None = None) -> None:
        self.layer, weight = layer, layer.weight
        self.kernel = int(np.prod(weight.shape[2:], dtype=np.int64))
        self.weight = cast(weight, "float32").reshape((weight.shape[0], -1))
        self.index = np.asarray(layer.channels, np.int64)
        square = None if layer.moments is None else layer.moments.second_moment
        if square is None:
            square = (
                np.ones(weight.shape[1] * layer.groups) if estimate is None else np.append(estimate, 1.0)[self.index]
            )
        self.square = like(square, self.weight)
        self.energy = self._by_input(self.weight * self.weight, "sum")
        self.largest = self._by_input(namespace(self.weight).abs(self.weight), "max")
        own_scales = layer.grid is None or layer.grid.weight_block(tuple(self.weight.shape))[0] == 1
        if rows is not None and layer.groups == 1 and own_scales:
            self.weight = self.weight[:: max(len(self.weight) // rows, 1)]

    def _by_input(self, matrix: Array, how: str) -> Array:
        """Per input channel, over outputs and kernel: [features]."""
        groups = self.layer.groups
        parts = matrix.reshape((groups, matrix.shape[0] // groups, -1, self.kernel))
        if how == "sum":
            return parts.sum((1, 3)).reshape(-1)
        return amax(parts, (1, 3)).reshape(-1)

    def spread(self, smoothing: np.ndarray) -> Array:
        """Factors per channel of this side; 1 where it has none."""
        values = np.append(smoothing, 1.0)[self.index]
        return like(values, self.weight)

    def gathered(self, noise: np.ndarray) -> Array:
        """Noise per channel of this side; 0 where it has none."""
        return like(np.append(noise, 0.0)[self.index], self.weight)

    def columns(self, by_input: Array) -> Array:
        """Values of input channels in the layout of the matrix: [1 or out, columns]."""
        groups, xp = self.layer.groups, namespace(by_input)
        parts = by_input.reshape((groups, -1, 1)) * xp.ones((1, 1, self.kernel), **_place(by_input))
        parts = parts.reshape((groups, -1))
        if groups == 1:
            return parts
        repeats = self.weight.shape[0] // groups
        return parts.repeat(repeats, 0) if is_numpy(parts) else parts.repeat_interleave(repeats, 0)

    def row_square(self) -> Array:
        """E[x²] in the layout of the matrix."""
        return self.columns(self.square)

    def activation_noise(self, by: Array) -> Array:
        """Mean squared rounding error of each channel of the activation, before it is multiplied by the smoothing."""
        grid, moments = self.layer.activation_grid, self.layer.moments
        if grid is None or not grid.dtype.is_integer or moments is None or moments.absmax is None:
            return self.square * 0
        xp = namespace(self.square)
        largest, square = like(moments.absmax, self.square) / by, self.square / (by * by)
        steps = 2 * _shared_maximum(largest, grid) / (grid.dtype.highest - grid.dtype.lowest)
        return xp.minimum(steps * steps / 12, square)

    def by_factor(self, values: Array, size: int, how: str) -> np.ndarray:
        """Values of the channels of this side, joined by factor: the largest or the mean, 0 without channels."""
        host = np.asarray(values if is_numpy(values) else values.detach().cpu(), np.float64)
        result, present = np.zeros(size), self.index >= 0
        if how == "max":
            np.maximum.at(result, self.index[present], host[present])
            return result
        np.add.at(result, self.index[present], host[present])
        return result / np.maximum(np.bincount(self.index[present], minlength=size), 1)


def factor_ranges(error: ScalingError) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Largest magnitudes per factor: of activations, of the rows of producers, of the columns of consumers."""
    size = error.problem.size
    activations, producers, consumers = np.zeros(size), np.zeros(size), np.zeros(size)
    for side in error.consumers:
        consumers = np.maximum(consumers, side.by_factor(side.largest, size, "max"))
        if side.layer.moments is not None and side.layer.moments.absmax is not None:
            activations = np.maximum(activations, side.by_factor(side.layer.moments.absmax, size, "max"))
    for layer in error.problem.producers:
        if layer.weight.ndim > 1:
            side = _Side(layer)
            rows = amax(namespace(side.weight).abs(side.weight), 1)
            producers = np.maximum(producers, side.by_factor(rows, size, "max"))
    return activations, producers, consumers


def range_smoothing(
    first: np.ndarray, consumers: np.ndarray, activations: np.ndarray, alpha: float, strength: float = 1.0
) -> np.ndarray | None:
    """first^alpha / consumers^(1 - alpha) to a power; 1 for channels without a range, `None` if there is no other.

    A common factor is chosen so that the activation keeps its largest value, which channels without a factor share.
    """
    live = (first > 0) & (consumers > 0)
    if not live.any():
        return None
    logs = np.zeros(len(first))
    logs[live] = strength * (alpha * np.log(first[live]) - (1 - alpha) * np.log(consumers[live]))
    if (activations[live] > 0).all():
        sizes = np.log(activations[live])
        logs[live] += (sizes - logs[live]).max() - sizes.max()
    else:
        logs[live] -= logs[live].mean()
    return limited(logs)


def limited(logs: np.ndarray) -> np.ndarray:
    """Smoothing factors from their logarithms."""
    return np.asarray(np.exp(np.clip(logs, -np.log(_LIMIT), np.log(_LIMIT))))


def best_scaling(
    error: ScalingError, candidates: Iterable[tuple[dict[str, Any], np.ndarray | None]], margin: float
) -> Scaling:
    """The candidate of least expected error, if it lowers the error by more than a margin.

    Args:
        error: of a smoothing.
        candidates: facts and smoothing factors.
        margin: share by which the error must fall; extremes of channels are those of few samples.
    """
    if not 0 <= margin < 1:
        raise UsageError(
            f"a margin of {margin!r}", code="scaling-margin", where="margin", expected="a number from 0 up and below 1",
            hint="margin=0.1",
        )  # fmt: skip
    check_finite(error.problem)
    unscaled = error(np.ones(error.problem.size))
    judged = [(error(smoothing), facts, smoothing) for facts, smoothing in candidates if smoothing is not None]
    if not judged:
        return Scaling(None, unscaled, unscaled, {"reason": "no channel has a range on both sides"})
    least, facts, smoothing = min(judged, key=lambda item: item[0])
    if not least < unscaled * (1 - margin):
        return Scaling(None, unscaled, unscaled, {"reason": f"the error would not fall by {margin:.0%}"})
    return Scaling(1 / smoothing, least, unscaled, facts)


def check_finite(problem: ScalingProblem) -> None:
    """All weights and statistics are finite and have as many channels as `channels` says.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes do not fit.
    """
    sides = [("consumer", layer) for layer in problem.consumers] + [("producer", layer) for layer in problem.producers]
    for number, (role, layer) in enumerate(sides):
        moments, where = layer.moments, f"{problem.name}, {role} {number}"
        width = layer.weight.shape[1] * layer.groups if role == "consumer" else layer.weight.shape[0]
        index = np.asarray(layer.channels, np.int64)
        if len(index) != width or (len(index) and not -1 <= index.min() <= index.max() < problem.size):
            raise UsageError(
                f"{len(index)} channels of {problem.size} factors for a weight of shape {list(layer.weight.shape)}",
                code="scaling-channels", where=where, expected=f"{width} indices from -1 to {problem.size - 1}",
                hint="channels as `graph.scaling` gives them",
            )  # fmt: skip
        arrays = [layer.weight, *([moments.second_moment, moments.absmax] if moments is not None else [])]
        for array in arrays:
            if array is not None and not bool(namespace(array).isfinite(array).all()):
                raise DataError(
                    "a weight or statistic is not finite", code="scaling-not-finite", where=where,
                    expected="finite numbers", hint="leave the layer out with {ignore}",
                )  # fmt: skip


def _rounded(matrix: Array, grid: QuantizationGrid, importance: Array | None) -> Array:
    if importance is not None:
        return fake_quantize(matrix, search_scales(matrix, grid, importance))
    block = grid.weight_block(tuple(matrix.shape))
    low, high = BlockShape(tuple(matrix.shape), block).extremes(matrix)
    return fake_quantize(matrix, qparams_from_min_max(low, high, grid, block))


def _depends_on_rows(layer: ScaledLayer) -> bool:
    """Whether dividing the rows of a producer changes their relative error: not if they have their own float scales."""
    if layer.grid is None or layer.grid.dtype.is_cast or layer.weight.ndim < 2:
        return False
    plain = layer.grid.scale_type in (ScaleType.float32, ScaleType.float16, ScaleType.bfloat16)
    return layer.grid.weight_block(tuple(layer.weight.shape))[0] > 1 or not plain


def _shared_maximum(largest: Array, grid: QuantizationGrid) -> Array:
    """Per channel the largest value among the channels that share its scale."""
    if grid.granularity is QSchemeType.per_channel:
        return largest
    width = len(largest)
    if grid.granularity is QSchemeType.per_group and grid.group_size > 0:
        width = min(grid.group_size, width)
    elif grid.granularity is QSchemeType.per_block:
        width = min(grid.block_size[1], width)
    blocks = BlockShape((len(largest),), (width,))
    _, high = blocks.extremes(largest)
    return high[np.arange(len(largest)) // width] if is_numpy(high) else high.repeat_interleave(width)[: len(largest)]


def _place(x: Array) -> dict[str, Any]:
    """dtype and device of an array, for constructors."""
    return {"dtype": x.dtype} if is_numpy(x) else {"dtype": x.dtype, "device": x.device}
