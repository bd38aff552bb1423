# SPDX-License-Identifier: Apache-2.0
"""PyTorch DataLoaders as sources: every batch by its position, read without starting the loader.

A loader over a map-style dataset is a list of index lists (its batch sampler), a dataset and a `collate_fn`; drawing
the index lists once gives random access to batches, the same order in every pass, and needs no workers. Loaders over
streams, and those with a custom `__iter__`, are read in order and spooled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fewbit.data.spool import Spool
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.data.user_code import user_code
from fewbit.errors import DataError, plural

ROWS_AS_LISTS = IssueType(
    "rows-as-lists", Severity.NOTE, "collate_fn that cannot take tensors",
    "nothing to do; its rows were given as lists of numbers",
)  # fmt: skip


def is_loader(data: Any) -> bool:
    """Whether this is a `torch.utils.data.DataLoader`."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.utils.data.DataLoader)


def loader_batches(loader: Any, report: DataReport) -> tuple[LoaderBatches | Spool, dict[str, Any]]:
    """The batches of a loader by position, and their facts.

    Args:
        loader: a `DataLoader` of any batch size, `None` included.
        report: takes notes.
    """
    data = sys.modules["torch"].utils.data
    if isinstance(loader.dataset, Mapping) and 0 not in loader.dataset:
        # `DataLoader({"input_ids": tensor})` is what people write; PyTorch then asks the dict for the key 0 and fails.
        loader = data.DataLoader(
            Rows(loader.dataset), batch_size=loader.batch_size, shuffle=isinstance(loader.sampler, data.RandomSampler),
            collate_fn=_RowCollate(loader.collate_fn, report), drop_last=loader.drop_last, generator=loader.generator,
        )  # fmt: skip
    facts: dict[str, Any] = {}
    together = loader.batch_sampler is not None  # with batch_size=None elements come as the dataset has them
    if together:
        facts["batched"] = True
        facts |= {"batch_size": loader.batch_size} if loader.batch_size is not None else {}
    custom_iteration = type(loader).__iter__ is not data.DataLoader.__iter__
    if custom_iteration or isinstance(loader.dataset, data.IterableDataset) or not _ends(loader):
        return Spool(lambda: _batches_in_order(loader), type(loader).__name__, report), facts
    batches = LoaderBatches(loader)
    facts["samples"] = sum(map(len, batches.indices)) if together else len(batches)
    return batches, facts


class LoaderBatches(Sequence[Any]):
    """The batches of a loader over a map-style dataset; its sampler is read once, and no random generator moves."""

    def __init__(self, loader: Any):
        self.dataset, self._collate = loader.dataset, loader.collate_fn
        self._together = loader.batch_sampler is not None
        sampler = loader.batch_sampler if self._together else loader.sampler
        with _generators_kept(loader), user_code(type(sampler).__name__):
            self.indices: list[Any] = list(sampler)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        positions = self.indices[index]
        if not self._together:
            return self._collate(self.dataset[positions])
        if callable(fetch := getattr(self.dataset, "__getitems__", None)):
            return self._collate(fetch(positions))
        return self._collate([self.dataset[position] for position in positions])


class Rows(Sequence[Any]):
    """The rows of columns of one length: `{name: column[i]}` of a dict, `(x[i], y[i])` of a tuple.

    >>> rows = Rows({"x": [1, 2], "y": ["a", "b"]})
    >>> len(rows), rows[1], Rows(([1, 2], [3, 4]))[0]
    (2, {'x': 2, 'y': 'b'}, (1, 3))
    """

    def __init__(self, columns: Mapping[Any, Any] | tuple[Any, ...]):
        named = columns if isinstance(columns, Mapping) else dict(enumerate(columns))
        lengths = {name: _length(column) for name, column in named.items()}
        if None in lengths.values() or len(set(lengths.values())) != 1:
            described = [f"{name}: {'no length' if length is None else length}" for name, length in lengths.items()]
            raise DataError(
                f"the columns have no common length: {', '.join(described) or 'there is no column'}",
                code="columns-uneven", where=f"dict of {plural(len(lengths), 'column')}",
                expected="one entry per sample in every column",
                hint="wrap the dict in a list, [inputs], if it is one input of the model",
            )  # fmt: skip
        self._columns, self._as_tuple = dict(named), not isinstance(columns, Mapping)
        self._length = next(iter(lengths.values())) or 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        row = {name: column[index] for name, column in self._columns.items()}
        return tuple(row.values()) if self._as_tuple else row


class _RowCollate:
    """The user's `collate_fn` on rows of columns: tensors first, lists of numbers if it builds tensors from numbers."""

    def __init__(self, function: Callable[[Any], Any], report: DataReport):
        self._function, self._report, self._noted = function, report, False

    def __call__(self, rows: Any) -> Any:
        try:
            return self._function(rows)
        except (TypeError, ValueError) as error:
            try:
                batch = self._function([_as_lists(row) for row in rows] if isinstance(rows, list) else _as_lists(rows))
            except Exception:
                raise error from None  # the error of the rows it was written for
            if not self._noted:
                self._noted = True
                self._report.add(ROWS_AS_LISTS, str(error)[:200], Location("collate_fn"), samples=0)
            return batch


def _batches_in_order(loader: Any) -> Iterator[Any]:
    """One pass over a loader; its generators move only inside a step."""
    generators = _generators(loader)
    states = [generator.get_state() for generator in generators]
    iterator: Iterator[Any] | None = None
    end = object()
    while True:
        with _generators_kept(loader):
            for generator, state in zip(generators, states):
                generator.set_state(state)
            iterator = iter(loader) if iterator is None else iterator
            batch = next(iterator, end)
            states = [generator.get_state() for generator in generators]
        if batch is end:
            return
        yield batch


def _ends(loader: Any) -> bool:
    """Whether the batches, and so the index lists, come to an end."""
    try:
        return len(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler) >= 0
    except (TypeError, NotImplementedError):
        return False


@contextmanager
def _generators_kept(loader: Any) -> Iterator[None]:
    """Give the random generators of a loader their state back afterwards."""
    generators = _generators(loader)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)


def _generators(loader: Any) -> list[Any]:
    """The random generators that belong to the loader, each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    candidates = (getattr(owner, "generator", None) for owner in owners)
    return list({id(generator): generator for generator in candidates if hasattr(generator, "set_state")}.values())


def _length(column: Any) -> int | None:
    """Entries of a column; a text is one value, not a column of letters."""
    try:
        return None if isinstance(column, str | bytes) else len(column)
    except TypeError:  # no container, or a 0-d array
        return None


def _as_lists(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
