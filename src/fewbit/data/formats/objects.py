# SPDX-License-Identifier: Apache-2.0
"""Python objects: PyTorch loaders and datasets, tensors, arrays, lists, dicts of columns, generators, or nothing.

What each is read as:

    DataLoader, list, iterable     items: model inputs as they are, each holding a batch
    tensor or array                samples along the first axis
    dict of columns                samples, one a row
    PyTorch dataset                samples
    list of plain dicts (texts)    samples
    generator, iterator            items, kept on disk so that a second pass sees the same
    function without arguments     items, called anew for each pass
    None                           no samples
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.batch import count_samples
from fewbit.data.describe import describe
from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.formats._base import Match
from fewbit.data.kinds import is_one_shot, is_torch_dataset, is_torch_loader
from fewbit.data.objects.columns import ArraySource, ColumnSource
from fewbit.data.objects.loader import LoaderSource
from fewbit.data.objects.sequence import IterableSource, SequenceSource
from fewbit.data.objects.spool import Spooled
from fewbit.data.sample import Place
from fewbit.data.signature import Signature
from fewbit.data.source import Source, known_length
from fewbit.data.tree import flatten, is_tensor
from fewbit.errors import DataError, UsageError

CODES = {
    "no-samples": Code(Severity.ERROR, "the source yields nothing", "check what it is made from"),
    "element-failed": Code(Severity.ERROR, "reading an element raised an error", "read that element by hand", "raise"),
    "element-differs": Code(
        Severity.WARN, "an element is built differently from the first", "yield the same names and ranks every time"
    ),
    "not-finite": Code(Severity.ERROR, "a tensor holds NaN or infinity", "find the sample that brings it in"),
    "columns-uneven": Code(Severity.ERROR, "columns differ in length", "one entry a sample in every column", "raise"),
    "not-spoolable": Code(Severity.ERROR, "a generator yields what cannot be kept", "pass a list instead", "raise"),
}

_QUICK = 3


def detect(source: object) -> Match | None:
    """Any object that can be iterated over, indexed or called; never a path."""
    if isinstance(source, Path):
        return None
    if isinstance(source, Source):
        return Match(1.0, "already open")
    usable = source is None or is_tensor(source) or isinstance(source, Iterable) or callable(source)
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return Match(0.5, f"a Python {type(source).__name__}") if usable or indexed else None


def read(source: Any, *, split: str | None, task: str | None, policy: Policy) -> Source:
    """Wrap the object; nothing is read from it yet."""
    if split is not None and not (isinstance(source, Source) and split in source.facts.get("splits", ())):
        raise UsageError(
            f"a {type(source).__name__} has no splits", expected="split=None", try_="pass the split's own object"
        )
    if isinstance(source, Source):
        return source
    if source is None:
        return SequenceSource((), batched=False)
    if is_torch_loader(source):
        return LoaderSource(source)
    if is_tensor(source):
        return ArraySource(source)
    if isinstance(source, Mapping):
        return ColumnSource(source)
    if is_one_shot(source):
        return Spooled(source, batched=True)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return SequenceSource(source, batched=not (is_torch_dataset(source) or _plain_rows(source)))
    if isinstance(source, Iterable):
        length = len(source) if isinstance(source, Sized) else None
        return IterableSource(
            lambda: source, batched=not is_torch_dataset(source), length=length, name=type(source).__name__
        )
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return IterableSource(source, batched=True, length=None, name=name)
    raise UsageError(f"a {type(source).__name__} cannot be read as data", expected="something to iterate over")


def _plain_rows(source: Any) -> bool:
    """A list of dicts without a single tensor is a list of rows (texts, labels), and rows are samples."""
    if not isinstance(source, list | tuple) or not source or not isinstance(source[0], Mapping):
        return False
    return not any(is_tensor(leaf) for _, leaf in flatten(source[0]))


def check(source: Any, report: DataReport, *, task: str | None, signature: Signature | None, quick: bool) -> None:
    """Read the elements (the first few when quick) and compare each with the first."""
    if not isinstance(source, Source) and is_one_shot(source):
        raise UsageError(
            "checking a generator would use it up",
            expected="something that can be read twice",
            try_="Dataset(generator)",
        )
    first: dict[str, int] | None = None
    count = samples = 0
    try:
        opened = read(source, split=None, task=task, policy=Policy(CODES))
        elements = islice(opened, _QUICK) if quick else opened
        for index, element in enumerate(report.progress.track(elements, total=known_length(opened), label="reading")):
            count += 1
            samples += count_samples(element) if opened.batched else 1
            tensors = {path: leaf for path, leaf in flatten(element) if is_tensor(leaf)}
            ranks = {path: len(leaf.shape) for path, leaf in tensors.items()}
            if first is None:
                first = ranks
                report.understood["element"] = describe(element)
            elif ranks != first:
                report.add(
                    "element-differs", f"{describe(element)} after {report.understood['element']}", Place(index=index)
                )
            for path, leaf in tensors.items():
                if _not_finite(leaf):
                    report.add(
                        "not-finite", f"{describe(leaf)} holds NaN or infinity", Place(index=index, field=path or None)
                    )
    except DataError as error:
        code = error.code if error.code in CODES else "element-failed"
        report.add(code, f"{error.what} ({error.where})" if error.where else error.what, Place(index=count), error.try_)
        return
    if count == 0 and source is not None:
        report.add("no-samples", f"this {type(source).__name__} yields nothing")
    report.understood.update(
        {("items" if opened.batched else "elements"): count, "samples": samples if not quick else opened.sample_count()}
    )


def _not_finite(leaf: Any) -> bool:
    if hasattr(leaf, "is_floating_point"):
        return bool(leaf.is_floating_point() and not leaf.isfinite().all())
    array = np.asarray(leaf)
    return bool(array.dtype.kind == "f" and not np.isfinite(array).all())
