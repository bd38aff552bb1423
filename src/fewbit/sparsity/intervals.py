# SPDX-License-Identifier: Apache-2.0
"""How sure a task's numbers are: what each sample adds to them is kept, and 95 % intervals follow from their spread."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewbit.engine.confidence import Estimate, ratio, share
from fewbit.tuning.tasks._base import Metric

_SHARES = {
    "accuracy": ("right", "count"),
    "accuracy_top_5": ("right_of_five", "count"),
    "token_accuracy": ("right", "count"),
    "exact_match": ("exact", "count"),
}
"""Numbers that say of how many positions something holds, with the sums they are made of."""

_DRAWS, _AT_ONCE = 400, 25
_SEED = 0


def estimates(kind: type[Metric], parts: Sequence[Any]) -> dict[str, Estimate]:
    """Every number of a metric with its interval.

    Shares have Wilson's interval, perplexity that of its logarithm; other numbers are computed anew for samples that
    are drawn with replacement, the same draws each time.

    Args:
        kind: of metric.
        parts: what `Metric.parts` gave for each sample alone.

    Returns:
        By name; those that nothing tells are left out.
    """
    whole = kind()
    whole.merge(parts)
    numbers = whole.result()
    sums = _columns(parts)
    if "count" in sums and not sums["count"].any():  # no label says what is right: a share of nothing is no number
        return {}
    found = {name: _by_formula(name, sums) for name in numbers}
    rest = [name for name, estimate in found.items() if estimate is None]
    drawn = _drawn(kind, parts, sums, rest) if rest and len(parts) > 1 else {}
    made = {name: found[name] or _around(value, drawn.get(name)) for name, value in numbers.items()}
    return {name: estimate for name, estimate in made.items() if not isnan(estimate.value)}


def _around(value: float, ends: tuple[float, float] | None) -> Estimate:
    """A number with the ends of its interval; draws, in which samples repeat, may all lie to one side of it."""
    return Estimate(value, None, None) if ends is None else Estimate(value, min(ends[0], value), max(ends[1], value))


def _by_formula(name: str, sums: dict[str, NDArray[Any]]) -> Estimate | None:
    over, under = _SHARES.get(name, ("", ""))
    if over in sums and under in sums:
        return share(sums[over], sums[under])
    if name == "perplexity" and {"loss", "count"} <= sums.keys():
        mean = ratio(sums["loss"], sums["count"])
        ends = (mean.value, mean.low or 0.0, mean.high or 0.0)
        return mean.exponential() if max(ends) < 700 else None  # beyond, no float has room
    return None


def _drawn(
    kind: type[Metric], parts: Sequence[Any], sums: dict[str, NDArray[Any]], names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """The middle 95 % of what draws of samples give."""
    chooser = np.random.default_rng(_SEED)
    found = []
    for _ in range(_DRAWS // _AT_ONCE):
        chosen = (chooser.integers(0, len(parts), len(parts)) for _ in range(_AT_ONCE))
        times = np.stack([np.bincount(each, minlength=len(parts)) for each in chosen])
        found.append(_numbers(kind, parts, sums, times))
    values = {name: np.concatenate([each[name] for each in found]) for name in names if name in found[0]}
    finite = {name: each[np.isfinite(each)] for name, each in values.items()}
    ends = {name: np.quantile(each, [0.025, 0.975]) for name, each in finite.items() if len(each)}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _numbers(
    kind: type[Metric], parts: Sequence[Any], sums: dict[str, NDArray[Any]], times: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """The numbers of some draws: all at once where the metric can, else each from its sums or parts."""
    together = kind.drawn(parts, times)
    if together is not None:
        return together
    results = []
    for row in times:
        metric = kind()
        if sums and sums.keys() == _keys(parts[0]):
            metric.merge([{name: _like(column, row, parts[0][name]) for name, column in sums.items()}])
        else:
            metric.merge([part for part, often in zip(parts, row) for _ in range(often)])
        results.append(metric.result())
    return {name: np.array([each[name] for each in results]) for name in results[0]}


def _columns(parts: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """The sums of all samples, one column a sum; what is more than a sum is left out."""
    names = _keys(parts[0])
    if any(_keys(part) != names for part in parts):
        return {}
    summed = [name for name in names if _is_sum(parts[0][name])]
    alike = [name for name in summed if len({np.shape(part[name]) for part in parts}) == 1]
    return {name: np.stack([np.asarray(part[name], np.float64) for part in parts]) for name in alike}


def _keys(part: Any) -> set[str]:
    return set(part) if isinstance(part, dict) else set()


def _is_sum(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())


def _like(column: NDArray[Any], times: NDArray[Any], value: Any) -> Any:
    total = np.tensordot(times.astype(np.float64), column, 1)
    return value.new_tensor(total) if isinstance(value, Tensor) else float(total)
