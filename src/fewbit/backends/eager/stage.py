# SPDX-License-Identifier: Apache-2.0
"""A stage of a walk: layers that read the same tensor, and what they read of each item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.experts import Experts
from fewbit.backends.eager.padding import Positions
from fewbit.backends.eager.passing import Passing, Stop
from fewbit.backends.eager.terrain import Terrain
from fewbit.model.walking import Inputs
from fewbit.modules.memory import give_back


class EagerStage:
    """Layers that read the same tensor.

    Args:
        layers: their names.
        passing: the forwards of all items.
        index: of the stage in its part of the model.
        numbers: of the items.
        positions: take padding out, item by item.

    Attributes:
        experts: where they are stacks of experts, these.
    """

    experts: Experts | None = None

    def __init__(
        self,
        layers: tuple[str, ...],
        passing: Passing,
        index: int,
        numbers: Sequence[int],
        positions: Sequence[Positions],
    ):
        self.layers = layers
        self._passing, self._index, self._numbers, self._positions = passing, index, numbers, positions

    def inputs(self) -> Iterator[Inputs]:
        """What they read, item after item."""
        for item, positions in enumerate(self._positions):
            stops = self._passing.reach(item, self._index)
            if not stops:
                continue
            number = self._numbers[item]
            yield from self._given(number, stops, positions)
            self._passing.rest(item)
        give_back()

    def _given(self, number: int, stops: Sequence[Stop], positions: Positions) -> Iterator[Inputs]:
        if self.experts is not None:
            calls = [stop.experts for stop in stops if stop.experts is not None]
            yield from self.experts.inputs(number, calls, positions)
            return
        # Positions that were chosen on the way are others in the float model, and nothing says which.
        if any(stop.some or stop.x.shape != stops[0].x.shape for stop in stops):
            stops = [stops[0]] * len(stops)
        rows = [positions.select(stop.x, stop.features)[0] for stop in stops]
        states = [None if stop.state is None else positions.select(stop.state, -1)[0] for stop in stops]
        if rows[0].numel():
            both = len(stops) > 1
            yield Inputs(number, rows[0], rows[1] if both else None, states[0], states[1] if both else None)


def experts_of(layers: Mapping[str, Layer], terrain: Terrain, index: int) -> Experts:
    """The stacks of a stage, and those of the same layer that come later."""
    mine = [terrain.stacks[name] for name in terrain.stages[index]]
    later = [terrain.stacks[name] for names in terrain.stages[index + 1 :] for name in names if name in terrain.stacks]
    layer = mine[0][0]
    return Experts(layers[layer], [stack for _, stack in mine], [stack for owner, stack in later if owner == layer])
