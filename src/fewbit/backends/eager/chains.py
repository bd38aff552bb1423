# SPDX-License-Identifier: Apache-2.0
"""Chains: modules of a list that hand a state on, each to the next, found by watching one forward.

What a block is called with (masks, positions, tables of angles) is found without running it: a rehearsal of the model's
own forward in which each block hands on what it was given. No table of architectures says how a block is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call
from fewbit.data.tree import flatten, map_leaves

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Source:
    """A tensor that a block returned, in the place of the tensor; a leaf among others, so no dataclass.

    Args:
        block: its number in the chain.
        path: where in what it returned.
    """

    def __init__(self, block: int, path: str):
        self.key = (block, path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Chain:
    """Blocks that hand a state on.

    Args:
        names: of the blocks, in the order they run.
        modules: the blocks.
        outputs: what each returned to a small item.
        state: where in what each returns the state is.
        entry: where among the arguments of a block the state is.
    """

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    outputs: tuple[Any, ...]
    state: tuple[str, ...]
    entry: str


@dataclass
class _Seen:
    """The calls of one list's modules, in the order they were made; tensors stay alive, so that an `id` is one."""

    order: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def find_chains(model: nn.Module, item: Item) -> list[Chain]:
    """The chains of a model, in the order they run.

    Args:
        model: the model.
        item: what it is called with; a small one is enough.
    """
    lists = dict(_lists(model))
    seen = {name: _Seen() for name in lists}
    handles = [
        handle for name, modules in lists.items() for i, m in enumerate(modules) for handle in _hooks(m, i, seen[name])
    ]
    firsts: list[str] = []
    for name, modules in lists.items():
        handles.append(modules[0].register_forward_pre_hook(lambda *_, name=name: firsts.append(name)))
    try:
        call(model, item)
    finally:
        for handle in handles:
            handle.remove()
    chains = [_chain(name, lists[name], seen[name]) for name in dict.fromkeys(firsts)]
    return [chain for chain in chains if chain is not None]


def rehearse(model: nn.Module, chain: Chain, item: Item, index: int) -> list[Call]:
    """What each block of a chain is called with for an item, with a `Source` where it is what a block returned.

    Args:
        model: the model; what runs before the chain runs.
        chain: one of its chains.
        item: what the model is called with.
        index: the item's number, for messages.
    """
    calls: list[Call] = []
    sources: dict[int, Source] = {}
    alive: list[Any] = []

    def hand_on(place: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            given: Call = (args, kwargs)
            entry = dict(flatten(given))[chain.entry]
            calls.append(map_leaves(lambda leaf: sources.get(id(leaf), leaf), given))
            if place == len(chain.modules) - 1:
                raise _Enough
            made = replaced(chain.outputs[place], {chain.state[place]: entry.detach()})
            alive.append(made)
            sources.update({id(x): Source(place, path) for path, x in flatten(made) if isinstance(x, Tensor)})
            return made

        return forward

    with standing_in(chain.modules, hand_on), suppress(_Enough):
        call(model, item, index)
    return calls


@contextmanager
def finishing(chain: Chain, out: Callable[[], Any]) -> Iterator[None]:
    """Within the block no part of a chain runs: the last one returns what is given."""

    def hand_on(place: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if place == len(chain.modules) - 1:
                return out()
            entry = dict(flatten((args, kwargs)))[chain.entry]
            return replaced(chain.outputs[place], {chain.state[place]: entry})

        return forward

    with standing_in(chain.modules, hand_on):
        yield


@contextmanager
def standing_in(modules: Sequence[nn.Module], make: Callable[[int], Callable[..., Any]]) -> Iterator[None]:
    """Within the block other functions are called in the place of modules; hooks are called as ever."""
    before = [vars(module).get("forward") for module in modules]
    try:
        for place, module in enumerate(modules):
            module.forward = make(place)  # type: ignore[method-assign]
        yield
    finally:
        for module, own in zip(modules, before):
            if own is None:
                vars(module).pop("forward", None)
            else:
                module.forward = own  # type: ignore[method-assign]


class _Enough(BaseException):
    """Ends a rehearsal when there is nothing left to be learned."""


def _lists(model: nn.Module) -> Iterator[tuple[str, list[nn.Module]]]:
    """Lists of modules with matrices of their own; of lists within lists the outer ones."""
    taken: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in taken)
        if inside or not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        parts = list(module)
        if len({id(part) for part in parts}) == len(parts) and all(_has_matrix(part) for part in parts):
            taken.append(name)
            yield name, parts


def _has_matrix(module: nn.Module) -> bool:
    tensors = (*module.parameters(), *module.buffers())
    return any(tensor.ndim > 1 for tensor in tensors)


def _hooks(module: nn.Module, place: int, seen: _Seen) -> list[Any]:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.order.append(place)
        seen.calls.append((args, kwargs))

    def after(module: nn.Module, args: Any, out: Any) -> None:
        seen.outputs.append(out)

    return [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]


def _chain(name: str, modules: list[nn.Module], seen: _Seen) -> Chain | None:
    """The chain of a list's modules; none if they ran in another order, or do not hand on what they return."""
    if seen.order != list(range(len(modules))) or len(seen.outputs) != len(modules):
        return None
    states: list[str] = []
    entries: set[str] = set()
    for out, given in zip(seen.outputs, seen.calls[1:]):
        returned = {id(x): path for path, x in flatten(out) if isinstance(x, Tensor) and x.is_floating_point()}
        handed = [(path, returned[id(x)]) for path, x in flatten(given) if id(x) in returned]
        if not handed:
            return None
        entries.add(handed[0][0])
        states.append(handed[0][1])
    if len(entries) != 1 or entries.isdisjoint(dict(flatten(seen.calls[0]))):
        return None
    names = tuple(f"{name}.{place}".lstrip(".") for place in range(len(modules)))
    last = states[-1]
    if last not in dict(flatten(seen.outputs[-1])):
        return None
    return Chain(names, tuple(modules), tuple(seen.outputs), (*states, last), entries.pop())


def replaced(tree: Any, values: Mapping[str, Any]) -> Any:
    """The same tree with other leaves at some paths; its other tensors as new objects."""
    paths = iter([path for path, _ in flatten(tree)])

    def change(leaf: Any) -> Any:
        path = next(paths)
        return values.get(path, leaf.detach() if isinstance(leaf, Tensor) else leaf)

    return map_leaves(change, tree)
