# SPDX-License-Identifier: Apache-2.0
"""Some of the samples: so many, or a share, each class in proportion if asked; or drawn by weights, repeats allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_count, is_share, is_text
from fewbit.data.source import Source
from fewbit.data.steps._base import Context
from fewbit.data.steps._held import hold
from fewbit.data.views import Picked
from fewbit.errors import DataError, UsageError

BALANCED = "balanced"

Indices = NDArray[np.int64]


def _is_weights(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_is_weight(weight) for weight in value.values()) and sum(value.values()) > 0
    return is_text(value)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


AFTER: tuple[str, ...] = ()
NEEDS: tuple[str, ...] = ()
KEYS = (
    Key(
        "sampling_count",
        None,
        "a whole number from 1 up, or none",
        lambda v: v is None or is_count(v),
        "how many samples",
    ),
    Key(
        "sampling_counts",
        None,
        "{split: a whole number from 1 up}, or none",
        lambda v: v is None or (isinstance(v, Mapping) and bool(v) and all(map(is_count, v.values()))),
        "how many samples of each split, instead of one number for all of sampling_splits",
    ),
    Key(
        "sampling_share",
        None,
        "a number from 0 to 1, or none",
        lambda v: v is None or is_share(v),
        "what share of them",
    ),
    Key(
        "sampling_by", None, "the name of a column, or none", is_text, "each of its values keeps its share: stratified"
    ),
    Key(
        "sampling_weights",
        None,
        "'balanced', {value of sampling_by: weight}, or the name of a column of weights",
        _is_weights,
        "draw by these, with replacement",
    ),
    Key(
        "sampling_splits",
        ("train",),
        "a list of splits",
        lambda value: isinstance(value, list | tuple) and all(isinstance(name, str) for name in value),
        "the splits it is done to",
    ),
)


def faults(options: Mapping[str, Any]) -> list[str]:
    """Keys that contradict one another, one line each."""
    count, share, by = (options.get(f"sampling_{name}") for name in ("count", "share", "by"))
    weights, counts = options.get("sampling_weights"), options.get("sampling_counts")
    found = []
    if count is not None and share is not None:
        found.append(f"sampling_count={count} and sampling_share={share}: expected one of them")
    if counts is not None and (count is not None or share is not None):
        found.append(f"sampling_counts={dict(counts)} and another number: expected one of them")
    if count is None and share is None and weights is None and counts is None:
        found.append("sampling: expected sampling_count, sampling_share or sampling_weights")
    if (weights == BALANCED or isinstance(weights, Mapping)) and by is None:
        found.append(f"sampling_weights={weights!r}: expected sampling_by, the column the weights are for")
    return found


def apply(source: Source, context: Context) -> Source:
    """Some of the samples, in the order of the source.

    Raises:
        UsageError: keys that contradict one another.
        DataError: a column that is not there, a value without a weight.
    """
    options = context.options
    wrong = faults(options)
    if wrong:
        raise UsageError("; ".join(wrong), where="sampling")
    counts = options.get("sampling_counts")
    if context.split not in (options.get("sampling_splits", ("train",)) if counts is None else counts):
        return source
    source = hold(source, context.record)
    there = len(source)
    share, by, weights = (options.get(f"sampling_{name}") for name in ("share", "by", "weights"))
    count = options.get("sampling_count") if counts is None else counts[context.split]
    wanted = count or (there if share is None else round(share * there))
    rng = np.random.Generator(np.random.PCG64(context.seed))
    if weights is not None:
        picked = drawn(_weights(source, by, weights), wanted, rng)
    else:
        picked = stratified(_column(source, by) if by else np.zeros(there), min(wanted, there), rng)
        if wanted > there:
            context.record.note("fewer-samples", f"sampling: {wanted:,} samples are asked for, all {there:,} are taken")
    how = "by weights, with replacement" if weights is not None else f"each {by} in proportion" if by else "at random"
    reason = f"sampling: {len(picked):,} of {there:,} samples, {how}"
    context.record.note("sampled", reason, count=len(picked), of=there, different=len(np.unique(picked)))
    return Picked(source, picked)


def stratified(values: NDArray[Any], count: int, rng: np.random.Generator) -> Indices:
    """So many samples, each value in proportion to within one, the largest remainders rounded up.

    >>> values = np.array(list("aaaaaabbbc"))
    >>> "".join(values[stratified(values, 5, np.random.default_rng(0))])
    'aaabb'
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    exact = sizes * count / max(1, len(values))
    takes = np.floor(exact).astype(np.int64)
    short = count - int(takes.sum())
    takes[np.argsort(takes - exact, kind="stable")[:short]] += 1
    order = np.lexsort((rng.random(len(values)), group))
    starts = np.cumsum(sizes) - sizes
    return np.sort(np.concatenate([order[s : s + n] for s, n in zip(starts, takes)] or [order]))


def drawn(weights: NDArray[np.float64], count: int, rng: np.random.Generator) -> Indices:
    """So many samples, each draw by weight, repeats allowed, in ascending order."""
    ends = np.cumsum(weights)
    return np.sort(np.searchsorted(ends, rng.random(count) * ends[-1], side="right"))


def _weights(source: Source, by: str | None, weights: Any) -> NDArray[np.float64]:
    if isinstance(weights, str) and weights != BALANCED:
        values = _column(source, weights).astype(np.float64)
        if not np.all(np.isfinite(values)) or values.min(initial=0) < 0 or values.sum() <= 0:
            raise DataError(f"weights in column {weights!r} are not weights", expected="numbers from 0 up, not all 0")
        return values
    assert by is not None
    names, group, sizes = np.unique(_column(source, by), return_inverse=True, return_counts=True)
    if weights == BALANCED:
        return (1 / sizes)[group]
    spelled = {str(name): float(weight) for name, weight in weights.items()}
    missing = [str(name) for name in names if str(name) not in spelled]
    if missing:
        raise DataError(
            f"{by}: no weight for {', '.join(missing[:10])}", where="sampling_weights", expected="one for each"
        )
    each: NDArray[np.float64] = np.array([spelled[str(name)] for name in names])[group]
    return each


def _column(source: Source, name: str) -> NDArray[Any]:
    values = []
    for index, sample in enumerate(source):
        if name not in sample:
            raise DataError(
                f"a sample has no column {name!r}",
                code="no-column",
                where=source.place(index),
                expected=", ".join(sample),
            )
        values.append(sample[name])
    return np.array(values)
