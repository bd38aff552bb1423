# SPDX-License-Identifier: Apache-2.0
"""Second moments of what weights read, from calibration samples, padding left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.engine.collect import is_held_out
from fewbit.model.points import Role
from fewbit.model.view import Item, ModelView
from fewbit.model.watch import VALUES, Watch

WIDEST = 8192
"""Features of an input whose second moments are kept whole; of a wider one, only each feature's own."""


@dataclass
class Moments:
    """Sums over positions of what one layer reads.

    Args:
        gram: `[in, in]`, or `[in]` (squares alone) where there are too many features.
        sum: `[in]`.
        count: positions.
    """

    gram: Tensor
    sum: Tensor
    count: int = 0

    @classmethod
    def empty(cls, width: int) -> Moments:
        """Nothing seen yet."""
        shape = (width, width) if width <= WIDEST else (width,)
        return cls(torch.zeros(shape, dtype=torch.float64), torch.zeros(width, dtype=torch.float64))

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows, unless it is kept aside to judge by."""
        if is_held_out(item):
            return
        x = found[VALUES].detach().to("cpu", torch.float64)
        self.gram += x.T @ x if self.gram.ndim == 2 else x.square().sum(0)
        self.sum += x.sum(0)
        self.count += len(x)


def collect(view: ModelView, widths: Mapping[str, int], items: Iterable[Item]) -> dict[str, Moments]:
    """Run a model over items and sum up what weights read; weights that no item reaches have nothing.

    Args:
        view: of the model.
        widths: how many features each weight reads, by the weight's name.
        items: what the model is called with.
    """
    found: dict[str, Moments] = {}
    watch = {}
    for point in view.points(lambda point: point.role is Role.input):
        names = [f"{point.layer}.{tensor}".lstrip(".") for tensor in point.feeds]
        mine = [name for name in names if name in widths]
        if len(mine) == 1 and len(names) == 1:
            found[mine[0]] = Moments.empty(widths[mine[0]])
            watch[point] = Watch(frozenset({VALUES}), found[mine[0]].take)
    view.run(items, watch)
    return {name: moments for name, moments in found.items() if moments.count}
