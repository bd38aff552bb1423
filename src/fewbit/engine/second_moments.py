# SPDX-License-Identifier: Apache-2.0
"""Second moments of what the layers of a stage read, summed item by item where the tensors lie.

gram      Σ x xᵀ, x in the model as it is by now
cross     Σ x' xᵀ, x' what the float model has in its place; weight times this is Σ y' xᵀ, y' the output that is wanted
drift     Σ d xᵀ for a layer whose output is added to a state, d what that state lacks to be the float model's: a layer
          that answers y' + d makes up for what all layers before it did
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewbit.engine.collect import is_held_out
from fewbit.model.walking import Inputs
from fewbit.model.watch import COUNT, SQUARE, SUM
from fewbit.observers._base import Observer
from fewbit.observers.gram import GramObserver
from fewbit.observers.moments import MomentsObserver


@dataclass
class Moments:
    """The sums over some items.

    Args:
        gram: `[in, in]`.
        cross: `[in, in]`; none where the float model was not walked.
        drift: `[out, in]`; none where the output is not added to a state.
        sum: `[in]`.
        count: of positions.
    """

    gram: Tensor
    cross: Tensor | None
    drift: Tensor | None
    sum: Tensor
    count: Tensor

    def add(self, given: Inputs) -> None:
        """One more item."""
        x = given.found.float()
        self.gram.addmm_(x.T, x)
        if self.cross is not None and given.wanted is not None:
            self.cross.addmm_(given.wanted.float().T, x)
        if self.drift is not None and given.state is not None and given.wanted_state is not None:
            self.drift.addmm_((given.wanted_state.float() - given.state.float()).T, x)
        self.sum += x.sum(0, dtype=torch.float64)
        self.count += len(x)

    def plus(self, other: Moments) -> Moments:
        """The sums over the items of both."""
        return Moments(
            self.gram + other.gram,
            None if self.cross is None or other.cross is None else self.cross + other.cross,
            None if self.drift is None or other.drift is None else self.drift + other.drift,
            self.sum + other.sum,
            self.count + other.count,
        )

    def wanted(self, weight: Tensor) -> Tensor | None:
        """Σ y xᵀ, y the output that is wanted of a layer with this weight, `[out, in]`."""
        if self.cross is None:
            return None
        return weight.float() @ self.cross if self.drift is None else (weight.float() @ self.cross).add_(self.drift)

    def observers(self) -> dict[str, Observer]:
        """What an algorithm asks for by the names of observers."""
        gram, moments = GramObserver(), MomentsObserver()
        gram.load_state({"gram": self.gram, "count": self.count})
        moments.load_state({SUM: self.sum, SQUARE: self.gram.diagonal().double(), COUNT: self.count})
        return {"gram": gram, "moments": moments}


@dataclass
class Gathered:
    """Moments of one stage: of the items that teach (false), and of those kept aside (true)."""

    sides: dict[bool, Moments] = field(default_factory=dict)

    def add(self, given: Inputs) -> None:
        """One more item."""
        side = is_held_out(given.item)
        if side not in self.sides:
            self.sides[side] = _empty(given)
        self.sides[side].add(given)


def _empty(given: Inputs) -> Moments:
    width, place = given.found.shape[1], given.found.device
    square = (width, width)
    drift = None if given.wanted_state is None else torch.zeros(given.wanted_state.shape[1], width, device=place)
    return Moments(
        torch.zeros(square, device=place),
        None if given.wanted is None else torch.zeros(square, device=place),
        drift,
        torch.zeros(width, dtype=torch.float64, device=place),
        torch.zeros((), dtype=torch.int64, device=place),
    )
