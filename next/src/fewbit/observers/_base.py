# SPDX-License-Identifier: Apache-2.0
"""The protocol of an observer: a statistic that is updated batch by batch, merged, and stored.

A file here defines `OBSERVER`, a dataclass whose fields are the observer's parameters. It reads rows `[R, E]`: one row
per scale (or per feature), any number of elements per batch, numpy or torch, which stay where they are. Every observer

- needs constant memory, whatever the number of batches;
- gives after `a.merge(b)` what one pass over the data of `a`, then `b`, gives.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from fewbit import registry
from fewbit.errors import UsageError, nearest
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import Array, cast, is_numpy
from fewbit.numerics.quantize import qparams_from_min_max

State = Mapping[str, Array]


@dataclass(kw_only=True, eq=False)
class Observer(ABC):
    """A statistic of rows.

    Attributes:
        name: of the member.
        state_names: the arrays of its state; the first has one entry per row.
        reductions: what a backend may compute of a batch instead of handing over values: `min`, `max`, `sum`,
            `sum_of_squares`; empty if the observer must see the values. See `update_from`.
        granularity: of a public name such as `PerTensorMinMaxObserver`; the spec decides, this is its default.
    """

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    reductions: ClassVar[frozenset[str]] = frozenset()
    granularity: ClassVar[QSchemeType | None] = None

    _state: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            default = type(self).__dataclass_fields__[name].default
            kinds = (int, float) if isinstance(default, float) else (type(default),)
            if type(value) not in kinds:
                raise self._wrong(name, f"a number such as {default!r}")

    @abstractmethod
    def measure(self, rows: Array) -> dict[str, Array]:
        """The state after one batch: float32 `[R, E]`, E above zero."""

    @abstractmethod
    def combine(self, first: State, second: State) -> dict[str, Array]:
        """The state of two parts of the data, the second seen after the first."""

    def measure_reduced(self, reduced: Mapping[str, Array], count: int) -> dict[str, Array]:
        """What `measure` gives, from reductions of a batch."""
        raise NotImplementedError(self.name)

    def update(self, rows: Array) -> None:
        """Observe a batch: finite floats `[R, E]`, R the same in every call; a batch without elements changes nothing.

        Raises:
            UsageError: another shape.
        """
        if rows.ndim != 2:
            raise self._wrong_rows(f"an array of shape {list(rows.shape)}")
        if rows.shape[0] and rows.shape[1]:
            self._add(self.measure(cast(rows if is_numpy(rows) else rows.detach(), "float32")))

    def update_from(self, reduced: Mapping[str, Array], count: int) -> None:
        """Observe a batch of which only reductions are known.

        Args:
            reduced: each of `reductions`, `[R]`.
            count: elements per row that they were taken of.
        """
        if count:
            self._add(self.measure_reduced(reduced, count))

    def merge(self, other: Observer) -> None:
        """Add what another observer of the same kind saw after this one.

        Raises:
            UsageError: another kind, other parameters, another number of rows.
        """
        if (other.name, other.parameters) != (self.name, self.parameters):
            raise UsageError(
                f"{self!r} cannot be merged with {other!r}", code="observers-differ",
                expected="the same observer with the same parameters", hint="observe both parts with one configuration",
            )  # fmt: skip
        if not other.empty:
            self._add(other.state())

    def state(self) -> dict[str, Array]:
        """Everything observed, as copies; empty before the first batch."""
        return {name: np.array(array) if is_numpy(array) else array.clone() for name, array in self._state.items()}

    def load_state(self, state: State) -> None:
        """Replace what was observed by a stored state.

        Raises:
            UsageError: a state of another observer.
        """
        if state and set(state) != set(self.state_names):
            raise UsageError(
                f"not a state of the observer {self.name}: {', '.join(sorted(state))}", code="observer-state",
                expected=", ".join(self.state_names), hint="store it again with this version",
            )  # fmt: skip
        self._state = {name: np.array(array) if is_numpy(array) else array.clone() for name, array in state.items()}

    @property
    def empty(self) -> bool:
        """Whether nothing was observed yet."""
        return not self._state

    @property
    def parameters(self) -> dict[str, Any]:
        """Its parameters by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @property
    def observed(self) -> State:
        """The state itself, not a copy.

        Raises:
            UsageError: nothing was observed.
        """
        if self.empty:
            raise UsageError(
                f"the observer {self.name} has seen no values", code="observer-empty",
                expected="at least one batch", hint="samples that reach the layer, or {ignore} with its name",
            )  # fmt: skip
        return self._state

    def _add(self, state: dict[str, Array]) -> None:
        if self.empty:
            self._state = state
            return
        rows, before = state[self.state_names[0]].shape[:1], self._state[self.state_names[0]].shape[:1]
        if rows != before:  # one row would be broadcast to many
            raise self._wrong_rows(f"{rows[0]} rows after {before[0]}")
        self._state = self.combine(self._state, state)

    def _require(self, name: str, valid: bool, expected: str) -> None:
        """A condition on a parameter."""
        if not valid:
            raise self._wrong(name, expected)

    def _wrong(self, name: str, expected: str) -> UsageError:
        default = type(self).__dataclass_fields__[name].default
        return UsageError(
            f"{name} = {getattr(self, name)!r} for the observer {self.name}", code="observer-parameter", where=name,
            expected=expected, hint=f"observer_parameters={{{name!r}: {default!r}}}",
        )  # fmt: skip

    def _wrong_rows(self, what: str) -> UsageError:
        return UsageError(
            f"the observer {self.name} got {what}", code="observer-rows",
            expected="rows [R, E], one per scale, as many in every batch", hint="`activation_rows` makes them",
        )  # fmt: skip


