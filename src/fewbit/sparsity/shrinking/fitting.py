# SPDX-License-Identifier: Apache-2.0
"""Numbers that a module keeps of its own shapes, found by trying.

A forward may reshape by `self.num_heads` or split by `self.hidden`. Which numbers follow the channels nobody says; so
those that are equal to a size that changed are tried, the fewest first, and the answers decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from torch import nn

from fewbit.sparsity.shrinking.groups import Group

Change = tuple[str, str, int, int]
"""The class of a module, the name of its attribute, the number it holds, the number it shall hold."""

_TRIES = 512
_OWN = ("training", "in_features", "out_features", "in_channels", "out_channels", "groups", "num_features")


@dataclass(frozen=True)
class Sizes:
    """The sizes that change where some classes of a group are taken out.

    Args:
        before: how many classes there are.
        after: how many are left.
        widths: of the axes along which they are made.
    """

    before: int
    after: int
    widths: tuple[int, ...]

    def new(self, value: int, *, far: bool) -> int | None:
        """What becomes of a number that may be one of these sizes; none if it is not, or does not change.

        Args:
            value: the number.
            far: whether any multiple of the number of classes will do, such as the query heads of a few keys.
        """
        each = {self.before, *self.widths, *(width * self.before // min(self.widths) for width in self.widths)}
        fits = value in each or (far and 0 < value <= max(self.widths) and value % self.before == 0)
        return value * self.after // self.before if fits and self.before != self.after else None


def sizes(groups: Sequence[Group], gone: set[int]) -> list[Sizes]:
    """The sizes that change, each once."""
    found = set()
    for group in groups:
        left = len(set(group.classes) - gone)
        if left < len(group.classes):
            found.add(Sizes(len(group.classes), left, tuple(sorted(len(member.classes) for member in group.makers))))
    return sorted(found, key=str)


def candidates(model: nn.Module, groups: Sequence[Group], gone: set[int], *, far: bool) -> list[Change]:
    """The numbers in modules around what is cut that are equal to a size that changes."""
    found: set[Change] = set()
    for group in groups:
        known = sizes([group], gone)
        around = {outer for member in group.members for outer in _lineage(member.tensor)} if known else set()
        for name in around:
            module = model.get_submodule(name)
            for attribute, value in vars(module).items():
                if type(value) is int and attribute not in _OWN and not attribute.startswith("_"):
                    new = known[0].new(value, far=far)
                    found |= {(type(module).__name__, attribute, value, new)} if new is not None else set()
    return sorted(found)


def tries(found: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Sets of changes to try, the smallest first, no number twice; first none at all."""
    sets = (each for count in range(len(found) + 1) for each in combinations(found, count))
    return islice((each for each in sets if len({change[:3] for change in each}) == len(each)), _TRIES)


def apply(model: nn.Module, changes: Sequence[Change]) -> Callable[[], None]:
    """Change numbers in every module of a class; returns what changes them back."""
    undo: list[tuple[nn.Module, str, int]] = []
    wanted: Mapping[tuple[str, str, int], int] = {(kind, name, old): new for kind, name, old, new in changes}
    for module in model.modules():
        for (kind, name, old), new in wanted.items():
            if type(module).__name__ == kind and vars(module).get(name) == old:
                undo.append((module, name, old))
                setattr(module, name, new)

    def back() -> None:
        for module, name, old in undo:
            setattr(module, name, old)

    return back


def _lineage(tensor: str) -> list[str]:
    """Every module a tensor lies in: of `a.b.weight`, `a.b`, `a` and the whole."""
    parts: list[Any] = tensor.split(".")[:-1]
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
