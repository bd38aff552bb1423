# SPDX-License-Identifier: Apache-2.0
"""Two classifiers: the same first choice, KL, and with labels the accuracy of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.engine.confidence import Floats, quantile, ratio, share
from fewbit.engine.divergence import divergence
from fewbit.engine.non_finite import refuse_non_finite
from fewbit.engine.pairing import Pair


class ClassJudge:
    """Takes answers `[samples, classes]` in and gives figures.

    Args:
        output: which of the answers has the scores.
    """

    kind = "classes"

    def __init__(self, output: int = 0) -> None:
        self._output = output
        self._kl: list[Floats] = []
        self._same: list[Floats] = []
        self._right: list[Floats] = []
        self._theirs: list[Floats] = []
        self._worst: dict[str, Any] = {"value": -1.0}

    @property
    def samples(self) -> int:
        """How many there were."""
        return sum(len(each) for each in self._kl)

    def take(self, pair: Pair) -> None:
        """Take one item's answers in."""
        ours, theirs = pair.ours[self._output], pair.theirs[self._output]
        refuse_non_finite(ours, theirs, pair.question.place)
        apart = divergence(ours, theirs)
        self._kl.append(apart.kl.numpy())
        self._same.append(apart.same.numpy().astype(float))
        labels = pair.question.labels
        if labels is not None and len(labels) == len(ours):
            self._right.append((ours.argmax(-1) == labels).numpy().astype(float))
            self._theirs.append((theirs.argmax(-1) == labels).numpy().astype(float))
        at = int(apart.kl.argmax())
        if (value := float(apart.kl[at])) > self._worst["value"]:
            place = {"item": pair.item, "sample": pair.first + at, "place": pair.question.place}
            self._worst = {"value": value, **place, **({"row": at} if len(ours) > 1 else {})}

    def facts(self) -> dict[str, Any]:
        """Everything found, each figure with its interval."""
        kl, one = np.concatenate(self._kl), np.ones(self.samples)
        alone = list(kl[:, None])
        found: dict[str, Any] = {
            "kl": {
                "mean": ratio(kl, one).at_least(0.0).to_dict(),
                "median": quantile(alone, 0.5).to_dict(),
                "p99": quantile(alone, 0.99).to_dict(),
                "worst": self._worst,
            },
            "agreement": share(np.concatenate(self._same), one).to_dict(),
        }
        if self._labelled:
            right, theirs = np.concatenate(self._right), np.concatenate(self._theirs)
            found["accuracy"] = {
                "original": share(right, one).to_dict(),
                "compressed": share(theirs, one).to_dict(),
                "difference": ratio(theirs - right, one).to_dict(),
            }
        return found

    def verdict(self) -> str:
        """What may be said, in words."""
        rests = f"on {self.samples} sample{'s' if self.samples > 1 else ''}"
        if not self._labelled:
            same = share(np.concatenate(self._same), np.ones(self.samples)).value
            return f"the same choice in {same:.2%}, {rests}; the data has no labels to say which choice is right"
        right, theirs = np.concatenate(self._right), np.concatenate(self._theirs)
        apart = ratio(theirs - right, np.ones(self.samples))
        if apart.low is None or apart.high is None:
            return f"one sample gives no interval: whether the accuracy differs cannot be said ({rests})"
        ends = f"95 % interval {apart.low:+.2%} to {apart.high:+.2%}, {rests}"
        if not (right != theirs).any():
            return f"no difference in accuracy could be shown: both are right about the same ones, {rests}"
        if apart.may_be(0.0):
            return f"no difference in accuracy could be shown: {apart.value:+.2%}, {ends}"
        return f"accuracy is {abs(apart.value):.2%} {'higher' if apart.value > 0 else 'lower'}: {ends}"

    @property
    def _labelled(self) -> bool:
        """Whether every sample has one: figures of some would not be of the others."""
        return sum(len(each) for each in self._right) == self.samples
