# SPDX-License-Identifier: Apache-2.0
"""Two models on the same samples: agreement of decisions, SQNR, metrics with labels, and outputs that are broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import Any

import numpy as np

from fewbit.errors import ModelError
from fewbit.evaluation.boxes import find_detections, match_detections
from fewbit.evaluation.decisions import Kind, OutputDecisions, agreement
from fewbit.evaluation.intervals import share_interval
from fewbit.evaluation.metric_comparison import MetricComparison
from fewbit.evaluation.metrics._base import Metric, is_class_label

MOST_SQNR = 200.0
"""Decibels of outputs that are equal."""
_CONSTANT = 1e-6
"""Of the spread of an output, relative to its size."""


class Comparison:
    """Adds up the outputs of two models, batch by batch.

    Args:
        metric: to compute with labels; chosen by labels and outputs if not given.
        classes: whether the model is known to be a classifier.

    >>> comparison = Comparison()
    >>> scores = {"y": np.array([[1.0, -2.0], [0.5, 3.0]])}
    >>> comparison.add(scores, scores)
    >>> facts = comparison.facts()
    >>> facts["agreement"], facts["sqnr_db"]
    (1.0, 200.0)
    """

    def __init__(self, metric: Metric | None = None, *, classes: bool = False) -> None:
        self.samples = 0
        self._metric = MetricComparison(metric)
        self._classes = classes
        self._outputs: dict[str, _Output] = {}
        self._boxes: list[tuple[int, int, int]] | None = None
        self._detects: bool | None = None

    def add(
        self, original: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray], labels: Sequence[Any] = (),
        samples: int | None = None,
    ) -> None:  # fmt: skip
        """Compare one batch.

        Args:
            original: outputs by name.
            result: the other model's; names may differ if there are as many.
            labels: one per sample, `None` for samples without.
            samples: how many the batch holds; by default the first axis of the first output.

        Raises:
            ModelError: the models have other outputs, or outputs of other shapes.
        """
        count = samples or _batch(original)
        pairs = _paired(original, result)
        batches = {name: (_split(a, count), _split(b, count)) for name, (a, b) in pairs.items()}
        self.samples += count
        for index in range(count):
            first = {name: rows[index] for name, (rows, _) in batches.items() if rows is not None}
            second = {name: rows[index] for name, (_, rows) in batches.items() if rows is not None}
            label = labels[index] if index < len(labels) else None
            if label is not None:
                self._metric.add(first, second, label)
            if not self._add_boxes(first, second):
                self._add_sample(first, second, is_class_label(label))
        for name, (a, b) in pairs.items():
            if batches[name][0] is None:  # without a batch axis: one value for all samples
                self._output(name).add(a, b, labeled=False)

    def _add_sample(self, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], labeled: bool) -> None:
        for name, array in first.items():
            other = second[name]
            if array.shape != other.shape:
                raise _different(f"{name}: {list(array.shape)}", f"{list(other.shape)}")
            self._output(name).add(array, other, labeled=labeled)

    def _add_boxes(self, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
        """Detections of one sample, whose number differs between models."""
        if self._detects is False:
            return False
        mine, others = find_detections(first), find_detections(second)
        if self._detects is None:
            self._detects = mine is not None and others is not None
        if not self._detects or mine is None or others is None:
            return False
        self._boxes = self._boxes or []
        self._boxes.append(match_detections(mine, others))
        finite = all(np.isfinite(array).all() for array in second.values() if array.dtype.kind == "f")
        self._output("boxes").finite &= finite
        return True

    def _output(self, name: str) -> _Output:
        if name not in self._outputs:
            self._outputs[name] = _Output(OutputDecisions(name, self._classes and not self._outputs))
        return self._outputs[name]

    def facts(self) -> dict[str, Any]:
        """Everything measured, as plain data: each figure with its 95 % interval.

        Returns:
            `samples`, `finite`, `constant`; `agreement` with `agreement_interval` and `agreement_of` (what was counted,
            if not every decision); `sqnr_db` and `outputs` per output; `cosine`; `metric`, `metric_values`,
            `metric_loss` and `metric_loss_interval` (relative, positive if the result is worse).
        """
        finite = all(output.finite for output in self._outputs.values())
        facts: dict[str, Any] = {"samples": self.samples, "finite": finite}
        constant = sorted(name for name, output in self._outputs.items() if output.is_constant)
        decisive = self._decisive()
        if any(output.decisions.name in constant for output in decisive):
            facts["constant"] = constant
        facts |= self._agreement(decisive)
        if finite:
            facts |= self._errors(decisive)
        return facts | self._metric.facts()

    def _decisive(self) -> list[_Output]:
        """The outputs that decide: all of the smallest kind. Integers next to floats change places with them."""
        outputs = [output for output in self._outputs.values() if output.count]
        floats = any(not output.decisions.integers and output.decisions.ndim > 1 for output in outputs)
        outputs = [output for output in outputs if not (output.decisions.integers and floats)]
        kinds = [min(output.decisions.kind, Kind.VALUES) for output in outputs]
        # One yes or no per sample counts as much as a choice per sample.
        ranks = [Kind.CLASSES if kind is Kind.YES_OR_NO else kind for kind in kinds]
        least = min(ranks, default=Kind.VALUES)
        return [output for output, rank in zip(outputs, ranks) if rank == least]

    def _agreement(self, decisive: Sequence[_Output]) -> dict[str, Any]:
        if self._boxes is not None:
            sizes = [(mine + others) / 2 for _, mine, others in self._boxes]
            if sum(sizes):
                hits = [float(matches) for matches, _, _ in self._boxes]
                interval = share_interval(hits, sizes)
                return {"agreement": sum(hits) / sum(sizes), "agreement_interval": interval, "agreement_of": "boxes"}
            return {}
        outputs = [output.decisions for output in decisive]
        if not outputs or outputs[0].kind in (Kind.EMBEDDING, Kind.VALUES):
            return {}
        figures = agreement(outputs)
        if figures is None:
            return {}
        facts: dict[str, Any] = {"agreement": figures.value, "agreement_interval": figures.interval}
        if figures.subject:
            facts |= {"agreement_of": figures.subject, "agreement_overall": figures.overall}
        if figures.rare is not None:
            facts |= {"rare_agreement": figures.rare, "rare_agreement_interval": figures.rare_interval}
        return facts | ({"unsure": True} if any(output.unsure for output in outputs) else {})

    def _errors(self, decisive: Sequence[_Output]) -> dict[str, Any]:
        """SQNR of every output, their mean, and the cosine similarity of embeddings."""
        rows = [output.facts() for output in self._outputs.values() if output.count]
        facts: dict[str, Any] = {"outputs": rows} if len(rows) > 1 else {}
        errors = [output.error for output in self._outputs.values() if output.signal > 0]
        if errors:
            facts["sqnr_db"] = decibels(sum(errors) / len(errors))
        centered = [error for output in decisive if (error := output.decisions.error) is not None]
        if centered:
            facts["decision_sqnr_db"] = decibels(sum(centered) / len(centered))
        kind = decisive[0].decisions.kind if decisive else Kind.VALUES
        if kind is Kind.EMBEDDING or any(output.decisions.unsure for output in decisive):
            cosines = [value for output in decisive if (value := output.decisions.cosine()) is not None]
            if cosines:
                facts["cosine"], facts["cosine_interval"] = min(cosines)
        return facts


@dataclass
class _Output:
    """Sums over one output of both models."""

    decisions: OutputDecisions
    finite: bool = True
    signal: float = 0.0
    noise: float = 0.0
    count: int = 0
    varies: bool = False
    result_varies: bool = False
    _first: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, original: np.ndarray, result: np.ndarray, *, labeled: bool) -> None:
        """One sample."""
        if original.size == 0:
            return
        if original.dtype.kind == "f":
            wide, other = original.astype(np.float64), result.astype(np.float64)
            known = np.isfinite(wide)
            # A mask of minus infinity is an output too; what the original does not know, is not judged.
            self.finite &= bool((np.isfinite(other) | ~known).all())
            if not known.all():
                wide, other = np.where(known, wide, 0), np.where(known, other, 0)
            if not np.isfinite(other).all():
                self.count += wide.size
                return
            self.signal += float(np.square(wide).sum())
            self.noise += float(np.square(wide - other).sum())
            original, result = wide, other
        self.count += original.size
        self.decisions.known_classes |= labeled and original.ndim == 1 and original.dtype.kind == "f"
        self.decisions.add(original, result)
        if self._first is None or self._first[0].shape != original.shape:
            self._first = self._first or (original, result)
            return
        self.varies |= _differ(original, self._first[0])
        self.result_varies |= _differ(result, self._first[1])

    @property
    def is_constant(self) -> bool:
        """Whether the result gives the same for every sample, and the original does not."""
        return self.varies and not self.result_varies

    @property
    def error(self) -> float:
        """Energy of the error over that of the output."""
        return self.noise / self.signal

    def facts(self) -> dict[str, Any]:
        row: dict[str, Any] = {"name": self.decisions.name, "kind": self.decisions.kind.name.lower().replace("_", "-")}
        if self.signal > 0:
            row["sqnr_db"] = decibels(self.error)
        return row | ({"constant": True} if self.is_constant else {})


def decibels(error: float) -> float:
    """SQNR of an error relative to the signal's energy.

    >>> round(decibels(0.01), 3), decibels(0.0)
    (20.0, 200.0)
    """
    return min(MOST_SQNR, -10 * log10(error)) if error > 0 and isfinite(error) else MOST_SQNR


def _differ(array: np.ndarray, other: np.ndarray) -> bool:
    if array.dtype.kind != "f":
        return not np.array_equal(array, other)
    return bool(np.abs(array - other).max() > _CONSTANT * max(float(np.abs(other).max()), 1e-30))


def _batch(outputs: Mapping[str, np.ndarray]) -> int:
    first = next((array for array in outputs.values() if array.ndim), None)
    return 1 if first is None else len(first)


def _split(array: np.ndarray, samples: int) -> Sequence[np.ndarray] | None:
    """One array per sample; `None` if no axis counts samples and there are several."""
    if array.ndim and array.shape[0] == samples:
        return list(array)
    if array.ndim > 1 and array.shape[1] == samples:  # recurrent outputs: [positions, samples, features]
        return list(np.moveaxis(array, 1, 0))
    return [array] if samples == 1 else None


def _paired(
    original: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Outputs by the original's names; by place if the names differ."""
    if set(original) <= set(result):
        return {name: (np.asarray(array), np.asarray(result[name])) for name, array in original.items()}
    if len(original) == len(result):
        return {name: (np.asarray(a), np.asarray(b)) for (name, a), b in zip(original.items(), result.values())}
    raise _different(", ".join(original), ", ".join(result))


def _different(original: str, result: str) -> ModelError:
    return ModelError(
        f"the models have different outputs: {original} and {result}", code="outputs-differ",
        expected="two versions of the same model", hint="{transform} can give both models what they take",
    )  # fmt: skip
