# SPDX-License-Identifier: Apache-2.0
"""Say of which class a picture is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fewbit.tuning.measures.top_k import hits
from fewbit.tuning.picture_sizes import refuse_sizes
from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, cross_entropy, logits_of
from fewbit.tuning.tasks._classes import Classes

MODEL = "AutoModelForImageClassification"
AXIS = -1


def prepare(batch: Batch, model: nn.Module) -> Batch:
    """The batch as it is, if the model sees each picture as if it were alone."""
    refuse_sizes(batch, model)
    return batch


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The cross entropy of each picture's class."""
    return cross_entropy(logits_of(outputs), batch["labels"].flatten())


class METRIC(Classes):
    """How often the right class is the likeliest, or one of the five likeliest where there are more; class by class."""

    def update(self, outputs: Any, batch: Batch) -> None:
        super().update(outputs, batch)
        logits, labels = logits_of(outputs).detach(), batch["labels"].flatten()
        self.add(right=hits(logits, labels, 1), count=(labels != NOTHING).sum())
        if logits.shape[-1] > 5:
            self.add(right_of_five=hits(logits, labels, 5))

    def result(self) -> dict[str, float]:
        count = max(1.0, float(self.sums["count"]))
        named = {"accuracy": "right", "accuracy_top_5": "right_of_five"}
        shares = {name: float(self.sums[key]) / count for name, key in named.items() if key in self.sums}
        return shares | super().result()


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """Labels that are not one class a picture, or not a class of the model."""
    labels = batch["labels"]
    if labels.numel() != len(labels):
        return [f"labels are {list(labels.shape)}; expected one class a picture"]
    return _base.class_faults(labels, _base.classes_of(model))
