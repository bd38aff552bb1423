# SPDX-License-Identifier: Apache-2.0
"""The problem of a `"prepare"` algorithm: one link, whose channels can be scaled on one side and back on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid

BY_CHANNEL = Grid(Dtype.int8, QSchemeType.per_channel)


@dataclass(frozen=True)
class Operand:
    """A weight at one end of a link.

    Args:
        weight: `[out, in, kernel…]`; of a norm `[out]`, its scale by channel.
        grid: the grid it will lie on; none if it stays in float, as a norm does.
        groups: of a grouped convolution: `out` block i contracts with block i of the input channels.
        bias: `[out]`, or none.
        mean_square: E[x²] of its input by channel, where that is known and is not the link's own activation.
    """

    weight: Tensor
    grid: Grid | None = BY_CHANNEL
    groups: int = 1
    bias: Tensor | None = None
    mean_square: Tensor | None = None

    @property
    def inputs(self) -> int:
        """How many channels it reads."""
        return self.weight.shape[1] * self.groups if self.weight.ndim > 1 else len(self.weight)

    def divided(self, factors: Tensor) -> Operand:
        """With output channels divided by factors `[out]`."""
        by = factors.to(self.weight.device)
        weight = self.weight / by.reshape(-1, *(1,) * (self.weight.ndim - 1))
        return replace(self, weight=weight, bias=None if self.bias is None else self.bias / by)

    def multiplied(self, factors: Tensor) -> Operand:
        """With input channels multiplied by factors `[inputs]`."""
        by = by_row(factors.to(self.weight.device), len(self.weight), self.groups)
        return replace(self, weight=self.weight * by.reshape(*by.shape, *(1,) * (self.weight.ndim - 2)))


@dataclass(frozen=True)
class Activation:
    """What is known of the activation of a link, by input channel of the consumers; each `[channels]`, or none.

    Args:
        low: the smallest value.
        high: the largest.
        mean_square: E[x²].
        grid: the grid it will lie on, the whole tensor with one scale; none if it stays in float.
    """

    low: Tensor | None = None
    high: Tensor | None = None
    mean_square: Tensor | None = None
    grid: Grid | None = Grid(Dtype.uint8, symmetric=False)

    def divided(self, by: Tensor) -> Activation:
        """The same after every channel was divided by a factor above zero: no second pass over the data.

        >>> Activation(torch.tensor([-1.0]), torch.tensor([4.0]), torch.tensor([8.0])).divided(torch.tensor([2.0])).high
        tensor([2.])
        """

        def over(x: Tensor | None, divisor: Tensor) -> Tensor | None:
            return None if x is None else x / divisor.to(x.device, x.dtype)

        low, high, mean_square = over(self.low, by), over(self.high, by), over(self.mean_square, by.square())
        return Activation(low, high, mean_square, self.grid)


@dataclass(frozen=True)
class LinkProblem:
    """One link of `fewbit.model.structure`, as tensors.

    Args:
        consumers: the layers that read the activation; together they decide.
        channels: for each input channel of the consumers the producer's output channel it comes from, -1 where it comes
            from somewhere else.
        producer: the layer whose output it is; none if it has no weight to speak of.
        activation: what the consumers read.
        name: what messages call the link.
    """

    consumers: Sequence[Operand]
    channels: Sequence[int]
    producer: Operand | None = None
    activation: Activation = field(default_factory=Activation)
    name: str = ""

    @property
    def outputs(self) -> int:
        """How many output channels the producer has; those up to the last one linked, if nothing else is known."""
        return max(self.channels) + 1 if self.producer is None else len(self.producer.weight)

    def index(self, device: torch.device) -> Tensor:
        """`channels` as a tensor."""
        return torch.tensor(list(self.channels), dtype=torch.int64, device=device)

    def spread(self, factors: Tensor) -> Tensor:
        """Factors of the producer's channels for each input channel of the consumers; 1 where it is not linked."""
        index = self.index(factors.device)
        return torch.where(index >= 0, factors[index.clamp(min=0)], torch.ones_like(factors[:1]))

    def rescaled(self, factors: Tensor) -> LinkProblem:
        """The link after its producer was divided by factors `[outputs]` and the consumers made up for it."""
        by = self.spread(factors)
        return replace(
            self,
            consumers=[consumer.multiplied(by) for consumer in self.consumers],
            producer=None if self.producer is None else self.producer.divided(factors),
            activation=self.activation.divided(by),
        )

    def check(self) -> None:
        """Refuse what does not fit together.

        Raises:
            DataError: a value is not finite.
            UsageError: shapes that do not fit.
        """
        width, seen = len(self.channels), self.activation
        sizes = {f"consumer {i}": consumer.inputs for i, consumer in enumerate(self.consumers)}
        for name, values in (("low", seen.low), ("high", seen.high), ("mean_square", seen.mean_square)):
            sizes |= {} if values is None else {name: values.numel()}
        wrong = [f"{name} has {size}" for name, size in sizes.items() if size != width]
        if wrong or not self.consumers or not width:
            what = f"a link of {width} channels, but {', '.join(wrong)}" if wrong else "a link without a consumer"
            raise UsageError(what, where=self.name or None, expected="one entry for every input channel")
        if not -1 <= min(self.channels) <= max(self.channels) < self.outputs:
            what = f"channels from {min(self.channels)} to {max(self.channels)} of a producer with {self.outputs}"
            raise UsageError(what, where=self.name or None, expected="indices of its output channels, or -1")
        ends = {"the producer": self.producer} | {f"consumer {i}": c for i, c in enumerate(self.consumers)}
        tensors = {f"the weight of {name}": end.weight for name, end in ends.items() if end is not None}
        for name, values in (tensors | {"low": seen.low, "high": seen.high, "mean_square": seen.mean_square}).items():
            if values is not None and not bool(torch.isfinite(values.sum(dtype=torch.float64))):
                raise DataError(
                    f"{name} of a link holds numbers that are not finite",
                    where=self.name or None,
                    expected="numbers that are neither NaN nor infinite",
                    try_="leave these layers out, or look at how the model was trained or saved",
                )


@dataclass(frozen=True)
class Rescaling:
    """What the producer's outputs are to be divided by, and what is worth recording.

    Args:
        factors: float32 `[outputs]`, finite and above zero, 1 for channels that are not linked; none to leave it alone.
        facts: plain data.
    """

    factors: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def by_row(channels: Tensor, rows: int, groups: int) -> Tensor:
    """What belongs to input channels, beside a weight's `[out, in]`: `[1, in]`, or `[out, in]` where there are groups.

    >>> by_row(torch.tensor([1, 2, 3, 4]), 2, 2)
    tensor([[1, 2],
            [3, 4]])
    """
    parted = channels.reshape(groups, -1)
    return parted if groups == 1 else parted.repeat_interleave(rows // groups, 0)
