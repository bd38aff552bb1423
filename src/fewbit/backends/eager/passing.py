# SPDX-License-Identifier: Apache-2.0
"""The forwards of all items through one part of a model, each as far as it was asked to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.pausing import Forward
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.surveying import ENTRY, Terrain, first_tensor


@dataclass(frozen=True)
class Run:
    """How one item goes through a part of a model.

    Args:
        function: does it.
        state: what the part is called with; none if nothing goes through it.
    """

    function: Callable[[], Any]
    state: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """A part of one of the models that are walked.

    Args:
        modules: by name.
        run: how an item goes through it.
    """

    modules: Mapping[str, nn.Module]
    run: Callable[[int], Run]


@dataclass(frozen=True)
class Stop:
    """Where a forward stands.

    Args:
        stage: the stage whose layers it stands before.
        x: what they read.
        features: its feature axis.
        state: what their output will be added to; none if that is not known.
    """

    stage: int
    x: Tensor
    features: int
    state: Tensor | None


class Passing:
    """All items on their way through a part.

    Args:
        parts: of each model that is walked.
        layers: with weights.
        terrain: what was seen of them.
        items: how many there are.
    """

    def __init__(self, parts: Sequence[Part], layers: Mapping[str, Layer], terrain: Terrain, items: int):
        self._stage = {name: index for index, names in enumerate(terrain.stages) for name in names}
        self._states = terrain.states
        self._now = 0
        self._running: Forward | None = None
        self._passed: set[tuple[int, int]] = set()
        self._read: dict[tuple[int, str], Tensor] = {}
        self._forwards: list[list[Forward]] = []
        for part in parts:
            runs = [part.run(item) for item in range(items)]
            forwards = [Forward(run.function) for run in runs]
            self._read |= {(id(f), ENTRY): r.state for f, r in zip(forwards, runs) if r.state is not None}
            self._forwards.append(forwards)
        readers = set(self._states.values()) - {ENTRY}
        self._handles = []
        for part in parts:
            hooks = [(name, self._keep(name)) for name in readers]
            hooks += [(name, self._stop(layers[name])) for name in self._stage]
            self._handles += [
                part.modules[name].register_forward_pre_hook(hook, with_kwargs=True) for name, hook in hooks
            ]

    def reach(self, item: int, stage: int) -> list[Stop]:
        """Where the forwards of an item stand before a stage, one a model; nothing if they do not come there."""
        self._now = stage
        found = []
        for forwards in self._forwards:
            forward = forwards[item]
            if forward.at is None or forward.at.stage < stage:
                self._advance(forward)
            if forward.at is None or forward.at.stage != stage:
                return []
            found.append(forward.at)
        return found

    def end(self) -> list[list[Any]]:
        """Run all to their end; what they gave, by model and item."""
        self._now = len(self._stage)
        for forwards in self._forwards:
            for forward in forwards:
                while not forward.over:
                    self._advance(forward)
        return [[forward.out for forward in forwards] for forwards in self._forwards]

    def dismiss(self) -> None:
        """Leave everything as it was."""
        for handle in self._handles:
            handle.remove()
        for forwards in self._forwards:
            for forward in forwards:
                forward.dismiss()

    def _advance(self, forward: Forward) -> None:
        if not forward.over:
            self._running = forward
            forward.advance()

    def _stop(self, layer: Layer) -> Callable[..., None]:
        stage = self._stage[layer.name]
        alone = list(self._stage.values()).count(stage) == 1  # what several answer together adds to no state of one
        state = self._states.get(layer.name) if alone else None

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            forward = self._running
            if forward is None or stage < self._now or (id(forward), stage) in self._passed:
                return
            inputs = inputs_of(layer, args, kwargs)
            if inputs:
                self._passed.add((id(forward), stage))
                known = None if state is None else self._read.get((id(forward), state))
                forward.stop(Stop(stage, inputs[0], layer.features(), known))

        return before

    def _keep(self, name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor(args, kwargs)
            if self._running is not None and x is not None:
                self._read[id(self._running), name] = x

        return before
