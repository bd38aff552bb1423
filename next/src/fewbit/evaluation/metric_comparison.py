# SPDX-License-Identifier: Apache-2.0
"""One metric of two models on the same labeled samples: both figures, and the loss with its paired 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.evaluation.intervals import Interval, bootstrap_interval, student_t, wilson_interval
from fewbit.evaluation.metrics._base import Metric, Outputs, Row

_DEFAULTS = ("accuracy", "map50", "mean_iou", "token_accuracy", "mae")
"""Tried in this order if no metric is named: the first that fits the label and an output."""
_USER_RESAMPLES = 200
"""A user's function may be slow."""
_LEAST_FOR_CHANCE = 30


class MetricComparison:
    """Collects a row per labeled sample and model.

    Args:
        metric: what to compute; chosen by the first labels if not given.
    """

    def __init__(self, metric: Metric | None = None):
        self.metric = metric
        self._named = metric is not None
        self._output: str | None = None
        self._chosen = False
        self._rows: tuple[list[Row], list[Row]] = ([], [])
        self._width = 0
        self._missing = 0

    def add(self, original: Outputs, result: Outputs, label: Any) -> None:
        """One sample."""
        if not self._chosen:
            self._choose(original, label)
        if self.metric is None:
            return
        if self._output is None:
            rows = [self.metric.row(outputs, label) for outputs in (original, result)]
        else:
            rows = [self.metric.row(outputs[self._output], label) for outputs in (original, result)]
            self._width = int(np.asarray(original[self._output]).size)
        if rows[0] is None or rows[1] is None:
            self._missing += 1
            return
        self._rows[0].append(rows[0])
        self._rows[1].append(rows[1])

    def _choose(self, outputs: Outputs, label: Any) -> None:
        """The metric, and the output it reads."""
        candidates = [self.metric] if self.metric is not None else [registry.get("metrics", name) for name in _DEFAULTS]
        for metric in candidates:
            names: Sequence[str | None] = [None] if metric.takes_all else list(outputs)
            for name in names:
                if metric.row(outputs if name is None else outputs[name], label) is not None:
                    self.metric, self._output, self._chosen = metric, name, True
                    return
        if self._named and self.metric is not None:
            shapes = ", ".join(f"{name} {list(np.shape(array))}" for name, array in outputs.items())
            raise UsageError(
                f"the metric {self.metric.name} does not fit the outputs {shapes} and labels of type"
                f" {type(label).__name__}", code="metric-mismatch", param="metric",
                expected=self.metric.title, hint="another name of `fewbit list metrics`, or {metric=FILE.py:FN}",
            )  # fmt: skip
        self._chosen = True

    def facts(self) -> dict[str, Any]:
        """Figures of both models, and the loss; nothing without labels."""
        rows, metric = self._rows, self.metric
        if metric is None or not rows[0]:
            return {}
        values = [metric.compute(part) for part in rows]
        facts: dict[str, Any] = {
            "metric": metric.name, "metric_values": values, "metric_higher_is_better": metric.higher_is_better,
            "metric_intervals": [_interval(metric, part) for part in rows], "labeled": len(rows[0]),
        }  # fmt: skip
        if self._is_chance(values[0]):
            return facts | {"metric_note": "the original is not better than chance: labels may be in another order"}
        if not all(map(isfinite, values)):
            return facts
        loss, interval = metric_loss(metric, *rows)
        return facts | {"metric_loss": loss, "metric_loss_interval": interval}

    def _is_chance(self, value: float) -> bool:
        """Whether a classifier with many labels does no better than guessing."""
        assert self.metric is not None
        chance = 1 / self._width if self.metric.name == "accuracy" and self._width > 1 else 0.0
        return len(self._rows[0]) >= _LEAST_FOR_CHANCE and value <= 1.5 * chance and self._width > 2


def metric_loss(metric: Metric, original: Sequence[Row], result: Sequence[Row]) -> tuple[float, Interval]:
    """How much worse the result is, relative to the original's figure, with a paired interval; negative if better.

    >>> accuracy = registry.get("metrics", "accuracy")
    >>> loss, (low, high) = metric_loss(accuracy, [(1.0,)] * 50, [(1.0,)] * 40 + [(0.0,)] * 10)
    >>> round(loss, 2), low < 0.2 < high
    (0.2, True)
    """
    sign = 1.0 if metric.higher_is_better else -1.0
    before, after = metric.compute(original), metric.compute(result)
    relative = metric.scale == "relative" and before != 0
    scale = abs(before) if relative else 1.0
    loss = sign * (before - after) / scale
    bound = scale if relative else 1.0
    most = (before - metric.low) / bound if metric.higher_is_better else (metric.high - before) / bound
    least = (before - metric.high) / bound if metric.higher_is_better else (metric.low - before) / bound
    if metric.is_mean:
        pairs = np.array([[a[0], b[0]] for a, b in zip(original, result)], np.float64)
        low, high = _paired_mean_interval(sign * (pairs[:, 0] - pairs[:, 1]), pairs[:, 0], relative=relative)
    else:

        def statistic(rows: np.ndarray) -> float:
            first, second = ([part[row] for row in rows] for part in (original, result))
            base, other = metric.compute(first), metric.compute(second)
            if metric.scale == "relative" and before != 0:
                return sign * (base - other) / abs(base) if base else float("nan")
            return sign * (base - other)

        low, high = bootstrap_interval(statistic, len(original), resamples=_resamples(metric))
    return loss, (max(low, least), min(high, most))


def _paired_mean_interval(losses: np.ndarray, base: np.ndarray, *, relative: bool) -> Interval:
    """Student's interval of the mean loss, or of its ratio to the original's mean."""
    count = len(losses)
    if count < 2:
        return -inf, inf
    mean = base.mean() if relative else 1.0
    ratio = losses.mean() / abs(mean)
    deviations = losses - ratio * (np.abs(base) if relative else 1.0)
    half = student_t(count - 1) * sqrt(float(np.square(deviations).sum()) / (count - 1) / count) / abs(mean)
    return float(ratio - half), float(ratio + half)


def _interval(metric: Metric, rows: Sequence[Row]) -> Interval:
    """Of one model's figure, inside the metric's range."""
    if metric.is_mean:
        values = np.array([row[0] for row in rows], np.float64)
        if metric.high == 1.0 and set(np.unique(values)) <= {0.0, 1.0}:
            return wilson_interval(float(values.sum()), len(values))
        low, high = _paired_mean_interval(values, values, relative=False)
    else:
        low, high = bootstrap_interval(
            lambda chosen: metric.compute([rows[index] for index in chosen]), len(rows), resamples=_resamples(metric)
        )
    return max(low, metric.low), min(high, metric.high)


def _resamples(metric: Metric) -> int:
    return _USER_RESAMPLES if metric.takes_all and metric.low == -inf else 1000
