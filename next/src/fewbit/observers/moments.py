# SPDX-License-Identifier: Apache-2.0
"""Mean and mean square."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.numerics.ops import Array, cast, like
from fewbit.observers._base import Observer, State


@dataclass(kw_only=True, eq=False)
class MomentsObserver(Observer):
    """First and second moment of each row, summed in float64; it chooses no range.

    >>> import numpy as np
    >>> observer = MomentsObserver()
    >>> observer.update(np.array([[3.0, 4.0]], np.float32))
    >>> observer.mean.tolist(), observer.mean_square.tolist()
    ([3.5], [12.5])
    """

    name = "moments"
    state_names = ("sum", "sum_of_squares", "count")
    reductions = frozenset({"sum", "sum_of_squares"})

    def measure(self, rows: Array) -> dict[str, Array]:
        wide = cast(rows, "float64")  # the square of a float32 is exact in it
        return self.measure_reduced({"sum": wide.sum(1), "sum_of_squares": (wide * wide).sum(1)}, rows.shape[1])

    def measure_reduced(self, reduced: Mapping[str, Array], count: int) -> dict[str, Array]:
        sums = {name: cast(reduced[name], "float64") for name in ("sum", "sum_of_squares")}
        return {**sums, "count": like(count, sums["sum"], "int64")}

    def combine(self, first: State, second: State) -> dict[str, Array]:
        return {name: first[name] + second[name] for name in self.state_names}

    @property
    def mean(self) -> Array:
        """E[x] of each row, float32 `[R]`."""
        return cast(self.observed["sum"] / int(self.observed["count"]), "float32")

    @property
    def mean_square(self) -> Array:
        """E[x²] of each row, float32 `[R]`."""
        return cast(self.observed["sum_of_squares"] / int(self.observed["count"]), "float32")


OBSERVER = MomentsObserver
