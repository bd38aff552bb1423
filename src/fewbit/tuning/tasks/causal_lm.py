# SPDX-License-Identifier: Apache-2.0
"""Say the next token: language models that read from left to right."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, cross_entropy, logits_of

MODEL = "AutoModelForCausalLM"


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of each position the cross entropy of the token that follows."""
    # The labels move, and not the logits: those are a thousand times larger, and would be copied.
    following = functional.pad(batch["labels"], (0, 1), value=NOTHING)[..., 1:]
    return cross_entropy(logits_of(outputs), following)


class METRIC(_base.Metric):
    """Perplexity, and how often the right token is the likeliest."""

    def update(self, outputs: Any, batch: Batch) -> None:
        total, count = loss(outputs, batch)
        following = batch["labels"][..., 1:]
        right = (logits_of(outputs)[..., :-1, :].argmax(-1) == following) & (following != NOTHING)
        self.add(loss=total, count=count, right=right.sum())

    def result(self) -> dict[str, float]:
        count = max(1.0, self.sums["count"])
        # Beyond this a float has no room, and nobody an interest.
        return {
            "perplexity": math.exp(min(700.0, self.sums["loss"] / count)),
            "token_accuracy": self.sums["right"] / count,
        }


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """Ids outside of the vocabulary, labels of another shape, nothing to learn."""
    found = _base.token_faults(batch, model)
    labels, ids = batch["labels"], batch.get("input_ids")
    if ids is not None and labels.shape != ids.shape:
        return [*found, f"labels are {list(labels.shape)} and input_ids {list(ids.shape)}; expected one shape"]
    if not bool((labels[..., 1:] != NOTHING).any()):
        return [*found, f"every label is {NOTHING}: nothing is learned from it"]
    return [*found, *_base.class_faults(labels, getattr(getattr(model, "config", None), "vocab_size", None))]
