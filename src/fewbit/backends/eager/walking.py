# SPDX-License-Identifier: Apache-2.0
"""A walk through a module, block by block and stage by stage; see `fewbit.model.walking`."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call, on_device, small
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.chains import Call, Chain, Source, find_chains, finishing, rehearse
from fewbit.backends.eager.copying import copied
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.padding import Positions, masks_of
from fewbit.backends.eager.passing import Part, Passing, Run
from fewbit.backends.eager.surveying import Terrain, survey
from fewbit.data.tree import flatten, map_leaves
from fewbit.errors import DataError
from fewbit.model.walking import Inputs

_TRIES = 4  # items that are run until each layer of a part was reached

Values = dict[Source, Tensor]


@contextmanager
def walking(model: nn.Module, found: Catalogue, items: Sequence[Item], *, wanted: bool) -> Iterator[EagerWalk]:
    """Begin a walk; the model is a guest's until its end."""
    twin = copied(model) if wanted else None
    with ExitStack() as stack:
        for each in (model, twin):
            if each is not None:
                stack.enter_context(guest(each))
        yield EagerWalk(model, twin, found, [on_device(model, item) for item in items])


@dataclass
class Stream:
    """One of the two models that are walked.

    Args:
        model: the model.
        calls: what the blocks of a chain are called with, item by item.
        values: what blocks returned that others will read, item by item.
        last: what the last block of the chain returned, item by item.
    """

    model: nn.Module
    calls: list[list[Call]] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)


class EagerWalk:
    """A walk through a module.

    Args:
        model: the module, which is changed on the way.
        twin: the same in float; none if it is not walked.
        found: the catalogue of the module.
        items: what it is called with, at least one.
    """

    def __init__(self, model: nn.Module, twin: nn.Module | None, found: Catalogue, items: list[Item]):
        self._found, self._items = found, items
        self._positions = [Positions(masks_of(model, item)) for item in items]
        self._chains = _chains(model, items[0])
        self._streams = [Stream(each) for each in (model, twin) if each is not None]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks in the order they run, then the rest of the model."""
        return (*(name for chain in self._chains for name in chain.names), "")

    def through(self, block: str) -> Iterator[EagerStage]:
        """Go through a block, one stage after the other."""
        if not block:
            yield from self._rest()
            return
        number = next(n for n, chain in enumerate(self._chains) if block in chain.names)
        chain = self._chains[number]
        index = chain.names.index(block)
        if index == 0:
            self._begin(number)

        def part(stream: Stream) -> Part:
            module = stream.model.get_submodule(block)
            modules = {f"{block}.{name}".rstrip("."): each for name, each in module.named_modules()}

            def run(item: int) -> Run:
                given: Call = map_leaves(lambda leaf: _value(leaf, stream.values[item]), stream.calls[item][index])
                return Run(lambda: module(*given[0], **given[1]), dict(flatten(given))[chain.entry])

            return Part(modules, run)

        parts = [part(stream) for stream in self._streams]
        outs = yield from self._pass(self._layers(f"{block}."), parts)
        for stream, returned in zip(self._streams, outs):
            for item, out in enumerate(returned):
                stream.values[item] = _needed(stream.calls[item][index + 1 :], stream.values[item], index, out)
            stream.last = returned if block == chain.names[-1] else []

    def _layers(self, prefix: str) -> dict[str, Layer]:
        return {name: layer for name, layer in self._found.layers.items() if name.startswith(prefix)}

    def _begin(self, number: int) -> None:
        """Find out what the blocks of a chain are called with; what runs before them runs now."""
        for stream in self._streams:
            chain = self._chain(number, stream)
            stream.calls = [rehearse(stream.model, chain, item, i) for i, item in enumerate(self._items)]
            stream.values = [{} for _ in self._items]

    def _rest(self) -> Iterator[EagerStage]:
        """What is left of the model, the blocks of the last chain taken as they were run."""
        blocks = tuple(f"{name}." for chain in self._chains for name in chain.names)
        local = threading.local()  # each forward has a thread of its own

        def part(stream: Stream) -> Part:
            def run(item: int) -> Run:
                def function() -> Any:
                    local.out = stream.last[item] if stream.last else None
                    return call(stream.model, self._items[item], item)

                return Run(function)

            return Part(dict(stream.model.named_modules()), run)

        layers = {name: layer for name, layer in self._layers("").items() if not name.startswith(blocks)}
        with ExitStack() as stack:
            for stream in self._streams if self._chains else ():
                stack.enter_context(finishing(self._chain(-1, stream), lambda: local.out))
            yield from self._pass(layers, [part(stream) for stream in self._streams], ends=False)

    def _chain(self, number: int, stream: Stream) -> Chain:
        chain = self._chains[number]
        return replace(chain, modules=tuple(stream.model.get_submodule(name) for name in chain.names))

    def _pass(
        self, layers: Mapping[str, Layer], parts: Sequence[Part], *, ends: bool = True
    ) -> Generator[EagerStage, None, list[list[Any]]]:
        """All items through a part of the model; returns what it gave, by stream and item, if they go to its end."""
        layers = {name: layer for name, layer in layers.items() if layer.called and any(s.fed for s in layer.slots)}
        terrain = _terrain(layers, parts[0], min(len(self._items), _TRIES))
        passing = Passing(parts, layers, terrain, len(self._items))
        try:
            for index, names in enumerate(terrain.stages):
                yield EagerStage(names, passing, index, self._positions)
            return passing.end() if ends else []
        finally:
            passing.dismiss()


class EagerStage:
    """Layers that read the same tensor.

    Args:
        layers: their names.
        passing: the forwards of all items.
        index: of the stage in its part of the model.
        positions: take padding out, item by item.
    """

    def __init__(self, layers: tuple[str, ...], passing: Passing, index: int, positions: Sequence[Positions]):
        self.layers = layers
        self._passing, self._index, self._positions = passing, index, positions

    def inputs(self) -> Iterator[Inputs]:
        """What they read, item after item."""
        for item, positions in enumerate(self._positions):
            stops = self._passing.reach(item, self._index)
            if not stops:
                continue
            rows = [positions.select(stop.x, stop.features)[0] for stop in stops]
            states = [None if stop.state is None else positions.select(stop.state, -1)[0] for stop in stops]
            if rows[0].numel():
                both = len(stops) > 1
                yield Inputs(item, rows[0], rows[1] if both else None, states[0], states[1] if both else None)


def _chains(model: nn.Module, item: Item) -> list[Chain]:
    masks = masks_of(model, item)
    try:
        return find_chains(model, small(item, masks[0] if masks else None))
    except DataError:
        return find_chains(model, item)


def _terrain(layers: Mapping[str, Layer], part: Part, items: int) -> Terrain:
    """What a few items show, until each layer was reached."""
    found, left = Terrain(), dict(layers)
    for item in range(items):
        if left:
            run = part.run(item)
            seen = survey(left, part.modules, run.function, run.state)
            found.stages += seen.stages
            found.states |= seen.states
            left = {name: layer for name, layer in left.items() if not any(name in names for names in seen.stages)}
    return found


def _value(leaf: Any, values: Mapping[Source, Tensor]) -> Any:
    return values[leaf] if isinstance(leaf, Source) else leaf


def _needed(calls: Sequence[Call], values: Values, index: int, out: Any) -> Values:
    """What the calls to come will read of what blocks returned."""
    held = values | {Source(index, path): x for path, x in flatten(out) if isinstance(x, Tensor)}
    wanted = {leaf for each in calls for _, leaf in flatten(each) if isinstance(leaf, Source)}
    return {source: held[source] for source in wanted if source.key[0] <= index}
