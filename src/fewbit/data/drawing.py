# SPDX-License-Identifier: Apache-2.0
"""A subset of a dataset: a random sample of the whole source by a fixed seed, stratified by class where known.

Data lies sorted more often than not: class folders one after the other, rows by date. Its first few hundred samples say
nothing about the rest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.batch import count_samples
from fewbit.data.dataset import Dataset
from fewbit.data.source import Source, known_length
from fewbit.data.stratified import are_classes, is_held_out, seeded_order
from fewbit.data.views import Picked, View
from fewbit.record import Record

SEED = 0
"""Fixed: the same call reads the same samples, in every process."""
FEW = 32
"""Calibration on fewer samples is warned of."""
WARNINGS = ("few-samples", "few-classes", "head-only")
"""Lines of a record about what was read that users are warned of."""
_WINDOW = 4
"""Of a loader that can only be iterated, at most so many times the wanted items are read, and the others skipped."""


@dataclass(frozen=True)
class Origin:
    """Where a subset comes from.

    Args:
        items: the number of elements of the whole source; `None` if that is not known.
        samples: the number of its samples; `None` if that is not known.
        rows: of text, the number of rows.
        seed: of the random choice; `None` where the source's own order was kept.
        labels: the class of each chosen element, in order; `None` if the source does not say.
        classes: the number of classes, or their names.
        head: why only the beginning of the source was read, if so.
        batch_size: how many elements an item holds, of which some are held out.
        in_order: whether elements come in the order of the source, and that is not known to be random.
    """

    items: int | None = None
    samples: int | None = None
    rows: int | None = None
    seed: int | None = None
    labels: Sequence[int] | None = None
    classes: Sequence[str] | int = 0
    head: str | None = None
    batch_size: int = 1
    in_order: bool = False


class Drawn(View):
    """The chosen elements; counts what is read of them. Items are never cut.

    Args:
        inner: the elements, in the order they are read in.
        limit: how many are read; `None` for all.
        by_item: whether `limit` counts elements; if not it counts samples, and the item that reaches it is the last.
        origin: of the elements.

    Attributes:
        items: how many elements were read, by the longest pass so far.
        samples: how many samples they held.
    """

    def __init__(self, inner: Source, limit: int | None, *, by_item: bool, origin: Origin):
        super().__init__(inner)
        self.origin = origin
        self.items = self.samples = 0
        self._limit, self._by_item = limit, by_item or not inner.batched
        self._stopped = False

    @property
    def whole(self) -> Source | None:
        """The source itself, if all of it is read."""
        if self._limit is not None:
            return None
        shuffled = self.origin.seed is not None and isinstance(self.inner, Picked)
        return self.inner.inner if shuffled else self.inner  # type: ignore[attr-defined]

    @property
    def items_in_order(self) -> int | None:
        """How many elements are read at most, where they come in the order of the source and that is known."""
        inner = self.inner
        count = inner.items_in_order if isinstance(inner, Drawn) else known_length(inner)
        if not self.origin.in_order:
            return None
        return min(count, self._limit) if count is not None and self._limit is not None and self._by_item else count

    @property
    def random_access(self) -> bool:
        return self.inner.random_access and known_length(self) is not None

    def __len__(self) -> int:
        count = len(self.inner)
        if self._limit is None:
            return count
        return min(self._limit, count) if self._by_item else super().__len__()

    def __iter__(self) -> Iterator[Any]:
        samples = 0
        for items, element in enumerate(self.inner, 1):
            samples += max(1, count_samples(element)) if self.batched else 1
            self.items, self.samples = max(self.items, items), max(self.samples, samples)
            yield element
            if self._limit is not None and (items if self._by_item else samples) >= self._limit:
                self._stopped = True
                return

    def get(self, index: int) -> Any:
        return self.inner.get(index)

    def place(self, index: int) -> Any:
        return self.inner.place(index)

    def labels(self) -> Sequence[int] | None:
        return self.origin.labels

    def sample_count(self) -> int | None:
        return None if self.batched else known_length(self)

    def report(self, record: Record, *, calibrates: bool = False) -> None:
        """Write into a record what was read; to be called after the data was read.

        Args:
            record: its facts get a `subset`, its lines what to be warned of.
            calibrates: whether ranges or weights depend on these samples, so that few of them are worth a warning.
        """
        origin = self.origin
        facts: dict[str, Any] = {
            "samples": self.samples, "items": self.items, "samples_in_source": origin.samples,
            "items_in_source": origin.items, "seed": origin.seed,
        }  # fmt: skip
        if origin.rows is not None:
            facts["rows_in_source"] = origin.rows
        record.facts["subset"] = facts
        if calibrates and self.samples < FEW:
            count = f"{self.samples} sample{'' if self.samples == 1 else 's'}"
            reason = f"calibrated on {count} only: use {FEW} or more, a few hundred are usual"
            record.note("few-samples", reason, samples=self.samples, least=FEW)
        if origin.labels is not None:
            read = list(map(int, origin.labels[: self.items]))
            counts = Counter(read)
            held_out = Counter(each for i, each in enumerate(read) if is_held_out(i // origin.batch_size))
            names = None if isinstance(origin.classes, int) else origin.classes
            there = origin.classes if isinstance(origin.classes, int) else len(origin.classes)
            facts["classes"] = {_name(each, names): counts[each] for each in sorted(counts)}
            facts["held_out_classes"] = {_name(each, names): held_out[each] for each in sorted(held_out)}
            facts["classes_in_source"] = there
            if 2 * len(counts) < there:
                reason = f"the samples that were read are of {len(counts)} of {there} classes: read more samples"
                record.note("few-classes", reason, classes=len(counts), classes_in_source=there)
        if origin.head is not None and self._stopped:
            record.note("head-only", origin.head, samples=self.samples, items=self.items)


def draw(dataset: Dataset, n: int | None, *, by_item: bool = False, seed: int = SEED, batch_size: int = 1) -> Dataset:
    """A subset that stands for the whole dataset: a random sample, its order random too.

    Held-out items are every n-th of a subset, and their classes are in proportion as well. What has no known length is
    read from its beginning, and the record says so. Torch loaders that read a dataset in order are made to read a
    random sample of it in batches of the same size; other loaders are iterated over and items are skipped.

    Args:
        dataset: samples or items.
        n: how many; `None` for all of them, in the order of the source if that has no random access.
        by_item: whether `n` counts the items of a source that gives batches, and not the samples in them.
        seed: of the choice.
        batch_size: how many samples without a batch axis an item holds.
    """
    source = dataset.source
    if isinstance(source, Drawn) and (whole := source.whole) is not None:
        source = whole
    if isinstance(source, Drawn):
        return dataset if n is None else Dataset(Drawn(source, n, by_item=by_item, origin=source.origin))
    count = known_length(source)
    samples = source.sample_count()
    size = 1 if source.batched else batch_size
    if count is not None and source.random_access:
        labels, classes = _classes(source, count)
        order = seeded_order(count, count if n is None else n, labels, seed, size)
        chosen = None if labels is None else [labels[index] for index in order]
        origin = Origin(count, samples, seed=seed, labels=chosen, classes=classes, batch_size=size)
        return Dataset(Drawn(Picked(source, order), n, by_item=by_item, origin=origin))
    in_order = not source.is_shuffled
    if n is None:
        return Dataset(Drawn(source, None, by_item=by_item, origin=Origin(count, samples, in_order=in_order)))
    other = source.reordered(n, by_item, seed)
    if other is not None:
        origin = Origin(count, samples, rows=other.facts.get("rows"), seed=seed)
        return Dataset(Drawn(other, n, by_item=by_item, origin=origin))
    wanted = n if by_item or not source.batched else _items_for(source, n)
    if source.is_shuffled or (count is not None and count <= wanted):
        return Dataset(Drawn(source, n, by_item=by_item, origin=Origin(count, samples, in_order=in_order)))
    if count is None:
        noun = "items" if by_item and source.batched else "samples"
        reason = f"stream: the first {n} {noun} were read, not a sample of the whole"
        return Dataset(Drawn(source, n, by_item=by_item, origin=Origin(count, samples, head=reason)))
    window = min(count, _WINDOW * wanted)
    head = None if window == count else f"loader: items up to {window} of {count} were read, not a sample of the whole"
    picked = Picked(source, sorted(random.Random(seed).sample(range(window), wanted)))
    origin = Origin(count, samples, seed=seed, head=head, in_order=True)
    return Dataset(Drawn(picked, n, by_item=by_item, origin=origin))


def _items_for(source: Source, samples: int) -> int:
    """How many items hold so many samples, if all are like the first."""
    first = next(iter(source), None)
    return -(-samples // max(1, count_samples(first)))


def _classes(source: Source, count: int) -> tuple[Sequence[int] | None, Sequence[str] | int]:
    """The class of every element, and the names or the number of the classes."""
    labels, names = source.labels(), source.facts.get("classes")
    if labels is None or (not names and not are_classes(labels)):
        return None, 0
    return labels, names or len(set(labels))


def items_in_order(dataset: Dataset, batch_size: int) -> int | None:
    """How many items a subset that `draw` made gives at most, if they come in the order of the source; else `None`."""
    found = dataset.source.items_in_order if isinstance(dataset.source, Drawn) else None
    return found if found is None or dataset.batched else -(-found // batch_size)


def report_subset(dataset: Dataset, record: Record, *, calibrates: bool = False) -> None:
    """Write into a record what was read of a dataset, if it is a subset that `draw` made; see `Drawn.report`."""
    if isinstance(dataset.source, Drawn):
        dataset.source.report(record, calibrates=calibrates)


def _name(label: int, names: Sequence[str] | None) -> str:
    return str(names[label]) if names is not None and 0 <= label < len(names) else str(label)
