# SPDX-License-Identifier: Apache-2.0
"""Second moments of what the layers of a stage read, summed item by item where the tensors lie.

gram      Σ x xᵀ, x in the model as it is by now
cross     Σ x' xᵀ, x' what the float model has in its place; weight times this is Σ y' xᵀ, y' the output that is wanted
answer    for a layer whose output is added to a state, Σ (y' + d) xᵀ in its place, d what that state lacks to be the
          float model's: a layer that answers so makes up for what all layers before it did
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fewbit.engine.collect import is_held_out
from fewbit.model.walking import Inputs
from fewbit.model.watch import COUNT, SQUARE, SUM
from fewbit.observers._base import Observer
from fewbit.observers.gram import GramObserver
from fewbit.observers.moments import MomentsObserver

_SIDES = {False: "teach", True: "aside"}
_TILE, _TILES = 512, 4  # features; and how many tiles a product is worth cutting into


@dataclass
class Moments:
    """The sums over some items.

    Args:
        gram: `[in, in]`; where it is wide, only what `second_moment` needs of it.
        cross: `[in, in]`; none where the float model was not walked, or the answer is known.
        answer: `[out, in]`; none where the output is not added to a state.
        sum: `[in]`.
        count: of positions.
    """

    gram: Tensor
    cross: Tensor | None
    answer: Tensor | None
    sum: Tensor
    count: Tensor

    def add(self, given: Inputs, aim: Tensor | None = None) -> None:
        """One more item, and what the layer shall answer to it, if that is known."""
        x = given.found
        for rows in _tiles(len(self.gram)):  # the rest is the same mirrored
            add_product(self.gram[rows, : rows.stop], x[:, rows], x[:, : rows.stop])
        if self.answer is not None and aim is not None:
            add_product(self.answer, aim, x)
        elif self.cross is not None and given.wanted is not None:
            add_product(self.cross, given.wanted, x)
        self.sum += x.sum(0, dtype=torch.float64)
        self.count += len(x)

    def tensors(self) -> dict[str, Tensor]:
        """The sums there are, by name."""
        return {name: x for name, x in vars(self).items() if x is not None}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Moments:
        """The inverse of `tensors`."""
        return cls(**{name: tensors.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]

    def absorb(self, other: Moments) -> None:
        """The sums over the items of both from now on; what only one of the two has is of no use and goes."""
        mine, theirs = self.tensors(), other.tensors()
        for name in mine.keys() | theirs.keys():
            setattr(self, name, mine[name].add_(theirs[name]) if name in mine and name in theirs else None)

    def second_moment(self) -> Tensor:
        """The whole Σ x xᵀ."""
        if len(_tiles(len(self.gram))) == 1:
            return self.gram
        lower = self.gram.tril()
        return lower.add_(lower.tril(-1).T)

    def wanted(self, weight: Tensor) -> Tensor | None:
        """Σ y xᵀ, y the output that is wanted of a layer with this weight, `[out, in]`."""
        return self.answer if self.answer is not None else None if self.cross is None else weight.float() @ self.cross

    def observers(self) -> dict[str, Observer]:
        """What an algorithm asks for by the names of observers."""
        gram, moments = GramObserver(), MomentsObserver()
        gram.load_state({"gram": self.second_moment(), "count": self.count})
        moments.load_state({SUM: self.sum, SQUARE: self.gram.diagonal().double(), COUNT: self.count})
        return {"gram": gram, "moments": moments}


@dataclass
class Gathered:
    """Moments of one stage: of the items that teach (false), and of those kept aside (true).

    Args:
        sides: the moments.
        experts: of a stack of experts, those of each instead.
        shared: what algorithms find out from them, and is the same for all layers of the stage.
        others: where it is of the tokens of others, as a layer was sent too few: how many these were.
    """

    sides: dict[bool, Moments] = field(default_factory=dict)
    experts: dict[int, Gathered] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    others: int | None = None

    def add(self, given: Inputs, weight: Tensor | None = None) -> None:
        """One more item.

        Args:
            given: what the layers read.
            weight: of the layer, `[out, in]`, where it is the only one: what it shall answer can be said then.
        """
        if given.expert is not None:
            self.experts.setdefault(given.expert, Gathered()).add(replace(given, expert=None))
            return
        aim, side = _aim(given, weight), is_held_out(given.item)
        if side not in self.sides:
            self.sides[side] = _empty(given, aim)
        self.sides[side].add(given, aim)

    def absorb(self, other: Gathered) -> None:
        """The moments of the items of both from now on; the other is not to be used any more."""
        for aside, sums in other.sides.items():
            if aside in self.sides:
                self.sides[aside].absorb(sums)
            else:
                self.sides[aside] = sums
        for expert, each in other.experts.items():
            self.experts.setdefault(expert, Gathered()).absorb(each)

    @property
    def tokens(self) -> int:
        """How many positions teach."""
        return int(self.sides[False].count) if False in self.sides else 0

    def copy(self) -> Gathered:
        """The same in memory of its own."""
        return Gathered.of({name: x.clone() for name, x in self.tensors().items()})

    def pooled(self) -> Gathered:
        """What all experts of a stack read."""
        found = Gathered()
        for _, each in sorted(self.experts.items()):
            found.absorb(each.copy())
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, as a file keeps them or a worker sends them."""
        named = ((_SIDES[aside], sums.tensors()) for aside, sums in self.sides.items())
        found = {f"{side}.{name}": x for side, sums in named for name, x in sums.items()}
        return found | {f"{n}.{key}": x for n, each in self.experts.items() for key, x in each.tensors().items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Gathered:
        """The inverse of `tensors`."""
        made = cls()
        for aside, side in _SIDES.items():
            mine = {key.removeprefix(f"{side}."): x for key, x in tensors.items() if key.startswith(f"{side}.")}
            if mine:
                made.sides[aside] = Moments.of(mine)
        experts: dict[int, dict[str, Tensor]] = {}
        for key, x in tensors.items():
            first, _, rest = key.partition(".")
            if first.isdigit():
                experts.setdefault(int(first), {})[rest] = x
        made.experts = {number: cls.of(mine) for number, mine in experts.items()}
        return made


def _aim(given: Inputs, weight: Tensor | None) -> Tensor | None:
    """What a layer would have to answer for the state it is added to to be the float model's, `[positions, out]`."""
    if weight is None or given.wanted is None or given.state is None or given.wanted_state is None:
        return None
    wanted = given.wanted @ weight.to(given.wanted.dtype).T
    return wanted.float().add_(given.wanted_state).sub_(given.state)


def _empty(given: Inputs, aim: Tensor | None) -> Moments:
    width, place = given.found.shape[1], given.found.device

    def zeros(height: int) -> Tensor:
        return torch.zeros(height, width, device=place)

    return Moments(
        zeros(width),
        None if given.wanted is None or aim is not None else zeros(width),
        None if aim is None else zeros(aim.shape[1]),
        torch.zeros(width, dtype=torch.float64, device=place),
        torch.zeros((), dtype=torch.int64, device=place),
    )


def _tiles(width: int) -> list[slice]:
    """Rows of a symmetric product that are computed together, each up to the diagonal."""
    count = max(1, min(width // _TILE, _TILES))
    size = -(-width // count)
    return [slice(start, min(start + size, width)) for start in range(0, width, size)]


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add aᵀ b to a float32 tensor; accumulated in float32, on tensor cores where both are of a half type."""
    if b.is_cuda and b.dtype in (torch.float16, torch.bfloat16):
        total += torch.mm(a.to(b.dtype).T, b, out_dtype=torch.float32)
    else:
        total.addmm_(a.float().T, b.float())
