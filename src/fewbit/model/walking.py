# SPDX-License-Identifier: Apache-2.0
"""A walk through a model, block by block: what layers read is caught on the way, and the walk goes on through what was
made of them.

A forward of each item stops before the first layer of a stage. Its inputs are looked at, the layers of the stage get
other weights, and the same forward goes on, through these. So the inputs of a layer are those of the model as it will
be, and no part of the model runs twice. Beside it a second forward goes through the float model, whose answers are what
is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fewbit.model.view import Item


@dataclass(frozen=True)
class Inputs:
    """What the layers of a stage read of one item, padding taken out.

    Args:
        item: its index.
        found: `[positions, features]` in the model as it is by now.
        wanted: the same in the float model; none where it is not walked.
        state: where the layer's output is added to a state that goes through the model, that state before,
            `[positions, out]`.
        wanted_state: the same in the float model.
    """

    item: int
    found: Tensor
    wanted: Tensor | None = None
    state: Tensor | None = None
    wanted_state: Tensor | None = None


class Stage(Protocol):
    """Layers that read the same tensor."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Their names, in the order they run."""

    def inputs(self) -> Iterator[Inputs]:
        """What they read, item after item; items that do not reach them are left out. To be asked once."""


class Walk(Protocol):
    """A model on its way."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks in the order they run; the last one is what is left of the model, under an empty name."""

    def through(self, block: str) -> Iterator[Stage]:
        """Go through a block, one stage after the other; blocks are to be asked for in their order.

        When the next stage is asked for, the layers of the one before are what they will be.
        """


class WalkingView(Protocol):
    """A view with `walk` in `can`."""

    def digest(self) -> str:
        """A hash of everything the model's answers depend on."""

    def walk(self, items: list[Item], *, wanted: bool = True) -> AbstractContextManager[Walk]:
        """Begin a walk.

        Args:
            items: what the model is called with.
            wanted: walk the float model beside it, which is the model as it is now.
        """
