# SPDX-License-Identifier: Apache-2.0
"""Lists, map-style datasets, iterables and functions that return iterables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fewbit.data.batch import whole_labels
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.errors import DataError, FewbitError


class SequenceSource(Source):
    """Anything with `len` and `[index]`.

    Args:
        sequence: the object.
        batched: whether its elements are items (a list of ready inputs) or samples (a PyTorch dataset).
    """

    def __init__(self, sequence: Any, *, batched: bool):
        super().__init__()
        self._sequence = sequence
        self.batched = batched
        # A list's elements are simply there; anything else may run user code that draws random numbers.
        self._runs_code = not isinstance(sequence, list | tuple)

    def __len__(self) -> int:
        return len(self._sequence)

    def get(self, index: int) -> Any:
        if not self._runs_code:
            return self._sequence[index]
        try:
            with Loan(index).lend():
                return self._sequence[index]
        except FewbitError:
            raise
        except Exception as error:
            raise _failed(self._sequence, index, error) from error

    def place(self, index: int) -> Place:
        return Place(type(self._sequence).__name__, index=index)

    def labels(self) -> Sequence[int] | None:
        """What the datasets of torchvision call `targets`."""
        targets = None if self.batched else getattr(self._sequence, "targets", None)
        return None if targets is None else whole_labels(targets, len(self))


class IterableSource(Source):
    """Anything that can be iterated over again and again; `start` gives a fresh iterable for each pass."""

    def __init__(self, start: Callable[[], Iterable[Any]], *, batched: bool, length: int | None, name: str):
        super().__init__()
        self._start, self._length, self._name = start, length, name
        self.batched = batched

    def __len__(self) -> int:
        if self._length is None:
            return super().__len__()
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return Loan().iterate(self._start, lambda index, error: _failed(self._name, index, error))

    def place(self, index: int) -> Place:
        return Place(self._name, index=index)


def _failed(source: Any, index: int, error: Exception) -> DataError:
    name = source if isinstance(source, str) else type(source).__name__
    return DataError(
        f"{name} raised {type(error).__name__}: {error}",
        code="element-failed",
        where=f"element {index}",
        try_=f"read element {index} by hand: the error comes from inside {name}",
    )
