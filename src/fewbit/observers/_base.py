# SPDX-License-Identifier: Apache-2.0
"""What an observer is: a running statistic of one point that can be merged.

A member is a file with `OBSERVER`, a subclass of `Observer` (or of `RangeObserver`, if it can say a range). Its keyword
arguments are its parameters, each with a default. Every observer keeps three promises, which the contract tests hold
over whatever the registry lists:

- memory does not grow with the data;
- `merge` of the statistics of two parts equals one pass over both, in that order;
- reductions happen where the tensors live; nothing is copied to the host until somebody asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import Tensor

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.numerics.grid import Grid


class Observer(ABC):
    """A statistic over rows: `[R, E]`, one row for each scale, any number of elements a call."""

    name: ClassVar[str]

    @abstractmethod
    def observe(self, rows: Tensor) -> None:
        """Take in one batch: float32 `[R, E]`, finite, `R` the same in every call."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what another observer of the same kind saw after this one."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything seen, as named tensors; empty before the first batch."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""

    @property
    def empty(self) -> bool:
        """Whether nothing was observed yet."""
        return not self.state()


class RangeObserver(Observer):
    """An observer that can say which range a grid should cover."""

    @abstractmethod
    def range(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """The low and high end for each row: two float32 tensors `[R]`, low <= high."""


def observer_class(name: str) -> type[Observer]:
    """The observer a name stands for: a member, or the user's own as `"file.py:Class"`."""
    member: Any = registry.load_reference(name) if registry.is_reference(name) else registry.get("observers", name)
    found = getattr(member, "OBSERVER", member)
    if not (isinstance(found, type) and issubclass(found, Observer)):
        raise UsageError(f"{name!r} is not an observer", expected="a subclass of Observer, or a module with OBSERVER")
    return found
