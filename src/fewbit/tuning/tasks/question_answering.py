# SPDX-License-Identifier: Apache-2.0
"""Say where in a text the answer to a question stands: its first token and its last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, cross_entropy

MODEL = "AutoModelForQuestionAnswering"
ANSWERS = ("start_positions", "end_positions", "labels")


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean cross entropy of the first token's place and the last one's."""
    first, count = cross_entropy(outputs.start_logits, _known(batch, "start_positions", outputs.start_logits))
    last, other = cross_entropy(outputs.end_logits, _known(batch, "end_positions", outputs.end_logits))
    return (first + last) / 2, (count + other) / 2


class METRIC(_base.Metric):
    """How often the span is the right one, and how much of it is, as F1 over its tokens."""

    BEST = ("f1", "max")

    def update(self, outputs: Any, batch: Batch) -> None:
        start, end = best_span(outputs.start_logits, outputs.end_logits)
        first, last = batch["start_positions"].flatten(), batch["end_positions"].flatten()
        shared = (torch.minimum(end, last) - torch.maximum(start, first) + 1).clamp(min=0)
        f1 = 2 * shared / ((end - start + 1) + (last - first + 1))
        self.add(exact=((start == first) & (end == last)).sum(), f1=f1.sum(), count=torch.tensor(len(first)))

    def result(self) -> dict[str, float]:
        count = max(1.0, self.sums["count"])
        return {"exact_match": self.sums["exact"] / count, "f1": self.sums["f1"] / count}


def best_span(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest first and last token of each row, among pairs in that order.

    Args:
        start: `[rows, tokens]`.
        end: `[rows, tokens]`.

    >>> [place.item() for place in best_span(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[9.0, 0.0, 1.0]]))]
    [0, 0]
    """
    # The best start up to each token, then the best end: linear, where a table of pairs would be quadratic.
    before, where = start.float().cummax(-1)
    last = (before + end.float()).argmax(-1)
    return where.gather(-1, last[:, None])[:, 0], last


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """No places of answers, or places that the text does not have."""
    found = _base.token_faults(batch, model)
    missing = [name for name in ANSWERS[:2] if name not in batch]
    if missing:
        return [*found, f"there are no {' and no '.join(missing)}"]
    length = batch["input_ids"].shape[-1] if "input_ids" in batch else None
    for name in ANSWERS[:2]:
        low, high = int(batch[name].min()), int(batch[name].max())
        if low < 0 or (length is not None and high >= length):
            found.append(f"{name} are {low} to {high}; expected places in a text of {length} tokens")
    if bool((batch["end_positions"] < batch["start_positions"]).any()):
        found.append("an answer ends before it starts")
    return found


def _known(batch: Batch, name: str, logits: Tensor) -> Tensor:
    """The places, with `NOTHING` for those beyond the text: an answer that was cut away teaches nothing."""
    places = batch[name].flatten()
    known: Tensor = places.masked_fill((places < 0) | (places >= logits.shape[-1]), NOTHING)
    return known
