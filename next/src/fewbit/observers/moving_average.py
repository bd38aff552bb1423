# SPDX-License-Identifier: Apache-2.0
"""Averages of the extremes of batches, later batches weighing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array, amax, amin, cast, like
from fewbit.observers._base import RangeObserver, State


@dataclass(kw_only=True, eq=False)
class MovingAverageObserver(RangeObserver):
    """Exponentially weighted mean of the extremes of each batch.

    Of n batches, number t weighs (1 - c)^(n - t), so the first has no special part; order and size of batches matter.

    Args:
        averaging_constant: c, the weight of the newest batch against all before it.

    >>> import numpy as np
    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = MovingAverageObserver(averaging_constant=0.5)
    >>> for high in (1.0, 4.0):
    ...     observer.update(np.array([[0.0, high]], np.float32))
    >>> [end.tolist() for end in observer.range(QuantizationGrid(Dtype.int8))]
    [[0.0], [3.0]]
    """

    name = "moving_average"
    state_names = ("low", "high", "batches")
    reductions = frozenset({"min", "max"})

    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("averaging_constant", 0 < self.averaging_constant <= 1, "a number above 0 and at most 1")

    def measure(self, rows: Array) -> dict[str, Array]:
        return self.measure_reduced({"min": amin(rows, 1), "max": amax(rows, 1)}, rows.shape[1])

    def measure_reduced(self, reduced: Mapping[str, Array], count: int) -> dict[str, Array]:
        # Weighted sums, not means: sums can be merged. They are divided by the sum of the weights at the end.
        low, high = (cast(cast(reduced[end], "float32"), "float64") * self.averaging_constant for end in ("min", "max"))
        return {"low": low, "high": high, "batches": like(1, low, "int64")}

    def combine(self, first: State, second: State) -> dict[str, Array]:
        fading = self._fading(second)
        sums = {end: first[end] * fading + second[end] for end in ("low", "high")}
        return {**sums, "batches": first["batches"] + second["batches"]}

    def range(self, grid: QuantizationGrid, global_scale: Array | None = None) -> tuple[Array, Array]:
        weights = 1 - self._fading(self.observed)
        return cast(self.observed["low"] / weights, "float32"), cast(self.observed["high"] / weights, "float32")

    def _fading(self, state: State) -> float:
        """What all earlier batches are multiplied by."""
        return float((1 - self.averaging_constant) ** int(state["batches"]))


OBSERVER = MovingAverageObserver
