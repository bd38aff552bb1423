# SPDX-License-Identifier: Apache-2.0
"""What one pass shows of a layer's input to what happens before and after rounding: extremes, squares and taps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewbit.algorithms._base import Activation, Taps
from fewbit.engine.collect import is_held_out
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.model.watch import COUNT, HIGH, LOW, SQUARE, TAPS, WINDOWS, Watch

_SPREAD = (LOW, HIGH, SQUARE, COUNT)


@dataclass
class InputSeen:
    """What one layer's input carries, as far as it was asked and items reached it.

    Args:
        low: the smallest value by feature; so `high`, and `square`, the sum of squares.
        count: the number of positions.
        taps: what the layer's kernel met: in the items that teach (False), and in those kept aside (True).
    """

    low: Tensor | None = None
    high: Tensor | None = None
    square: Tensor | None = None
    count: Tensor | None = None
    taps: dict[bool, Taps] = field(default_factory=dict)

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows; it may be more than was asked."""
        if all(name in found for name in _SPREAD):
            low, high, square, count = (found[name] for name in _SPREAD)
            self.low = low if self.low is None else torch.minimum(self.low, low)
            self.high = high if self.high is None else torch.maximum(self.high, high)
            self.square = square if self.square is None else self.square + square
            self.count = count if self.count is None else self.count + count
        if TAPS in found:
            aside, new = is_held_out(item), Taps(found[TAPS], found[WINDOWS])
            old = self.taps.get(aside)
            self.taps[aside] = new if old is None else Taps(old.sums + new.sums, old.windows + new.windows)

    @property
    def activation(self) -> Activation | None:
        """The input as a link's problem takes it; none if no item reached it."""
        if self.low is None or self.square is None or self.count is None:
            return None
        return Activation(self.low, self.high, self.square / self.count, None)

    def divide(self, factors: Tensor) -> None:
        """Go on as if every feature had been divided by its factor."""
        by = factors.double()
        if self.low is not None and self.high is not None and self.square is not None:
            by = by.to(self.low.device)
            self.low, self.high, self.square = self.low / by, self.high / by, self.square / by.square()
        for aside, each in self.taps.items():
            tall = by.to(each.sums.device).reshape(-1, *(1,) * (each.sums.ndim - 1))
            self.taps[aside] = Taps(each.sums / tall, each.windows)


def watch_inputs(
    view: ModelView, layers: Iterable[str], needs: Iterable[str]
) -> tuple[dict[Point, Watch], dict[str, InputSeen]]:
    """What is asked about the inputs of layers, and where the answers will be.

    Args:
        view: of the model.
        layers: by name; those that read no activation are passed over.
        needs: `low`, `high`, `square` and `count` together, `taps` and `windows` together, or all of them.
    """
    names, asked = frozenset(layers), frozenset(needs)
    inputs = view.points(lambda p: p.role is Role.input and p.layer in names) if asked else []
    seen = {point.layer: InputSeen() for point in inputs}
    return {point: Watch(asked, seen[point.layer].take) for point in inputs}, seen
