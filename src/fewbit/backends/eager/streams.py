# SPDX-License-Identifier: Apache-2.0
"""What goes through a chain of blocks in one of the models that are walked, and waits between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.chains import Call, Chain, Source, replaced
from fewbit.backends.eager.shelf import Kept, Shelf
from fewbit.data.tree import flatten, map_leaves

Values = dict[Source, Kept]

_ALIKE = 4  # different tensors at one place of the calls that are remembered to be told from a new one


@dataclass
class Stream:
    """One of the two models that are walked.

    Args:
        model: the model.
        shelf: keeps what waits.
        calls: what the blocks of a chain are called with, item by item.
        values: what blocks returned that others will read, item by item.
        last: what the last block of the chain returned, item by item.
    """

    model: nn.Module
    shelf: Shelf
    calls: list[list[Call]] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)

    def begin(self, chain: Chain, calls: Iterable[list[Call]], alike: Alike) -> None:
        """Take what the blocks of a chain will be called with, item by item."""
        self.calls = []
        for mine in calls:
            entry = self.shelf.keep(dict(flatten(mine[0]))[chain.entry])
            self.calls.append([alike(each) for each in (replaced(mine[0], {chain.entry: entry}), *mine[1:])])
        self.values = [{} for _ in self.calls]

    def given(self, item: int, index: int, values: Values | None = None) -> Call:
        """What a block is called with, with `Kept` where that waited.

        Args:
            item: the item's place.
            index: of the block.
            values: what blocks before it returned; what there is by default.
        """
        held = self.values[item] if values is None else values
        made: Call = map_leaves(lambda leaf: held[leaf] if isinstance(leaf, Source) else leaf, self.calls[item][index])
        return made

    def put_away(self, tree: Any) -> Any:
        """A tree with every tensor in it kept."""
        return map_leaves(lambda leaf: self.shelf.keep(leaf) if isinstance(leaf, Tensor) else leaf, tree)

    def hand_on(self, chain: Chain, index: int, values: Sequence[Values], outs: Sequence[Any]) -> None:
        """Keep what blocks to come will read of what a block returned, item by item; its tensors are `Kept`."""
        self.values = [
            _needed(calls[index + 1 :], held, index, out) for calls, held, out in zip(self.calls, values, outs)
        ]
        for calls in self.calls:
            calls[:index] = [((), {})] * index  # nobody asks for these any more
        self.last = list(outs) if index == len(chain.names) - 1 else []


def fetched(tree: Any) -> Any:
    """A tree with the tensors that were kept."""
    return map_leaves(lambda leaf: leaf.get() if isinstance(leaf, Kept) else leaf, tree)


class Alike:
    """Makes one of tensors that are equal: masks and tables of items that are alike are needed once."""

    def __init__(self) -> None:
        self._known: dict[str, list[Tensor]] = {}

    def __call__(self, call: Call) -> Call:
        """The call with tensors that were seen before."""
        paths = iter([path for path, _ in flatten(call)])

        def one(leaf: Any) -> Any:
            path = next(paths)
            if not isinstance(leaf, Tensor):
                return leaf
            known = self._known.setdefault(path, [])
            for other in known:
                if other is leaf or (_form(other) == _form(leaf) and torch.equal(other, leaf)):
                    return other
            known[:] = [leaf, *known[: _ALIKE - 1]]
            return leaf

        made: Call = map_leaves(one, call)
        return made


def _form(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.device


def _needed(calls: Sequence[Call], values: Mapping[Source, Kept], index: int, out: Any) -> Values:
    """What the calls to come will read of what blocks returned."""
    held = {**values, **{Source(index, path): x for path, x in flatten(out) if isinstance(x, Kept)}}
    wanted = {leaf for each in calls for _, leaf in flatten(each) if isinstance(leaf, Source)}
    return {source: held[source] for source in wanted if source.key[0] <= index}
