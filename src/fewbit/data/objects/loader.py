# SPDX-License-Identifier: Apache-2.0
"""A PyTorch loader as a source: its batches as they are, its random state untouched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fewbit.data.objects.columns import ColumnRows
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.errors import DataError


class LoaderSource(Source):
    """The items of a `DataLoader`: each is what `model(item)` takes, and holds a batch of samples.

    A shuffled loader is read in the same order on every pass, and neither PyTorch's global generator nor the
    loader's own one is advanced (PyTorch draws from it even where nothing is shuffled).
    """

    def __init__(self, loader: Any):
        super().__init__()
        over_columns = isinstance(loader.dataset, Mapping) and 0 not in loader.dataset
        self._loader = _over_columns(loader, self._noted) if over_columns else loader
        self.batched = loader.batch_size is not None or loader.batch_sampler is not None or not over_columns

    def _noted(self, reason: str) -> None:
        if not self.record.lines:
            self.record.note("rows-as-lists", reason, where="collate_fn")

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        own = getattr(self._loader, "generator", None)
        loan = Loan(generators=[own] if own is not None else [])
        return loan.iterate(lambda: self._loader, self._failed)

    def _failed(self, index: int, error: Exception) -> DataError:
        return DataError(
            f"the loader raised {type(error).__name__}: {error}",
            code="element-failed",
            where=f"batch {index}",
            expected=f"a batch from {type(self._loader.dataset).__name__}",
            try_="iterate over the loader by hand; its dataset or its collate_fn fails there",
        )

    def place(self, index: int) -> Place:
        return Place(f"{type(self._loader).__name__} batch", index=index)

    def sample_count(self) -> int | None:
        size = getattr(self._loader, "batch_size", None)
        try:
            rows = len(self._loader.dataset)
            return None if size is None else min(rows, size * len(self._loader))
        except TypeError:
            return None


def _over_columns(loader: Any, note: Callable[[str], None]) -> Any:
    """The same loader over the rows of its columns.

    `DataLoader({"input_ids": tensor}, …)` is what people write and what PyTorch cannot read: it asks the dict
    for the key 0. What they mean is one row an index.
    """
    data = sys.modules["torch"].utils.data
    return data.DataLoader(
        ColumnRows(loader.dataset),
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, data.RandomSampler),
        num_workers=loader.num_workers,
        collate_fn=RowCollate(loader.collate_fn, note),
        drop_last=loader.drop_last,
        generator=loader.generator,
    )


class RowCollate:
    """The user's `collate_fn` on rows of columns: on tensors first, on plain lists when it builds from numbers."""

    def __init__(self, function: Callable[[Any], Any], note: Callable[[str], None]):
        self._function, self._note = function, note

    def __call__(self, rows: Any) -> Any:
        try:
            return self._function(rows)
        except (TypeError, ValueError) as error:
            try:
                result = self._function([_plain(row) for row in rows] if isinstance(rows, list) else _plain(rows))
            except Exception:
                raise error from None  # the first try is the one the user wrote for
            self._note(f"collate_fn cannot take tensor rows ({error}); it was given lists of numbers instead")
            return result


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
