# SPDX-License-Identifier: Apache-2.0
"""Factors for a link from the ranges on both sides of it, and the choice among them by the expected error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._link import LinkProblem, Rescaling
from fewbit.algorithms._link_error import LinkError
from fewbit.errors import UsageError

# How far from the ends of the weights' own float type they have to stay.
_ROOM = 16.0


class Ranges:
    """The largest magnitudes on both sides of a link, by output channel of the producer, `[outputs]`.

    Channels that several input channels of the consumers come from (grouped-query attention) are one: the largest of
    them counts. Zero where a channel is not linked.

    Attributes:
        activation: of the activation; none if it was not seen.
        producer: of the producer's weights; none if it has no matrix.
        consumers: of the weights that read the channel.
    """

    def __init__(self, problem: LinkProblem, model: LinkError) -> None:
        self._problem = problem
        self.activation = None
        if model.low is not None and model.high is not None:
            self.activation = self._gathered(torch.maximum(model.high.abs(), model.low.abs()))
        self.consumers = self._gathered(torch.stack([reader.columns for reader in model.readers]).amax(0))
        self.producer = None if model.producer is None else model.producer.rows * (self.consumers > 0)

    def factors(self, first: Tensor, alpha: float, strength: float = 1.0) -> Tensor:
        """first^alpha / consumers^(1 - alpha), to a power; 1 for dead channels: those of no range on either side.

        A common factor changes nothing where the whole activation comes from this producer. It is chosen so that the
        activation reaches as far as before, or else so that the factors multiply to 1.
        """
        live = (first > 0) & (self.consumers > 0)
        logs = alpha * first.double().log() - (1 - alpha) * self.consumers.double().log()
        logs = torch.where(live, logs * strength, 0.0)
        if not bool(live.any()):
            return torch.ones_like(first)
        if self.activation is not None and bool((self.activation[live] > 0).any()):
            size = self.activation.double().log()[live]
            logs = logs + ((size - logs[live]).amax() - size.amax())
        else:
            logs = logs - logs[live].mean()
        return torch.where(live, self.bounded(logs).exp(), 1.0).float()

    def _gathered(self, values: Tensor) -> Tensor:
        return gathered(self._problem, values, "amax")

    def bounded(self, logs: Tensor) -> Tensor:
        """Held to where neither the divided nor the multiplied weights leave the normal numbers of their own type."""
        sides = [(self.consumers, consumer.weight.dtype, 1) for consumer in self._problem.consumers]
        if self.producer is not None and self._problem.producer is not None:
            sides.append((self.producer, self._problem.producer.weight.dtype, -1))
        for size, dtype, sign in sides:
            kind, held = torch.finfo(dtype), size.double().log()
            least, most = torch.tensor([kind.tiny * _ROOM, kind.max / _ROOM], dtype=torch.float64).log().tolist()
            least, most = torch.clamp(least - held, max=0.0), torch.clamp(most - held, min=0.0)
            logs = torch.clamp(logs, least, most) if sign > 0 else torch.clamp(logs, -most, -least)
        return logs


def gathered(problem: LinkProblem, values: Tensor, how: str) -> Tensor:
    """Values of the consumers' input channels, of several that come from one of the producer's the `amax` or `mean`.

    >>> from fewbit.algorithms._link import Operand
    >>> gathered(LinkProblem([Operand(torch.ones(1, 3))], [0, 1, 1]), torch.tensor([1.0, 2.0, 4.0]), "mean")
    tensor([1., 3.])
    """
    index = problem.index(values.device)
    linked = index >= 0
    into = values.new_zeros(problem.outputs)
    return into.scatter_reduce(0, index[linked], values[linked], how, include_self=False)


def choose(
    model: LinkError, outputs: int, candidates: Iterable[tuple[dict[str, Any], Tensor]], margin: float
) -> Rescaling:
    """The candidate of the least expected error, if that is below the error as it is by more than a margin.

    Args:
        model: says the error.
        outputs: the producer's output channels.
        candidates: what to record of each, and its factors.
        margin: by which share the error has to fall: the extremes of a channel are those of a few samples.

    Raises:
        UsageError: a margin that is no share.
    """
    if not 0 <= margin < 1:
        raise UsageError(f"margin={margin!r}", where="margin", expected="a share from [0, 1), such as 0.1")
    before = model(torch.ones(outputs, device=model.device))
    judged = [(model(factors), facts, factors) for facts, factors in candidates]
    if not judged:
        facts = {"error": before, "error_unscaled": before, "reason": "there is nothing to take factors from"}
        return Rescaling(None, facts)
    error, facts, factors = min(judged, key=lambda each: each[0])  # the first of equals
    if not error < before * (1 - margin):
        reason = f"the expected error would not fall by {margin:.0%}"
        return Rescaling(None, {"error": before, "error_unscaled": before, "reason": reason})
    return Rescaling(factors, {"error": error, "error_unscaled": before, **facts})
