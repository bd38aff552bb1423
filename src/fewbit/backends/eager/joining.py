# SPDX-License-Identifier: Apache-2.0
"""Calls of a block put together to one, where they differ in nothing but the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.backends.eager.chains import Call
from fewbit.data.tree import flatten, map_leaves

_PLAIN = (bool, int, float, str, type(None))
_CLOSE = 1e-4  # relative and squared: far above what another order of sums does, far below what another input does


class Joining:
    """Which calls of a block can be made as one.

    Tensors whose first axis is as long as the state's are taken for batches. That it is so is tried out: two calls made
    as one must give what each gives alone.

    Args:
        calls: item by item.
        entry: where among the arguments the state is.
        run: the state that a call returns.
    """

    def __init__(self, calls: Sequence[Call], entry: str, run: Callable[[Call], Tensor]):
        self._calls, self._entry, self._run = calls, entry, run
        self._kinds = self._found()
        for kind in set(self._kinds):
            same = [item for item, other in enumerate(self._kinds) if other == kind]
            if len(same) > 1 and not self._joins(same[:2]):
                for item in same:
                    self._kinds[item] = len(calls) + item

    def groups(self, items: Sequence[int]) -> list[list[int]]:
        """The items whose calls can be made as one, together."""
        found: dict[int, list[int]] = {}
        for item in items:
            found.setdefault(self._kinds[item], []).append(item)
        return list(found.values())

    def answers(self, items: Sequence[int]) -> list[Tensor]:
        """The states that the calls of a group return, made as one."""
        out = self._run(self._joined(items))
        return list(out.chunk(len(items)))

    def _joined(self, items: Sequence[int]) -> Call:
        if len(items) == 1:
            return self._calls[items[0]]
        batch = len(self._state(items[0]))
        leaves = [[leaf for _, leaf in flatten(self._calls[item])] for item in items]
        joined = iter([torch.cat(same) if _has_batch(same[0], batch) else same[0] for same in map(list, zip(*leaves))])
        made: Call = map_leaves(lambda leaf: next(joined), self._calls[items[0]])
        return made

    def _found(self) -> list[int]:
        """For each call the first one that differs from it only in what has a batch."""
        firsts: list[int] = []
        kinds = []
        for item in range(len(self._calls)):
            first = next((other for other in firsts if self._alike(other, item)), item)
            if first == item:
                firsts.append(item)
            kinds.append(first)
        return kinds

    def _alike(self, one: int, other: int) -> bool:
        batch = len(self._state(one))
        a, b = flatten(self._calls[one]), flatten(self._calls[other])
        return len(a) == len(b) and all(p == q and _same(x, y, batch) for (p, x), (q, y) in zip(a, b))

    def _joins(self, pair: Sequence[int]) -> bool:
        alone = [self._run(self._calls[item]).float() for item in pair]
        try:
            both = [answer.float() for answer in self.answers(pair)]
        except (RuntimeError, ValueError, IndexError):  # a shape that was no batch's
            return False
        if any(a.shape != b.shape for a, b in zip(alone, both)):
            return False
        off = sum(float((a - b).square().sum()) for a, b in zip(alone, both))
        return off <= _CLOSE * sum(float(a.square().sum()) for a in alone)

    def _state(self, item: int) -> Tensor:
        state: Tensor = dict(flatten(self._calls[item]))[self._entry]
        return state


def _has_batch(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == batch


def _same(x: Any, y: Any, batch: int) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        form = x.shape == y.shape and x.dtype == y.dtype
        return form and (_has_batch(x, batch) or x is y or torch.equal(x, y))
    return x is y or (type(x) is type(y) and isinstance(x, _PLAIN) and x == y)
