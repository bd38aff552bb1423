# SPDX-License-Identifier: Apache-2.0
"""The decisions that outputs make, and how often two models make the same ones.

- A choice is the largest entry along the class axis. The class axis is the last one; of maps [N, C, H, W] and
  [N, H, W, C] the shape tells.
- An entry between 0 and 1 that does not compete with others (sigmoid), and a map with one channel, is a yes or no.
- An integer is a decision itself. Boxes are matched (`boxes.py`).
- Outputs of an encoder decide nothing: they are compared by cosine similarity. Nor do other numbers: SQNR.

What kind an output is, is decided from all samples at the end, since a few logits may all be positive by chance. A
blank, a background or an empty map would hide the loss of everything else: where one choice takes half of all
positions, the others are judged alone, by the Dice coefficient of both models' choices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from fewbit.evaluation.boxes import score_axis
from fewbit.evaluation.intervals import Interval, ratio_interval, share_interval

WIDE = 64
"""Scores of more entries may be an embedding, whose largest entry means nothing."""
_DOMINANT, _LEAST_RARE = 0.5, 5
_SUM_TOLERANCE, _CONSTANT = 1e-2, 1e-6
_EMBEDDING_WORDS = ("embed", "hidden", "pooler", "pooled", "feature", "sentence_vector", "encoder_output")
_STATE_WORDS = ("state", "present", "past_", "cache", "_cell", "hn", "cn")


class Kind(IntEnum):
    """What an output is; the smallest kind of a model's outputs is judged."""

    CLASSES = 0
    YES_OR_NO = 1
    POSITIONS = 2
    INTEGERS = 3
    EMBEDDING = 4
    VALUES = 5


@dataclass(frozen=True)
class Agreement:
    """How often two models decide the same.

    Args:
        value: the share, from 0 to 1.
        interval: 95 %.
        subject: what was counted if not every decision: "rare choices", "positives", "boxes"; else empty.
        overall: the share of all positions, if only some were judged.
        rare: Dice coefficient of the choices besides the most frequent one, of classifiers that mostly choose one.
        rare_interval: 95 %.
    """

    value: float
    interval: Interval
    subject: str = ""
    overall: float | None = None
    rare: float | None = None
    rare_interval: Interval | None = None


@dataclass
class _Counts:
    """Decisions of one sample: in the original, in the result, in both, by choice."""

    original: Counter[int]
    result: Counter[int]
    both: Counter[int]
    positions: int

    def dice(self, without: int | None) -> tuple[float, float]:
        """Equal choices and their mean number in both models."""
        sums = [sum(n for c, n in part.items() if c != without) for part in (self.both, self.original, self.result)]
        return sums[0], (sums[1] + sums[2]) / 2


