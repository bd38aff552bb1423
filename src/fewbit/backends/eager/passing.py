# SPDX-License-Identifier: Apache-2.0
"""The forwards of all items through one part of a model, each as far as it was asked to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.dozing import Doze, Traces
from fewbit.backends.eager.pausing import Forward
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.shelf import Kept, Shelf
from fewbit.backends.eager.slots import float_shape
from fewbit.backends.eager.streams import fetched
from fewbit.backends.eager.surveying import first_tensor
from fewbit.backends.eager.terrain import ENTRY, Terrain
from fewbit.backends.eager.trial import Call
from fewbit.data.tree import flatten
from fewbit.model.ops import EXPERTS

_VARIABLES = 6  # as large as the state, that a block holds at a time


@dataclass(frozen=True)
class Run:
    """How one item goes through a part of a model.

    Args:
        given: what it goes in with; its tensors may wait.
        function: does it, with these.
        entry: where among them the state is that goes through the part; none if there is none.
    """

    given: Any
    function: Callable[[Any], Any]
    entry: str | None = None

    def begin(self) -> tuple[Any, Tensor | None, Callable[[Any], Any]]:
        """What it goes in with as tensors, the state among these, and what does it."""
        given = fetched(self.given)
        return given, None if self.entry is None else dict(flatten(given))[self.entry], self.function


@dataclass(frozen=True)
class Part:
    """A part of one of the models that are walked.

    Args:
        modules: by name.
        run: how an item goes through it.
        keep: takes what came out of it, to wait.
    """

    modules: Mapping[str, nn.Module]
    run: Callable[[int], Run]
    keep: Callable[[Any], Any]


@dataclass(frozen=True)
class Stop:
    """Where a forward stands.

    Args:
        stage: the stage whose layers it stands before.
        x: what they read.
        features: its feature axis.
        state: what their output will be added to; none if that is not known.
        experts: where they are experts, their module and what it is called with.
        some: whether it is of some positions only, chosen on the way.
    """

    stage: int
    x: Tensor
    features: int
    state: Tensor | None
    experts: tuple[nn.Module, Call] | None = None
    some: bool = False


class Passing:
    """All items on their way through a part.

    Args:
        parts: of each model that is walked.
        layers: with weights.
        terrain: what was seen of them.
        items: how many there are.
        shelf: keeps what forwards hold while they wait.
    """

    def __init__(self, parts: Sequence[Part], layers: Mapping[str, Layer], terrain: Terrain, items: int, shelf: Shelf):
        self._stages = [tuple(dict.fromkeys(terrain.layer(name) for name in names)) for names in terrain.stages]
        self._states = terrain.states
        self._now = 0
        self._running: Forward | None = None
        self._passed: set[tuple[int, int]] = set()
        self._read: dict[int, dict[str, Tensor]] = {}
        self._parts, self._shelf, self._dozes = parts, shelf, dict[int, Doze]()
        self._follows = items > 0 and _is_much(parts[0].run(0), layers, items * len(parts), shelf)
        self._forwards = [[self._forward(part, part.run(item)) for item in range(items)] for part in parts]
        readers = set(self._states.values()) - {ENTRY}
        self._handles = []
        for part in parts:
            hooks = [(name, self._keep(name)) for name in readers]
            hooks += [(name, self._stop(layers[name])) for name in dict.fromkeys(sum(self._stages, ()))]
            self._handles += [
                part.modules[name].register_forward_pre_hook(hook, with_kwargs=True) for name, hook in hooks
            ]

    def reach(self, item: int, stage: int) -> list[Stop]:
        """Where the forwards of an item stand before a stage, one a model; nothing if the first does not come there.

        Of experts that are layers of their own, the second model may send no token to one that the first does; then it
        stands where the first one does.
        """
        self._now = stage
        found = []
        for forwards in self._forwards:
            forward = forwards[item]
            if forward.at is None or forward.at.stage < stage:
                self._advance(forward)
            if forward.at is not None and forward.at.stage == stage:
                self._wake(forward)
                found.append(forward.at)
            elif found:
                found.append(found[0])
            else:
                self.rest(item)
                return []
        return found

    def rest(self, item: int) -> None:
        """Let the forwards of an item wait, for as long as nothing of them is looked at."""
        for forwards in self._forwards:
            if id(forwards[item]) in self._dozes and forwards[item].at is not None:
                self._dozes[id(forwards[item])].sleep()

    def end(self) -> list[list[Any]]:
        """Run all to their end; what they gave, kept, by model and item."""
        self._now = len(self._stages)
        for part, forwards in zip(self._parts, self._forwards):
            for forward in forwards:
                while not forward.over:
                    self._advance(forward)
                forward.out = part.keep(forward.out)
                self._read.pop(id(forward), None)
        return [[forward.out for forward in forwards] for forwards in self._forwards]

    def dismiss(self) -> None:
        """Leave everything as it was."""
        for handle in self._handles:
            handle.remove()
        for forwards in self._forwards:
            for forward in forwards:
                self._wake(forward)
                forward.dismiss()

    def _forward(self, part: Part, run: Run) -> Forward:
        def function() -> Any:
            given, state, does = run.begin()
            if state is not None:
                self._read[id(forward)] = {ENTRY: state}
            if not self._follows:
                return does(given)
            traces = Traces(part.modules.values())
            for (_, kept), (_, x) in zip(flatten(run.given), flatten(given)):
                if isinstance(kept, Kept):
                    traces.begin(x, shared=not kept.apart)
            self._dozes[id(forward)] = Doze(traces, self._shelf)
            with traces:
                return does(given)

        forward = Forward(function)
        return forward

    def _wake(self, forward: Forward) -> None:
        if id(forward) in self._dozes:
            self._dozes[id(forward)].wake()

    def _advance(self, forward: Forward) -> None:
        if not forward.over:
            self._wake(forward)
            self._running = forward
            try:
                forward.advance()
            finally:
                self._running = None

    def _stop(self, layer: Layer) -> Callable[..., None]:
        stages = [index for index, names in enumerate(self._stages) if layer.name in names]  # several for experts
        alone = len(self._stages[stages[0]]) == 1  # what several answer together adds to no state of one
        state = self._states.get(layer.name) if alone and len(stages) == 1 else None

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            forward, inputs = self._running, inputs_of(layer, args, kwargs)
            if forward is None or not inputs:
                return
            for stage in stages:
                if stage >= self._now and (id(forward), stage) not in self._passed:
                    self._passed.add((id(forward), stage))
                    known = None if state is None else self._read.get(id(forward), {}).get(state)
                    experts = (module, (args, kwargs)) if layer.op is EXPERTS else None
                    some = _is_chosen(inputs[0], self._read.get(id(forward), {}).get(ENTRY))
                    forward.stop(Stop(stage, inputs[0], layer.features(), known, experts, some))

        return before

    def _keep(self, name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor(args, kwargs)
            if self._running is not None and x is not None:
                self._read.setdefault(id(self._running), {})[name] = x

        return before


def _is_chosen(x: Tensor, state: Tensor | None) -> bool:
    """Whether an input is of some positions of the state only: rows one by one, and fewer than there are."""
    return state is not None and x.ndim == 2 and len(x) < state.numel() // state.shape[-1]


def _is_much(run: Run, layers: Mapping[str, Layer], forwards: int, shelf: Shelf) -> bool:
    """Whether what forwards hold on their way may not fit on a shelf, by what is known before they run."""
    given = [kept for _, kept in flatten(run.given) if isinstance(kept, Kept)]
    held = max((kept.size for kept in given), default=0)
    if not held:
        return False
    sides = [max(float_shape(layer.module, slot.tensor)[0]) for layer in layers.values() for slot in layer.slots]
    width = max((kept.width for kept in given), default=1)
    return forwards * held * (_VARIABLES + max(sides, default=0) / width) > shelf.left
