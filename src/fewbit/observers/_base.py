# SPDX-License-Identifier: Apache-2.0
"""What an observer is: a running statistic of one point that can be merged.

A member is a file with `OBSERVER`, a subclass of `Observer` (or of `RangeObserver`, if it can say a range). It is a
dataclass; its fields are its parameters, each with a default. It says two things: what one batch alone tells
(`measure`), and how what was seen first and what was seen after go together (`combine`). One that can do without the
values says what it needs to know instead (`needs`, `gather`): a backend then finds that out where the values lie, and
nobody has to move them. Every observer keeps three promises, which the contract tests hold over whatever the registry
lists:

- memory does not grow with the data;
- `merge` of the statistics of two parts equals one pass over both, in that order;
- reductions happen where the tensors live; nothing is copied to the host until somebody asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar

from torch import Tensor

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.model.watch import VALUES
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.grid import Grid

State = Mapping[str, Tensor]


@dataclass(kw_only=True, eq=False)
class Observer(ABC):
    """A statistic over rows: `[R, E]`, one row for each scale, any number of elements a call.

    Attributes:
        name: the member's name.
        keeps: the names of the tensors in its state; the first has an entry a row.
        needs: what it has to know of a batch, of `fewbit.model.watch.NEEDS`.
        granularity: the granularity a public name speaks of; the scheme decides, not the observer.
    """

    name: ClassVar[str]
    keeps: ClassVar[tuple[str, ...]]
    needs: ClassVar[frozenset[str]] = frozenset({VALUES})
    granularity: ClassVar[QSchemeType | None] = None

    _seen: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __init_subclass__(cls, **options: Any) -> None:
        """Whoever looks at the values in another way than the class above has to see them."""
        super().__init_subclass__(**options)
        if "gather" not in vars(cls) and {"measure", "observe"} & vars(cls).keys():
            cls.needs = frozenset({VALUES})

    def __post_init__(self) -> None:
        """Refuse what is not of the type of a parameter's default; who checks more, calls this first."""
        for each in fields(self):
            if not each.init or type(each.default) not in _KINDS:
                continue
            value, (kind, words) = getattr(self, each.name), _KINDS[type(each.default)]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise UsageError(
                    f"{each.name}={value!r} for the observer {self.name!r}",
                    where=each.name,
                    expected=f"{words}, such as {each.default!r}",
                )

    @abstractmethod
    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        """What one batch alone tells: new tensors on the batch's device, one for each name in `keeps`."""

    @abstractmethod
    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        """What two parts tell together, the second seen after the first."""

    def gather(self, found: State) -> dict[str, Tensor]:
        """What `measure` tells, from what is known of a batch without its values; see `absorb`."""
        raise NotImplementedError(f"the observer {self.name!r} has to see the values")

    def observe(self, rows: Tensor) -> None:
        """Take in one batch: `[R, E]`, finite, `R` the same in every call; a batch without elements tells nothing."""
        if rows.ndim != 2 or not rows.is_floating_point():
            raise UsageError(
                f"the observer {self.name!r} got a {rows.dtype} tensor of shape {list(rows.shape)}",
                expected="float rows [R, E], one for each scale",
            )
        if rows.numel():
            self._check_rows(len(rows))
            self._take(rows.detach().float())

    def absorb(self, found: State) -> None:
        """Take in one batch of which only `needs` are known.

        Args:
            found: for each of `needs` the rows `[R, E]`, of positions that are summed up as it says; `count` has no
                axes, and is the number of positions.
        """
        part = self.gather(found)
        self._check_rows(len(part[self.keeps[0]]))
        self._seen = part if self.empty else self.combine(self._seen, part)

    def merge(self, other: Observer) -> None:
        """Take in what another observer of the same kind and parameters saw after this one."""
        if (other.name, other.parameters) != (self.name, self.parameters):
            raise UsageError(
                f"{self!r} cannot take in {other!r}", expected="the same observer with the same parameters"
            )
        if not other.empty:
            self._check_rows(len(other._seen[self.keeps[0]]))
            self._seen = other.state() if self.empty else self.combine(self._seen, other._seen)

    def state(self) -> dict[str, Tensor]:
        """Everything seen, as named tensors that nobody else holds; empty before the first batch."""
        return {name: tensor.clone() for name, tensor in self._seen.items()}

    def load_state(self, state: State) -> None:
        """Go on from a state."""
        if state and set(state) != set(self.keeps):
            raise UsageError(
                f"not a state of the observer {self.name!r}: {', '.join(sorted(state))}",
                expected=", ".join(sorted(self.keeps)),
            )
        self._seen = {name: tensor.clone() for name, tensor in state.items()}

    @property
    def empty(self) -> bool:
        """Whether nothing was observed yet."""
        return not self._seen

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    @property
    def seen(self) -> State:
        """The state itself, for reading; an error before the first batch."""
        if self.empty:
            raise UsageError(
                f"the observer {self.name!r} has seen nothing",
                expected="at least one batch before its result is asked for",
                try_="leave out a layer that the data does not reach, or add samples that reach it",
            )
        return self._seen

    def _check_rows(self, rows: int) -> None:
        # One row would be broadcast against many, without a word.
        if not self.empty and len(self._seen[self.keeps[0]]) != rows:
            raise UsageError(
                f"the observer {self.name!r} got {rows} rows after {len(self._seen[self.keeps[0]])}",
                expected="the same number of rows in every call: one for each scale",
            )

    def _take(self, rows: Tensor) -> None:
        part = self.measure(rows)
        self._seen = part if self.empty else self.combine(self._seen, part)


class RangeObserver(Observer):
    """An observer that can say which range a grid should cover."""

    @abstractmethod
    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """The low and high end for each row: two float32 tensors `[R]`, low <= high."""

    def range_under(self, grid: Grid, super_scale: Tensor) -> tuple[Tensor, Tensor]:
        """The same where the rows are a part of a tensor whose scale above all blocks is settled.

        Args:
            grid: of two levels.
            super_scale: float32 `[]`; whoever looks for a range on the grid itself has to look under this one.
        """
        return self.range(grid)


def observer_class(name: str | type) -> type[Observer]:
    """The observer a name stands for: a member, the user's own `"file.py:Class"`, or `"module:Class"` once imported.

    >>> observer_class("min_max")().parameters
    {}
    """
    member: Any
    if isinstance(name, type):
        member = name
    elif registry.is_reference(name):
        member = registry.load_reference(name)
    else:
        member = registry.find_loaded(name) if ":" in name else registry.get("observers", name)
    found = getattr(member, "OBSERVER", member)
    if not (isinstance(found, type) and issubclass(found, Observer)):
        raise UsageError(f"{name!r} is not an observer", expected="a subclass of Observer, or a module with OBSERVER")
    return found


def range_observers() -> list[str]:
    """The members that can say a range; those that cannot be imported here are left out."""
    found = []
    for name in registry.names("observers"):
        with suppress(Exception):
            if issubclass(observer_class(name), RangeObserver):
                found.append(name)
    return found


# What may stand where a parameter's default does. A whole number is a number too; numpy's count.
_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
}
