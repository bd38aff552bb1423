# SPDX-License-Identifier: Apache-2.0
"""A PyTorch loader as a source: its batches as they are, its random state untouched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fewbit.data.batch import whole_labels
from fewbit.data.objects.columns import ColumnRows
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place
from fewbit.data.source import Source
from fewbit.data.stratified import are_classes, seeded_order
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

    @property
    def is_shuffled(self) -> bool:
        """Whether the loader draws samples at random."""
        data = sys.modules["torch"].utils.data
        sampler = getattr(self._loader.batch_sampler, "sampler", self._loader.sampler)
        return isinstance(sampler, data.RandomSampler | data.SubsetRandomSampler | data.WeightedRandomSampler)

    def reordered(self, n: int | None, by_item: bool, seed: int) -> Source | None:
        """A loader like this one over a random sample of its dataset, in batches of the same size.

        Only where this one reads an indexed dataset from its first to its last sample; any other way to choose samples
        is the user's own. Loaders that are read whole keep their batches.
        """
        data, loader = sys.modules["torch"].utils.data, self._loader
        batching = loader.batch_sampler
        sampler: Any = loader.sampler if batching is None else getattr(batching, "sampler", None)
        plain = batching is None or type(batching) is data.BatchSampler
        if type(loader) is not data.DataLoader or not plain or type(sampler) is not data.SequentialSampler:
            return None
        size = 1 if batching is None else batching.batch_size
        rows = min(len(sampler), len(loader) * size)  # fewer where the last batch is dropped
        wanted = rows if n is None else min(n * size if by_item else n, rows)
        if wanted == rows and size > 1:
            return None
        order = seeded_order(rows, wanted, self._classes(rows), seed, size)
        batches = [order[start : start + size] for start in range(0, wanted, size)]
        made = _Rebatched(
            data.DataLoader(
                loader.dataset,
                **({"batch_size": None, "sampler": order} if batching is None else {"batch_sampler": batches}),
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=loader.generator,
                prefetch_factor=loader.prefetch_factor,
            ),
            batched=self.batched,
        )
        made.facts, made.record = self.facts, self.record
        return made

    def _classes(self, rows: int) -> list[int] | None:
        """The class of each of the first rows of the dataset, where it has `targets`, as those of torchvision do."""
        targets = getattr(self._loader.dataset, "targets", None)
        labels = None if targets is None else whole_labels(targets, len(self._loader.dataset))
        return None if labels is None or not are_classes(labels) else labels[:rows]

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


class _Rebatched(LoaderSource):
    """A loader over samples that were drawn from another's dataset."""

    def __init__(self, loader: Any, *, batched: bool):
        super().__init__(loader)
        self.batched = batched

    def _failed(self, index: int, error: Exception) -> DataError:
        found = super()._failed(index, error)
        advice = (
            "samples are drawn from the whole dataset: use a collate_fn that pads them to one size, or batch_size=1"
        )
        return DataError(
            found.what,
            code=found.code,
            where=f"{found.where} of samples drawn at random",
            expected=found.expected,
            try_=f"{found.try_}; {advice}",
        )


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
