# SPDX-License-Identifier: Apache-2.0
"""Say of which class a text is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fewbit.tuning.measures.top_k import hits
from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, cross_entropy, logits_of
from fewbit.tuning.tasks._classes import Classes

MODEL = "AutoModelForSequenceClassification"
AXIS = -1


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The cross entropy of each text's class."""
    return cross_entropy(logits_of(outputs), batch["labels"].flatten())


class METRIC(Classes):
    """Accuracy, and how each class fares."""

    def update(self, outputs: Any, batch: Batch) -> None:
        super().update(outputs, batch)
        labels = batch["labels"].flatten()
        self.add(right=hits(logits_of(outputs), labels, 1), count=(labels != NOTHING).sum())

    def result(self) -> dict[str, float]:
        return {"accuracy": float(self.sums["right"]) / max(1.0, float(self.sums["count"]))} | super().result()


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """Labels that are not one class a text, or not a class of the model; ids outside of the vocabulary."""
    labels = batch["labels"]
    tokens = _base.token_faults(batch, model) if "input_ids" in batch else []
    if labels.numel() != len(labels):
        return [*tokens, f"labels are {list(labels.shape)}; expected one class a text, from a column 'label'"]
    return [*tokens, *_base.class_faults(labels, _base.classes_of(model))]
