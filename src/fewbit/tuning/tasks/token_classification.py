# SPDX-License-Identifier: Apache-2.0
"""Say of which class each token is: names, parts of speech."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, cross_entropy, logits_of

MODEL = "AutoModelForTokenClassification"
AXIS = -1


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The cross entropy of each token's class."""
    return cross_entropy(logits_of(outputs), batch["labels"])


class METRIC(_base.Metric):
    """Accuracy over tokens; precision, recall and F1 over those of any class but 0, which is for no name at all."""

    BEST = ("f1", "max")

    def update(self, outputs: Any, batch: Batch) -> None:
        labels = batch["labels"]
        known, said = labels != NOTHING, logits_of(outputs).argmax(-1)
        right = (said == labels) & known
        self.add(
            right=right.sum(),
            count=known.sum(),
            found=(right & (labels > 0)).sum(),
            said=((said > 0) & known).sum(),
            there=(labels > 0).sum(),
        )

    def result(self) -> dict[str, float]:
        sums = self.sums
        return {
            "accuracy": sums["right"] / max(1.0, sums["count"]),
            "precision": sums["found"] / max(1.0, sums["said"]),
            "recall": sums["found"] / max(1.0, sums["there"]),
            "f1": 2 * sums["found"] / max(1.0, sums["said"] + sums["there"]),
        }


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """Labels that are not one class a token, or not a class of the model; ids outside of the vocabulary."""
    found, labels, ids = _base.token_faults(batch, model), batch["labels"], batch.get("input_ids")
    if ids is not None and labels.shape != ids.shape:
        return [*found, f"labels are {list(labels.shape)} and input_ids {list(ids.shape)}; expected a class a token"]
    return [*found, *_base.class_faults(labels, _base.classes_of(model))]