@dataclass
class OutputDecisions:
    """Counts the decisions of one output, sample by sample.

    Args:
        name: of the output.
        known_classes: whether it is known to hold scores of classes.
    """

    name: str
    known_classes: bool = False
    choices: list[_Counts] = field(default_factory=list)
    positives: dict[float, list[_Counts]] = field(default_factory=lambda: {0.0: [], 0.5: []})
    cosines: list[tuple[float, int]] = field(default_factory=list)
    integers: bool = False
    width: int = 1
    positions: int = 1
    ndim: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")
    probabilities: bool = True
    log_probabilities: bool = True
    unit_length: bool = True
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    _raw_head: int | None = None

    def add(self, original: np.ndarray, result: np.ndarray) -> None:
        """Compare one sample.

        Args:
            original: without batch axis.
            result: of the same shape.
        """
        first = not self.choices and not self.cosines
        if first:
            self.ndim, self.integers = original.ndim + 1, original.dtype.kind not in "f"
            self._raw_head = score_axis(original[None])
        if self.integers:
            self._count(self.choices, original.ravel().astype(np.int64), result.ravel().astype(np.int64))
            self.positions = max(self.positions, original.size)
            return
        axis = class_axis((1, *original.shape)) - 1 if original.ndim else None
        scores, others = (_rows(array, axis, self._raw_head) for array in (original, result))
        self.width, self.positions = scores.shape[1], max(self.positions, len(scores))
        self._describe(scores)
        for index, term in enumerate((np.square(scores), np.square(others - scores), scores)):
            self.sums[index] += float(term.sum())
        self.sums[3] += scores.size
        if scores.shape[1] > 1 and self._raw_head is None:
            self._count(self.choices, scores.argmax(1), others.argmax(1))
            self.cosines.append((float(_cosine(scores, others).sum()), len(scores)))
        else:
            self.cosines.append((0.0, 0))
        for threshold, counts in self.positives.items():
            if threshold == 0.0 and scores.shape[1] > 1:
                continue
            self._count(counts, *((part > threshold).ravel().astype(np.int64) for part in (scores, others)))

    def _describe(self, scores: np.ndarray) -> None:
        """What tells probabilities, embeddings and plain numbers apart."""
        self.lowest, self.highest = min(self.lowest, float(scores.min())), max(self.highest, float(scores.max()))
        if scores.shape[1] < 2:
            return
        if self.probabilities:
            self.probabilities = self.lowest >= 0 and bool(np.all(np.abs(scores.sum(1) - 1) < _SUM_TOLERANCE))
        if self.log_probabilities:
            sums = np.exp(np.minimum(scores, 1)).sum(1)
            self.log_probabilities = self.highest <= 0 and bool(np.all(np.abs(sums - 1) < _SUM_TOLERANCE))
        if self.unit_length:
            self.unit_length = bool(np.all(np.abs(np.sqrt(np.square(scores).sum(1)) - 1) < _SUM_TOLERANCE))

    @staticmethod
    def _count(counts: list[_Counts], original: np.ndarray, result: np.ndarray) -> None:
        same = original[original == result]
        counts.append(_Counts(_tally(original), _tally(result), _tally(same), len(original)))

    @property
    def kind(self) -> Kind:
        """From everything seen so far."""
        name = self.name.lower()
        if self.integers:
            return Kind.INTEGERS
        if any(word in name for word in _STATE_WORDS) and "last_hidden_state" not in name:
            return Kind.VALUES
        if self._raw_head is not None:
            return Kind.POSITIONS
        if self.width == 1:
            if self._within_one:
                return Kind.YES_OR_NO if self.positions == 1 else Kind.POSITIONS
            return Kind.POSITIONS if self.positions >= 16 and self.lowest < 0 < self.highest else Kind.VALUES
        choice = Kind.CLASSES if self.positions == 1 else Kind.POSITIONS
        if self.known_classes or self.probabilities or self.log_probabilities:
            return choice
        if any(word in name for word in _EMBEDDING_WORDS) or (self.unit_length and self.lowest < 0):
            return Kind.EMBEDDING
        if self._within_one:
            return Kind.POSITIONS
        # Scores that compete have both signs; features behind a ReLU and quantities do not.
        return choice if self.lowest < 0 else Kind.EMBEDDING if self.width >= WIDE else Kind.VALUES

    @property
    def _within_one(self) -> bool:
        return self.lowest >= 0 and self.highest <= 1

    @property
    def unsure(self) -> bool:
        """Whether scores of classes may be an embedding."""
        known = self.known_classes or self.probabilities or self.log_probabilities or self._raw_head is not None
        return not known and self.width >= WIDE and self.kind in (Kind.CLASSES, Kind.POSITIONS)

    def counts(self) -> list[_Counts]:
        """Of the decisions that this kind of output makes."""
        compete = self.width > 1 and self._raw_head is None
        sigmoid = self._within_one and not (self.probabilities or self.known_classes)
        if self.integers or (compete and not sigmoid):
            return self.choices
        return self.positives[0.5 if self._within_one or self._raw_head is not None else 0.0]

    @property
    def is_yes_or_no(self) -> bool:
        """Whether each entry is a decision of its own."""
        return self.counts() is not self.choices

    @property
    def error(self) -> float | None:
        """Energy of the error over that of the scores about their mean; `None` if there are none."""
        signal, noise, total, count = self.sums
        if signal <= 0:
            return None
        spread = signal - total**2 / count
        return noise / (spread if spread > _CONSTANT * signal else signal)

    def cosine(self) -> tuple[float, Interval] | None:
        """The mean cosine similarity of both models' rows."""
        if not sum(count for _, count in self.cosines):
            return None
        sums, counts = [value for value, _ in self.cosines], [count for _, count in self.cosines]
        return sum(sums) / sum(counts), ratio_interval(sums, counts, low=-1.0, high=1.0)


