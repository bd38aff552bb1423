# SPDX-License-Identifier: Apache-2.0
"""What is known of one item at a point, as observers take it: its values, or only what was asked about them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fewbit.model.watch import VALUES
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.observers._base import Observer, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._layout import activation_rows

_BY_FEATURE = Grid(Dtype.int8, QSchemeType.per_channel)


class Batch:
    """What is known of one item at a point.

    Args:
        known: what was asked.
        floats: the values, finite, where they were asked for.
    """

    def __init__(self, known: Mapping[str, Tensor], floats: Tensor | None) -> None:
        self.known, self.floats = known, floats
        self._seen: dict[str, Observer] = {}

    def show(self, observer: Observer, grid: Grid) -> None:
        """Tell an observer of a grid's rows what it needs to know."""
        if VALUES in observer.needs:
            assert self.floats is not None
            observer.observe(activation_rows(self.floats, grid))
        else:
            known = {name: self.known[name] for name in observer.needs}
            observer.absorb({name: activation_rows(x[None], grid) if x.ndim else x for name, x in known.items()})

    def seen_by(self, name: str) -> Observer:
        """An observer of this batch alone, by feature."""
        if name not in self._seen:
            self._seen[name] = observer_class(name)()
            self.show(self._seen[name], _BY_FEATURE)
        return self._seen[name]


class Batches:
    """One batch after the other; layers that read the same tensor (query, key, value) share what is made of it."""

    def __init__(self) -> None:
        self._last = Batch({}, None)
        self._finite = False

    def take(self, known: Mapping[str, Tensor], guard: FiniteGuard, item: int) -> Batch:
        """What is known, held against a point's guard."""
        before = self._last.known
        if before.keys() != known.keys() or any(before[name] is not known[name] for name in known):
            self._last = Batch(known, known[VALUES].float() if VALUES in known else None)
            self._finite = False
        floats = self._last.floats
        if floats is None:
            self._finite = self._finite or guard.look(known, item)
            return self._last
        finite = guard.admit(floats, item)
        return self._last if finite is floats else Batch(known, finite)
