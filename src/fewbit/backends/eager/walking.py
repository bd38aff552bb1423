# SPDX-License-Identifier: Apache-2.0
"""A walk through a module, block by block and stage by stage; see `fewbit.model.walking`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fewbit.backends.eager.calling import Item, call, on_device, small
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.chains import Call, Chain, find_chains, finishing, rehearse
from fewbit.backends.eager.copying import copied
from fewbit.backends.eager.guest import devices, guest
from fewbit.backends.eager.padding import Positions, masks_of
from fewbit.backends.eager.passing import Part, Passing, Run
from fewbit.backends.eager.shelf import Shelf
from fewbit.backends.eager.stage import EagerStage, experts_of
from fewbit.backends.eager.streams import Alike, Stream, Values, fetched
from fewbit.backends.eager.surveying import survey
from fewbit.backends.eager.terrain import Terrain
from fewbit.backends.eager.tuning import EagerBlock, steady
from fewbit.data.tree import flatten
from fewbit.errors import DataError
from fewbit.model.walking import TRIES
from fewbit.modules.memory import give_back

Agree = Callable[[Callable[[], Any]], Any]


@contextmanager
def walking(
    model: nn.Module,
    found: Catalogue,
    items: Sequence[Item],
    *,
    wanted: bool = True,
    mine: Sequence[int] | None = None,
    agree: Agree | None = None,
    budget: int | None = None,
    folder: Path | None = None,
) -> Iterator[EagerWalk]:
    """Begin a walk; the model is a guest's until its end."""
    twin = copied(model) if wanted else None
    with ExitStack() as stack:
        for each in (model, twin):
            if each is not None:
                stack.enter_context(guest(each))
        chains = _chains(model, on_device(model, items[0]))
        walked = {n: on_device(model, items[n]) for n in (range(len(items)) if mine is None else mine)}
        shelf = stack.enter_context(Shelf(budget, folder, next(iter(devices(model)), None)))
        yield EagerWalk(model, twin, found, chains, walked, agree or (lambda make: make()), shelf)


@dataclass(frozen=True)
class Passed:
    """A block that was gone through.

    Args:
        chain: it belongs to.
        index: of the block in the chain.
        values: what blocks before it returned, item by item, in the model that is changed.
        wanted: what it returned in the float model, item by item; both wait.
    """

    chain: Chain
    index: int
    values: list[Values]
    wanted: list[Any]


class EagerWalk:
    """A walk through a module.

    Args:
        model: the module, which is changed on the way.
        twin: the same in float; none if it is not walked.
        found: the catalogue of the module.
        chains: of the module.
        items: what it is called with, by number.
        agree: as `WalkingView.walk` says.
        shelf: keeps activations that wait.
    """

    def __init__(
        self,
        model: nn.Module,
        twin: nn.Module | None,
        found: Catalogue,
        chains: list[Chain],
        items: Mapping[int, Item],
        agree: Agree,
        shelf: Shelf,
    ):
        self._found, self._chains, self._agree = found, chains, agree
        self._numbers, self._items = list(items), list(items.values())
        self._positions = [Positions(masks_of(model, item)) for item in self._items]
        self._shelf, self._streams = shelf, [Stream(each, shelf) for each in (model, twin) if each is not None]
        self._passed: Passed | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks in the order they run, then the rest of the model."""
        return (*(name for chain in self._chains for name in chain.names), "")

    def through(self, block: str) -> Iterator[EagerStage]:
        """Go through a block, one stage after the other."""
        self._passed = None
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
                return Run(stream.given(item, index), lambda call: module(*call[0], **call[1]), chain.entry)

            return Part(modules, run, stream.put_away)

        parts = [part(stream) for stream in self._streams]
        outs = yield from self._pass(self._layers(f"{block}."), parts)
        self._passed = Passed(chain, index, self._streams[0].values, outs[-1])
        for stream, returned in zip(self._streams, outs):
            stream.hand_on(chain, index, stream.values, returned)
        give_back()

    @contextmanager
    def tuning(self) -> Iterator[EagerBlock | None]:
        """The block that was gone through last, as `Walk.tuning` says."""
        passed, stream = self._passed, self._streams[0]
        if passed is None or len(self._streams) < 2:
            yield None
            return
        chain, index = passed.chain, passed.index
        name, module = chain.names[index], stream.model.get_submodule(chain.names[index])
        calls: list[Call] = [fetched(stream.given(item, index, held)) for item, held in enumerate(passed.values)]
        wanted = [fetched(dict(flatten(out))[chain.state[index]]) for out in passed.wanted]
        device = wanted[0].device
        with steady(device):
            yield EagerBlock(
                module,
                name,
                self._layers(f"{name}."),
                dict(zip(self._numbers, calls)),
                chain.entry,
                chain.state[index],
                dict(zip(self._numbers, wanted)),
                dict(zip(self._numbers, self._positions)),
            )
        outs = [stream.put_away(module(*args, **kwargs)) for args, kwargs in calls]
        stream.hand_on(chain, index, passed.values, outs)

    def _layers(self, prefix: str) -> dict[str, Layer]:
        return {name: layer for name, layer in self._found.layers.items() if name.startswith(prefix)}

    def _begin(self, number: int) -> None:
        """Find out what the blocks of a chain are called with; what runs before them runs now."""
        alike = Alike()
        for stream in self._streams:
            chain = self._chain(number, stream)
            calls = (rehearse(stream.model, chain, item, n) for n, item in zip(self._numbers, self._items))
            stream.begin(chain, calls, alike)

    def _rest(self) -> Iterator[EagerStage]:
        """What is left of the model, the blocks of the last chain taken as they were run."""
        blocks = tuple(f"{name}." for chain in self._chains for name in chain.names)
        local = threading.local()  # each forward has a thread of its own

        def part(stream: Stream) -> Part:
            def run(item: int) -> Run:
                def function(out: Any) -> Any:
                    local.out = out
                    return call(stream.model, self._items[item], self._numbers[item])

                return Run(stream.last[item] if stream.last else None, function)

            return Part(dict(stream.model.named_modules()), run, stream.put_away)

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
        terrain = self._agree(lambda: _terrain(layers, parts[0], min(len(self._items), TRIES)))
        passing = Passing(parts, layers, terrain, len(self._items), self._shelf)
        try:
            for index, names in enumerate(terrain.stages):
                stage = EagerStage(names, passing, index, self._numbers, self._positions)
                if names[0] in terrain.stacks:
                    stage.experts = experts_of(layers, terrain, index)
                yield stage
            return passing.end() if ends else []
        finally:
            passing.dismiss()


def _chains(model: nn.Module, item: Item) -> list[Chain]:
    masks = masks_of(model, item)
    try:
        return find_chains(model, small(item, masks[0] if masks else None))
    except DataError:
        return find_chains(model, item)


def _terrain(layers: Mapping[str, Layer], part: Part, items: int) -> Terrain:
    """What a few items show, until each layer was reached."""
    found = Terrain()
    for item in range(items):
        if layers.keys() - found.reached():
            given, state, run = part.run(item).begin()
            found.learn(survey(layers, part.modules, partial(run, given), state))
    found.guess(list(layers))
    return found
