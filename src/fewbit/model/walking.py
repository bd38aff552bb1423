# SPDX-License-Identifier: Apache-2.0
"""A walk through a model, block by block: what layers read is caught on the way, and the walk goes on through what was
made of them.

A forward of each item stops before the first layer of a stage. Its inputs are looked at, the layers of the stage get
other weights, and the same forward goes on, through these. So the inputs of a layer are those of the model as it will
be, and no part of the model runs twice. Beside it a second forward goes through the float model, whose answers are what
is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fewbit.model.view import Item

TRIES = 4
"""Items that a walk looks at to find its way."""


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
        expert: of a stack of experts, the one that reads it; what the others read comes by itself.
    """

    item: int
    found: Tensor
    wanted: Tensor | None = None
    state: Tensor | None = None
    wanted_state: Tensor | None = None
    expert: int | None = None


class Stage(Protocol):
    """Layers that read the same tensor."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Their names, in the order they run; of experts that are one tensor, the name of that tensor."""

    def inputs(self) -> Iterator[Inputs]:
        """What they read, item after item, of experts one after the other; who is not reached is left out.

        To be asked once.
        """


class Block(Protocol):
    """A block that was gone through, and can be run again with other weights."""

    @property
    def items(self) -> tuple[int, ...]:
        """The numbers of the items that were walked."""

    def run(self, weights: Mapping[str, Tensor], items: Sequence[int]) -> Tensor:
        """What it answers to some items, `[positions, features]`, padding taken out.

        Args:
            weights: by the names of their points, in fewbit's layout; the answer can be differentiated by them. Those
                that are not there are what they are in the model.
            items: their numbers.
        """

    def wanted(self, items: Sequence[int]) -> Tensor:
        """What it answers to them in the float model, where nothing before it is rounded either."""


class Walk(Protocol):
    """A model on its way."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks in the order they run; the last one is what is left of the model, under an empty name."""

    def through(self, block: str) -> Iterator[Stage]:
        """Go through a block, one stage after the other; blocks are to be asked for in their order.

        When the next stage is asked for, the layers of the one before are what they will be.
        """

    def tuning(self) -> AbstractContextManager[Block | None]:
        """The block that was gone through last, whose weights may change once more.

        At the end the block is run again, with the weights it has then, and hands on what it answers. None for what is
        left of the model, or if the float model is not walked.
        """


class WalkingView(Protocol):
    """A view with `walk` in `can`."""

    def digest(self) -> str:
        """A hash of everything the model's answers depend on."""

    def walk(
        self,
        items: Sequence[Item],
        *,
        wanted: bool = True,
        mine: Sequence[int] | None = None,
        agree: Callable[[Callable[[], Any]], Any] | None = None,
        budget: int | None = None,
        folder: Path | None = None,
    ) -> AbstractContextManager[Walk]:
        """Begin a walk.

        Args:
            items: what the model is called with.
            wanted: walk the float model beside it, which is the model as it is now.
            mine: the items that are walked here, if not all: others walk the others.
            agree: what is found out from the first `TRIES` items, by who walks them, for all.
            budget: bytes of memory for activations that wait for the next block or in the middle of one; those beyond
                wait in files, and are the same afterwards. By default a fourth of what is free.
            folder: where these files are; a folder for such by default. They are gone when the walk ends.
        """
