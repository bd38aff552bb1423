# SPDX-License-Identifier: Apache-2.0
"""Second moments of what the layers of a stage read, summed item by item where the tensors lie.

gram      Σ x xᵀ, x in the model as it is by now
cross     Σ x' xᵀ, x' what the float model has in its place; weight times this is Σ y' xᵀ, y' the output that is wanted
drift     Σ d xᵀ for a layer whose output is added to a state, d what that state lacks to be the float model's: a layer
          that answers y' + d makes up for what all layers before it did

Where a layer adds to a state, positions count by the inverse of the state's energy: the norm that reads it next divides
by that, so a position with a huge state hides errors that would be large anywhere else.
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
        count: what the positions count together.
        positions: how many there were.
    """

    gram: Tensor
    cross: Tensor | None
    drift: Tensor | None
    sum: Tensor
    count: Tensor
    positions: int = 0

    def add(self, given: Inputs) -> None:
        """One more item."""
        x = given.found.float()
        count = importance(given.wanted_state)
        weighed = x if count is None else x * count[:, None]
        self.gram.addmm_(x.T, weighed)
        if self.cross is not None and given.wanted is not None:
            self.cross.addmm_(given.wanted.float().T, weighed)
        if self.drift is not None and given.state is not None and given.wanted_state is not None:
            self.drift.addmm_((given.wanted_state.float() - given.state.float()).T, weighed)
        self.sum += weighed.sum(0)
        self.count += len(x) if count is None else count.double().sum()
        self.positions += len(x)

    def wanted(self, weight: Tensor) -> Tensor | None:
        """Σ y xᵀ, y the output that is wanted of a layer with this weight, `[out, in]`."""
        if self.cross is None:
            return None
        return weight.float() @ self.cross if self.drift is None else (weight.float() @ self.cross).add_(self.drift)

    def observers(self) -> dict[str, Observer]:
        """What an algorithm asks for by the names of observers."""
        gram, moments = GramObserver(), MomentsObserver()
        gram.load_state({"gram": self.gram, "count": self.count})
        moments.load_state({SUM: self.sum.double(), SQUARE: self.gram.diagonal().double(), COUNT: self.count})
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


def importance(state: Tensor | None) -> Tensor | None:
    """What each position counts: the inverse of its state's energy, float32 `[positions]`; none if all count alike."""
    if state is None:
        return None
    energy = state.float().square().mean(1)
    return 1 / energy.clamp(min=1e-6 * float(energy.mean().clamp(min=1e-30)))


def _empty(given: Inputs) -> Moments:
    width, place = given.found.shape[1], given.found.device
    square = (width, width)
    drift = None if given.wanted_state is None else torch.zeros(given.wanted_state.shape[1], width, device=place)
    return Moments(
        torch.zeros(square, device=place),
        None if given.wanted is None else torch.zeros(square, device=place),
        drift,
        torch.zeros(width, device=place),
        torch.zeros((), dtype=torch.float64, device=place),
    )