def agreement(outputs: list[OutputDecisions]) -> Agreement | None:
    """How often the decisions of some outputs are the same; `None` if they make none."""
    by_sample = list(zip(*(output.counts() for output in outputs)))
    if not by_sample:
        return None
    positions = [sum(counts.positions for counts in row) for row in by_sample]
    same = [sum(counts.both.total() for counts in row) for row in by_sample]
    overall, interval = sum(same) / max(sum(positions), 1), share_interval(same, positions)
    common = [_common_choice(output) for output in outputs]
    rare_count = sum(
        counts.original.total() - counts.original[choice]
        for row in by_sample
        for counts, choice in zip(row, common)
        if choice is not None
    )
    if rare_count < _LEAST_RARE:
        return Agreement(overall, interval)
    parts = [[counts.dice(choice) for counts, choice in zip(row, common)] for row in by_sample]
    hits, sizes = ([sum(part[side] for part in row) for row in parts] for side in (0, 1))
    rare, rare_interval = sum(hits) / sum(sizes), share_interval(hits, sizes)
    if max(positions) <= len(outputs):
        return Agreement(overall, interval, rare=rare, rare_interval=rare_interval)
    subject = "positives" if all(output.is_yes_or_no for output in outputs) else "rare choices"
    return Agreement(rare, rare_interval, subject, overall)


def _common_choice(output: OutputDecisions) -> int | None:
    """The choice that hides the others: "no", or what the original chooses at half of all positions or more."""
    if output.is_yes_or_no:
        return 0
    total: Counter[int] = Counter()
    for counts in output.counts():
        total.update(counts.original)
    choice, number = total.most_common(1)[0] if total else (0, 0)
    return choice if number >= _DOMINANT * total.total() else None


def class_axis(shape: tuple[int, ...]) -> int:
    """The axis of the classes of an output with a batch axis.

    >>> class_axis((2, 5)), class_axis((1, 21, 8, 8)), class_axis((1, 64, 64, 3)), class_axis((1, 2, 48, 64))
    (1, 1, 3, 1)
    """
    if len(shape) not in (4, 5):
        return len(shape) - 1
    inner, last = shape[2:-1], shape[-1]
    if shape[1] == 1 or last == 1:
        return 1 if shape[1] == 1 else len(shape) - 1
    if len({*inner, last}) == 1:
        return 1
    if len({shape[1], *inner}) == 1:
        return len(shape) - 1
    return 1 if shape[1] <= last else len(shape) - 1


def _rows(array: np.ndarray, axis: int | None, raw_head: int | None) -> np.ndarray:
    """One row of scores per position, [positions, classes]; of a raw detection head without the coordinates."""
    if raw_head is not None:
        axis = raw_head - 1
    if axis is None or array.ndim == 0:
        return array.reshape(1, 1).astype(np.float64)
    rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).astype(np.float64)
    return rows[:, 4:] if raw_head is not None else rows


def _tally(values: np.ndarray) -> Counter[int]:
    numbers, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(numbers.tolist(), counts.tolist())))


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    norms = np.sqrt(np.square(first).sum(1) * np.square(second).sum(1))
    products = (first * second).sum(1)
    # Two rows of zeros are the same, one is not.
    return np.asarray(np.where(norms > 0, products / np.where(norms > 0, norms, 1), (first == second).all(1)))


__all__ = ["Agreement", "Kind", "OutputDecisions", "agreement", "class_axis"]