class RangeObserver(Observer):
    """An observer that chooses the range a grid covers."""

    @abstractmethod
    def range(self, grid: QuantizationGrid, global_scale: Array | None = None) -> tuple[Array, Array]:
        """The low and high end for each row, float32 `[R]`, in the library of the rows.

        Args:
            grid: the range is for.
            global_scale: of a two-level grid, if it is fixed beforehand.
        """

    def qparams(self, grid: QuantizationGrid, blocks: BlockShape, global_scale: Array | None = None) -> QParams:
        """Scales and zero points for a tensor whose blocks are the rows, in their order.

        >>> from fewbit.numerics.dtypes import Dtype
        >>> observer = make_observer("min_max")
        >>> observer.update(np.array([[-1.0, 0.5], [0.0, 2.0]], np.float32))
        >>> observer.qparams(QuantizationGrid(Dtype.int8), BlockShape((2, 2), (1, 2))).scale.shape
        (2, 1)
        """
        low, high = self.range(grid, global_scale)
        return qparams_from_min_max(
            low.reshape(blocks.counts), high.reshape(blocks.counts), grid, blocks.block, global_scale=global_scale
        )


def make_observer(name: str | type, parameters: Mapping[str, Any] | None = None) -> Observer:
    """A new observer from what a spec says.

    Args:
        name: a member, a class, `"module:Class"` that is imported already, or `"file.py:Class"`.
        parameters: of the observer.

    Raises:
        UsageError: an unknown observer or parameter, or a value out of range.

    >>> make_observer("percentile", {"percentile": 99.9}).parameters
    {'bins': 2048, 'percentile': 99.9}
    """
    cls, given = observer_class(name), dict(parameters or {})
    known = [item.name for item in fields(cls) if item.init]
    if unknown := [key for key in given if key not in known]:
        similar = nearest(unknown[0], known)
        raise UsageError(
            f"the observer {cls.name} has no parameter {', '.join(unknown)}", code="observer-parameter",
            where="observer_parameters", expected=", ".join(known) or "none",
            hint=similar[0] if similar else "leave it out",
        )  # fmt: skip
    return cls(**given)


def observer_class(name: str | type) -> type[Observer]:
    """The class of an observer; see `make_observer`.

    >>> observer_class("min_max").name
    'min_max'
    """
    member: Any = name
    if isinstance(name, str) and ".py:" in name:
        from fewbit.data.user_code import load_object

        member = load_object(name, param=None)
    elif isinstance(name, str) and ":" in name:
        module, _, path = name.partition(":")
        member = sys.modules.get(module)
        for part in path.split("."):
            member = getattr(member, part, None)
    elif isinstance(name, str):
        member = registry.get("observers", name)
    if not (isinstance(member, type) and issubclass(member, Observer)):
        raise UsageError(
            f"{name!r} is not an observer", code="observer-class", where="observer_cls",
            expected="a subclass of fewbit.observers._base.Observer", hint="`fewbit list observers` lists the names",
        )  # fmt: skip
    return member


def to_numpy(x: Array) -> np.ndarray:
    """An array in the memory of the processor, as numpy sees it."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def like_rows(values: np.ndarray, x: Array) -> Array:
    """float32 values in the library and on the device of `x`."""
    values = np.ascontiguousarray(values, np.float32)
    return values if is_numpy(x) else sys.modules["torch"].from_numpy(values).to(x.device)
