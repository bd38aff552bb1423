# SPDX-License-Identifier: Apache-2.0
"""What a model's answers depend on: gradients of them, and which layers belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from fewbit.model.points import Point
from fewbit.model.view import Item

Weigh = Callable[[int, list[Tensor]], list[Tensor | None]]
"""From an item's number and its answers, how much each of their values counts; none for an answer that does not."""

Take = Callable[[Point, Tensor], None]
"""Is given a weight and the gradient by it, in fewbit's layout."""


class SensingView(Protocol):
    """A view with `gradients` in `can`."""

    def gradients(self, points: Sequence[Point], items: Iterable[Item], weigh: Weigh, take: Take) -> None:
        """For each item, the gradient of its weighed and added up answers by each weight that they depend on.

        Args:
            points: of weights.
            items: what the model is called with.
            weigh: how much each value of an answer counts.
            take: is given one weight's gradient after the other, none of which is kept.

        Raises:
            DataError: the model fails on an item; or, under the code `no-gradients`, cannot be differentiated.
        """

    def tied(self, item: Item | None) -> list[tuple[str, ...]]:
        """Layers that runtimes make one of, in groups of two or more: those that read the same tensor, all experts.

        Args:
            item: what the model is called with, once; without one an example of its own, if it has any.
        """


def merged(groups: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
    """Groups with a layer in common as one, and only those of two layers or more.

    >>> merged([["q", "k"], ["o"], ["k", "v"]])
    [('q', 'k', 'v')]
    """
    found: list[dict[str, None]] = []
    for group in groups:
        mine = dict.fromkeys(group)
        for other in [other for other in found if other.keys() & mine.keys()]:
            mine = other | mine
            found.remove(other)
        found.append(mine)
    return [tuple(group) for group in found if len(group) > 1]
