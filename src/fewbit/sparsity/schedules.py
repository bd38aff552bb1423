# SPDX-License-Identifier: Apache-2.0
"""How sparsity grows while a model learns: a function of the step alone, so that a resumed run needs no state for it.

With s_i at the start, s_f at the end and t from 0 to 1 between them, a schedule is

- `cubic`: s_f + (s_i - s_f)(1 - t)³, much at first and ever less (Zhu and Gupta, arXiv 1710.01878);
- `linear`: the same number of weights each time;
- `exponential`: the same share of the weights that are left each time, 1 - (1 - s_i)^(1-t) (1 - s_f)^t;
- `constant`: s_f from the start on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fewbit.errors import UsageError, nearest

SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "cubic": lambda first, last, t: last + (first - last) * (1 - t) ** 3,
    "linear": lambda first, last, t: first + (last - first) * t,
    "exponential": lambda first, last, t: 1 - (1 - first) ** (1 - t) * (1 - last) ** t,
    "constant": lambda first, last, t: last,
}
"""The sparsity when a share `t` of the way is gone, from the first sparsity to the last."""


@dataclass(frozen=True)
class Schedule:
    """When masks change, and to which sparsity.

    Args:
        final: the sparsity at the end.
        initial: the sparsity at the first change.
        shape: one of `SHAPES`.
        start: the share of the run after which masks change for the first time.
        end: the share of the run after which they change for the last time; what is left heals.
        updates: how many times masks change, evenly spread; with one, to the last sparsity at the start.

    Raises:
        UsageError: everything about it that cannot be.

    >>> Schedule(0.8, shape="linear", end=0.5, updates=5).changes(100)
    {0: 0.0, 12: 0.2, 25: 0.4, 38: 0.6000000000000001, 50: 0.8}
    """

    final: float
    initial: float = 0.0
    shape: str = "cubic"
    start: float = 0.0
    end: float = 0.7
    updates: int = 20

    def __post_init__(self) -> None:
        faults = []
        if not 0 <= self.initial <= self.final < 1:
            faults.append(f"sparsity from {self.initial:g} to {self.final:g}: expected 0 <= initial <= final < 1")
        if self.shape not in SHAPES:
            faults.append(f"schedule {self.shape!r}: {nearest(str(self.shape), SHAPES)}")
        if not 0 <= self.start <= self.end <= 1:
            faults.append(f"from {self.start:g} to {self.end:g} of the run: expected 0 <= start <= end <= 1")
        if self.updates < 1:
            faults.append(f"updates={self.updates}: expected a whole number from 1 up")
        if faults:
            raise UsageError("; ".join(faults), where="train", expected="a schedule that goes up, within the run")

    def at(self, t: float) -> float:
        """The sparsity when a share of the way from `start` to `end` is gone; never outside of its two ends.

        >>> Schedule(0.8).at(0.5), Schedule(0.5, shape="linear").at(0.5)
        (0.7000000000000001, 0.25)
        """
        if self.shape == "constant" or t >= 1:
            return self.final
        if t <= 0:
            return self.initial
        return min(self.final, max(self.initial, SHAPES[self.shape](self.initial, self.final, t)))

    def changes(self, total: int) -> dict[int, float]:
        """The sparsity after each number of steps after which masks change, in a run of so many steps.

        Where there are fewer steps than changes, those that fall on one step are one.
        """
        first, last = round(self.start * total), round(self.end * total)
        if self.updates == 1 or self.shape == "constant":
            return {first: self.final}
        gaps, reached = self.updates - 1, 0.0
        found = {}
        for number in range(gaps + 1):
            reached = max(reached, self.at(number / gaps))  # rounding alone could take it back by a hair
            found[first + round(number * (last - first) / gaps)] = reached
        return found
