# SPDX-License-Identifier: Apache-2.0
"""What a metric is: a row per sample, and a figure of many rows. One file here per metric defines `METRIC`.

Rows are kept, outputs are not: the figures of two models and the interval of their difference come from the same rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.errors import UsageError

Row = tuple[Any, ...]
Outputs = Mapping[str, np.ndarray]
"""Of one sample, by output name, without batch axis."""
IGNORED_LABEL = -100
"""Of positions that do not count, as in PyTorch and transformers."""


@dataclass(frozen=True)
class Metric:
    """How good outputs are, given labels.

    Args:
        name: as the user types it.
        title: one line for `fewbit list metrics`.
        row: what one sample contributes, from one output and the label; `None` if they do not fit the metric.
        compute: the figure of many rows.
        example: outputs and labels of a few samples, for the contract test.
        is_mean: whether the figure is the mean of rows with one number; the interval is then Student's.
        low: least value.
        high: largest value.
        higher_is_better: or lower.
        scale: by which the loss is divided: `relative` to the original's figure, or `absolute` for correlations.
        takes_all: whether `row` takes all outputs by name instead of one.
    """

    name: str
    title: str
    row: Callable[[Any, Any], Row | None]
    compute: Callable[[Sequence[Row]], float]
    example: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    is_mean: bool = False
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool = True
    scale: str = "relative"
    takes_all: bool = False


def mean(rows: Sequence[Row]) -> float:
    """Of rows with one number."""
    return float(np.mean([row[0] for row in rows])) if rows else float("nan")


def ratio(rows: Sequence[Row]) -> float:
    """Of the sums of two columns."""
    total = float(sum(row[1] for row in rows))
    return float(sum(row[0] for row in rows)) / total if total else float("nan")


def predicted_class(output: Any, label: Any) -> tuple[int, int] | None:
    """The class that an output chooses and the right one; `None` if these are no scores of classes.

    >>> predicted_class(np.array([0.1, 0.9]), 1), predicted_class(np.array([0.3]), 0), predicted_class(np.zeros(2), "a")
    ((1, 1), (0, 0), None)
    """
    scores = np.asarray(output)
    if not is_class_label(label) or scores.dtype.kind not in "fiu":
        return None
    if scores.size == 1 and scores.ndim <= 1:
        value = scores.item()
        if scores.dtype.kind != "f":
            return int(value), int(label)
        # One score for two classes: a probability, or a logit.
        return (int(value > (0.5 if 0 <= value <= 1 else 0.0)), int(label)) if int(label) in (0, 1) else None
    if scores.ndim != 1 or scores.dtype.kind != "f" or int(label) >= len(scores):
        return None
    return int(scores.argmax()), int(label)


def is_class_label(label: Any) -> bool:
    """Whether a label is the number of a class."""
    array = np.asarray(label)
    return array.size == 1 and array.dtype.kind in "iu" and int(array.reshape(())) >= 0


def sequence(value: Any) -> list[Any] | None:
    """A text as words, integers as they are, scores [positions, tokens] as CTC decodes them: no repeats, no blank (0).

    >>> sequence("a b"), sequence(np.array([3, 1])), sequence(np.eye(3)[[0, 1, 1, 0, 1, 2]])
    (['a', 'b'], [3, 1], [1, 1, 2])
    """
    if isinstance(value, str):
        return value.split()
    array = np.asarray(value)
    if array.dtype.kind in "iu" and array.ndim == 1:
        return [int(number) for number in array]
    if array.dtype.kind == "f" and array.ndim == 2:
        best = array.argmax(-1)
        steps = best[np.concatenate([[True], best[1:] != best[:-1]])]
        return [int(number) for number in steps if number]
    if array.dtype.kind == "U":
        return str(array).split() if array.ndim == 0 else [str(item) for item in array.ravel()]
    return None


def find_metric(metric: Any) -> Metric:
    """A metric by name, `FILE.py:FN`, or a function of outputs and labels.

    Args:
        metric: a function takes the outputs of all samples (an array each; a mapping if the model has several outputs)
            and their labels. It returns one number per sample, or one for all of them. Higher is better unless the
            function has the attribute `higher_is_better = False`.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str) and ".py:" not in metric:
        known: Metric = registry.get("metrics", metric, param="metric")
        return known
    if isinstance(metric, str):
        from fewbit.data.user_code import load_function

        metric = load_function(metric, param="metric")
    if not callable(metric):
        raise UsageError(
            f"a metric of type {type(metric).__name__}", code="metric", param="metric",
            expected="a name of `fewbit list metrics`, or a function of outputs and labels", hint="{metric=FILE.py:FN}",
        )  # fmt: skip
    return _user_metric(metric)


def _user_metric(function: Callable[[Sequence[Any], Sequence[Any]], Any]) -> Metric:
    """A user's function as a metric; its value is computed from complete outputs, which are then kept."""

    def row(outputs: Outputs, label: Any) -> Row:
        return (outputs if len(outputs) > 1 else next(iter(outputs.values())), label)

    def compute(rows: Sequence[Row]) -> float:
        return float(np.mean(per_sample(rows)))

    def per_sample(rows: Sequence[Row]) -> np.ndarray:
        values = np.asarray(function([row[0] for row in rows], [row[1] for row in rows]), np.float64)
        if values.ndim > 1 or (values.ndim == 1 and len(values) != len(rows)):
            raise UsageError(
                f"the metric gives {list(values.shape)} for {len(rows)} samples", code="metric", param="metric",
                expected="one number per sample, or one for all", hint="return the mean, or a list",
            )  # fmt: skip
        return values

    inner = inspect.unwrap(function)  # behind what shows the line of the user in errors
    better = bool(getattr(inner, "higher_is_better", True))
    name = getattr(inner, "__name__", None) or "metric"
    return Metric(
        name, "a function of the user", row, compute, low=-inf, high=inf, higher_is_better=better, takes_all=True
    )
