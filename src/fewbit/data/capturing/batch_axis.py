# SPDX-License-Identifier: Apache-2.0
"""Which axis of each input counts the samples.

Unless the user declares it, axis 0 does, for inputs whose axis 0 has the size N that the call's inputs have in
common. Matrices and larger decide on N; vectors only when there is nothing else, since a vector is as often
positions as it is lengths. An axis of 1 beside a larger N is a broadcast: every sample gets its only row. Any
other size is not a batch axis: the whole input goes into every sample. What an input turned out to be holds for
later calls, so that a batch that happens to be as long as a sequence cannot change the reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError, UsageError

Declared = int | str | None
Shapes = Mapping[str, tuple[int, ...]]
Note = Callable[[str, str, str], None]


class BatchAxes:
    """The batch axes of the inputs of one module, learned from its calls.

    Args:
        batch_dim: an axis for all inputs; or, by input name, argument name or pattern, an axis, `None` (no batch axis:
            copy it whole) or `"list"` (a list with one entry a sample). Undeclared inputs start from axis 0.
        note: told a code, a reason and an input's name when a reading deserves to be known.

    >>> axes = BatchAxes(0, lambda *words: None)
    >>> axes.assign({"x": (8, 3, 4), "mask": (1, 1, 4), "scale": ()})
    (8, {'x': 0, 'mask': 0, 'scale': None})
    """

    def __init__(self, batch_dim: Declared | Mapping[str, Declared], note: Note):
        self._declared = dict(batch_dim) if isinstance(batch_dim, Mapping) else {"*": batch_dim}
        for name, axis in self._declared.items():
            if not (axis is None or axis == "list" or (isinstance(axis, int) and not isinstance(axis, bool))):
                raise UsageError(f"batch_dim[{name!r}] is {axis!r}", expected="an axis number, None or 'list'")
        self._explicit = isinstance(batch_dim, Mapping)
        self._note = note
        self._batched: set[str] = set()
        self._shared: set[str] = set()

    def is_list(self, argument: str) -> bool:
        """Whether an argument was declared to be a list with one entry a sample."""
        return self._axis(argument)[0] == "list"

    def check_names(self, known: set[str]) -> None:
        """Refuse a declared name that no argument or input has."""
        for name in self._declared:
            pattern = any(letter in name for letter in "*?[")
            if not pattern and name not in known and name.split(".")[0] not in known:
                raise UsageError(
                    f"batch_dim names {name!r}, which is no input of this model",
                    expected=f"some of: {', '.join(sorted(known))}",
                )

    def assign(self, shapes: Shapes, lists: Mapping[str, int] | None = None) -> tuple[int, dict[str, int | None]]:
        """The number of samples in a call, and each input's batch axis; `None` means: whole into every sample.

        Args:
            shapes: of the inputs, in the order of the signature.
            lists: lengths of the inputs that come as lists.

        Raises:
            DataError: inputs declared or known to be batched disagree about their number.
        """
        axes: dict[str, int | None] = {}
        sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            axes[name] = self._position(name, shape)
            if (axis := axes[name]) is not None:
                sizes[name] = shape[axis]
        count = self._count(shapes, sizes, lists or {})
        for name, size in sizes.items():
            if not self._splits(name, size, count):
                axes[name] = None
        return count, axes

    def _axis(self, name: str) -> tuple[Declared, bool]:
        """The declared axis of an input, and whether the user meant this input."""
        for key, axis in self._declared.items():
            if name == key or name.startswith(f"{key}."):
                return axis, True
        for key, axis in self._declared.items():
            if fnmatchcase(name, key):
                return axis, self._explicit
        return 0, False

    def _position(self, name: str, shape: tuple[int, ...]) -> int | None:
        axis, meant = self._axis(name)
        if not isinstance(axis, int):
            return None
        if -len(shape) <= axis < len(shape):
            return axis % len(shape)
        if meant:
            raise DataError(f"input {name!r} of shape {list(shape)} has no axis {axis}", try_="correct batch_dim")
        return None

    def _count(self, shapes: Shapes, sizes: dict[str, int], lists: Mapping[str, int]) -> int:
        meant = {name: size for name, size in sizes.items() if self._axis(name)[1]} | dict(lists)
        known = {name: size for name, size in sizes.items() if name in self._batched}
        if meant or known:
            return _agreed(meant or known)
        free = {name: size for name, size in sizes.items() if name not in self._shared}
        voters = [size for name, size in free.items() if len(shapes[name]) >= 2] or list(free.values())
        return _most_common(voters)

    def _splits(self, name: str, size: int, count: int) -> bool:
        if size == count and name in self._shared:
            reason = f"{size} entries on its axis are taken for no batch, as in earlier calls"
            self._note("axis-coincidence", reason, name)
            return False
        if size == count:
            if count > 1:
                self._batched.add(name)
            return True
        if size == 1 and name not in self._shared:
            reason = f"an axis of 1 beside {count} samples: its only row goes into every sample"
            self._note("axis-broadcast", reason, name)
            return True
        if name in self._batched or self._axis(name)[1]:
            raise DataError(
                f"input {name!r} has {size} entries on its batch axis in a call of {count} samples",
                code="batch-mismatch",
                where=f"input {name!r}",
                expected=f"{count}, or 1 to be broadcast",
                try_=f"batch_dim={{{name!r}: None}} if it has no batch axis, or the number of the right axis",
            )
        self._shared.add(name)
        reason = f"{size} entries on axis 0 where the batch has {count}: copied whole into every sample"
        self._note("axis-shared", f"{reason}; declare batch_dim if it has a batch axis", name)
        return False


def _agreed(sizes: Mapping[str, int]) -> int:
    found = {size for size in sizes.values() if size != 1}
    if len(found) > 1:
        first = next(size for size in sizes.values() if size != 1)
        odd = next(name for name, size in sizes.items() if size not in (1, first))
        raise DataError(
            "the inputs do not agree about the number of samples",
            code="batch-mismatch",
            where=", ".join(f"{name}: {size}" for name, size in sizes.items()),
            try_=f"batch_dim={{{odd!r}: None}} if {odd!r} has no batch axis, else its number",
        )
    return found.pop() if found else 1


def _most_common(sizes: list[int]) -> int:
    """The size most inputs share; an axis of 1 counts only where most have it and the first input too."""
    larger = Counter(size for size in sizes if size != 1)
    if not larger:
        return 1
    size, votes = larger.most_common(1)[0]  # of equals, the first one met
    return 1 if sizes[0] == 1 and sizes.count(1) > votes else size


@dataclass(slots=True)
class Column:
    """One input or output of a call on the host: an array with its batch axis, or one array a sample.

    >>> Column(0, np.array([[1, 2], [3, 4]])).row(1)
    array([3, 4])
    """

    axis: int | None
    array: NDArray[Any] | None = None
    rows: list[NDArray[Any]] | None = None

    def row(self, index: int) -> NDArray[Any]:
        """One sample's part: its row, the only row of a broadcast, or the whole where there is no axis."""
        part = self.array if self.rows is None else self.rows[index]
        if self.axis is not None and part is not None:
            part = part[(slice(None),) * self.axis + (index if part.shape[self.axis] != 1 else 0,)]
        return np.asarray(part)
