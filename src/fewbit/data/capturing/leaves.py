# SPDX-License-Identifier: Apache-2.0
"""What of a call becomes data: tensors and numbers, found at any depth; the rest is told, not dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewbit.data.tree import flatten, is_tensor
from fewbit.errors import DataError, UsageError


@dataclass(slots=True)
class Leaf:
    """One tensor or number of a call, or the rows of one where a list is the batch.

    Args:
        name: argument and path: `past_key_values.0.key`.
        value: a tensor, an array or a number.
        rows: one value a sample instead, from an argument declared to be a list of samples.
        number: it was a plain Python number.
    """

    name: str
    value: Any = None
    rows: list[Any] | None = None
    number: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with the list's length first where a list is the batch; `()` for a number."""
        return (len(self.rows),) if self.rows is not None else tuple(getattr(self.value, "shape", ()))


@dataclass(slots=True)
class Leaves:
    """What one call held: the data, and what is none."""

    data: list[Leaf] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)


def gather(arguments: Mapping[str, Any], is_list: Callable[[str], bool] = lambda name: False) -> Leaves:
    """The leaves of bound arguments, under dotted names.

    Args:
        arguments: by parameter name.
        is_list: whether an argument is a list with one entry a sample.

    >>> found = gather({"x": {"ids": np.zeros(2)}, "scale": 2.0, "mode": "fast"})
    >>> [leaf.name for leaf in found.data], found.constants
    (['x.ids', 'scale'], {'mode': 'fast'})
    """
    found = Leaves()
    for name, value in arguments.items():
        if type(value).__name__ == "PackedSequence":
            raise UsageError(
                f"argument {name!r} is a PackedSequence, whose rows are not samples",
                try_="capture before packing: pass the padded tensor and the lengths",
            )
        if is_list(name):
            found.data += _rows(name, value)
            continue
        for path, leaf in flatten(value):
            _sort(found, f"{name}.{path}" if path else name, leaf)
    name, times = Counter(leaf.name for leaf in found.data).most_common(1)[0] if found.data else ("", 0)
    if times > 1:
        raise DataError(f"two inputs would both be called {name!r}", try_="rename a key so that paths differ")
    return found


def _sort(found: Leaves, name: str, leaf: Any) -> None:
    number = isinstance(leaf, int | float | complex) and not isinstance(leaf, bool)
    if number and np.asarray(leaf).dtype != object:  # an int beyond 64 bits fits no array
        found.data.append(Leaf(name, np.asarray(leaf), number=True))
    elif is_tensor(leaf):
        found.data.append(Leaf(name, leaf))
    else:
        found.constants[name] = leaf


def _rows(name: str, value: Any) -> list[Leaf]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(
            f"batch_dim says that {name!r} is a list of samples, but it is a {type(value).__name__}",
            expected="an axis number for a tensor, 'list' for a list",
        )
    columns: dict[str, list[Any]] = {}
    for item in value:
        for path, leaf in flatten(item):
            columns.setdefault(f"{name}.{path}" if path else name, []).append(leaf)
    for column, rows in columns.items():
        if len(rows) != len(value) or not all(is_tensor(row) or isinstance(row, int | float) for row in rows):
            raise DataError(
                f"the entries of list {name!r} do not all have a tensor at {column!r}",
                where=f"input {name!r}",
                expected="the same tensors in every entry",
            )
    return [Leaf(column, rows=rows) for column, rows in columns.items()]
