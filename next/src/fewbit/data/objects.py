# SPDX-License-Identifier: Apache-2.0
"""Objects in memory as sources. Elements come as they are: what a loader yields is what a transform is given.

    DataLoader                          its batches; `facts["batched"]` if it has a batch size
    tensor, array                       samples along the first axis
    dict of columns, `BatchEncoding`    one sample per row
    tuple of arrays of one length       one sample per row: `(x[i], y[i])`
    list, PyTorch dataset               its elements
    generator, stream, `tf.data`        its elements, kept in a temporary file as they are read
    function                            what it returns, read as one of these
    Hugging Face dataset                its rows, see `formats/huggingface.py`
    fewbit `Dataset`                    its samples

`facts["batched"]` says whether an element is a model input with a batch axis; it is missing if that is unknown.
Elements are never cut: only their author knows which axis is the batch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.spool import SPOOLED, Spool, is_tensor
from fewbit.data.torch_loader import ROWS_AS_LISTS, Rows, is_loader, loader_batches
from fewbit.data.types import DataReport, Depth, Issue, IssueType, Location, SampleError, Severity, Source
from fewbit.data.user_code import USER_CODE, call, user_code
from fewbit.errors import DataError, FewbitError, UsageError, plural

NO_SAMPLES = IssueType("no-samples", Severity.ERROR, "no sample", "check what it is made from", "raise")
ELEMENT_DIFFERS = IssueType(
    "element-differs", Severity.WARNING, "element that is built differently from the first",
    "yield the same names and numbers of axes every time",
)  # fmt: skip
NOT_FINITE = IssueType(
    "not-finite", Severity.ERROR, "NaN or infinity", "find what brings it in, or leave the sample out", "keep",
    ("raise",),
)  # fmt: skip
TEXTS = IssueType(
    "list-of-texts", Severity.NOTE, "list of strings", "nothing to do if they are texts; {data} takes one path"
)
READER_YIELDS = IssueType(
    "reader-yields", Severity.ERROR, "reader that yields something other than a dict", "yield a dict per sample",
    "raise",
)  # fmt: skip
ISSUES = (NO_SAMPLES, ELEMENT_DIFFERS, NOT_FINITE, TEXTS, READER_YIELDS, SPOOLED, ROWS_AS_LISTS, USER_CODE)

_MOST_NESTED = 8
_VERB_OPTIONS = ("task", "text_column", "label_column")
"""Options that the verbs use, for every source."""
_LABELS = ("label", "labels", "target")


def object_source(
    data: Any,
    report: DataReport,
    options: Mapping[str, Any] | None = None,
    *,
    depth: Depth = "index",
    name: str | None = None,
    path: str = "",
) -> Source:
    """A source over an object.

    Args:
        data: see the table above.
        report: takes issues; its `data_format` is set.
        options: `split` and `task`; the arguments of a function; the options of rows for Hugging Face datasets.
        depth: `full` reads every element and compares it with the first.
        name: what errors call it; its type by default.
        path: what a reader function made it from, whose elements must be dicts.

    Raises:
        DataError: it holds no samples.
    """
    options = dict(options or {})
    if data is None or hasattr(data, "read"):
        raise _unknown(data)
    if isinstance(data, Iterator) and depth == "full":
        raise UsageError(
            "checking a generator would use it up", code="generator-once", param="data",
            expected="something that can be read twice", hint="give a list, or a function that returns the generator",
        )  # fmt: skip
    for _ in range(_MOST_NESTED):
        if not _is_function(data):
            break
        arguments = {key: value for key, value in options.items() if key not in ("split", *_VERB_OPTIONS)}
        options = {key: value for key, value in options.items() if key not in arguments}
        name = name or getattr(data, "__name__", None)
        data = call(data, arguments, param="data")
    if _is_instance(data, "datasets", "Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"):
        from fewbit.data.formats.huggingface import scan_object

        return scan_object(data, report, depth=depth, options=options)
    _refuse_options(data, options)
    if isinstance(data, Source):  # a `Dataset` too
        report.data_format = getattr(getattr(data, "report", None), "data_format", report.data_format)
        return data
    source = _object_source(data, report, name or type_name(data), path)
    if depth == "full":
        check_elements(source, report)
    elif not source.is_stream and not len(source):
        report.add(NO_SAMPLES, f"{source.name} is empty", samples=0)
    return source


def type_name(data: Any) -> str:
    """What messages call an object: the name of a function, else its type."""
    return str(getattr(data, "__name__", None) or type(data).__name__)


def _object_source(data: Any, report: DataReport, name: str, path: str) -> ObjectSource:
    """Elements by position, with what is known of them."""
    facts: dict[str, Any] = {}
    runs_code, items = False, data
    if is_loader(data):
        items, facts = loader_batches(data, report)
        runs_code = True
    elif _is_array(data):
        if not len(data.shape):
            raise DataError(
                "an array without axes holds no samples", code="columns-uneven", where=name,
                expected="samples along the first axis", hint="array[None] is one sample",
            )  # fmt: skip
        facts = {"batched": False}
    elif isinstance(data, Mapping) or _is_instance(data, "pandas", "DataFrame"):
        columns = data if isinstance(data, Mapping) else {str(key): data[key].to_numpy() for key in data.columns}
        items, facts = Rows(columns), {"batched": False, "columns": [str(key) for key in columns]}
    elif _are_columns(data):
        items, facts = Rows(data), {"batched": False}
    elif isinstance(data, list | tuple):
        _note_texts(data, report)
        facts = {"batched": False} if _are_rows(data) else {}
    elif isinstance(data, str | bytes | type):
        raise _unknown(data)
    else:
        facts = {"batched": False} if _is_torch(data, "Dataset") else {}
        if _is_map_style(data):
            runs_code = True
        elif isinstance(data, Iterable):
            items = Spool(lambda: data, name, report)  # which runs the code itself
        else:
            raise _unknown(data)
    labels, classes = _labels(data)
    if labels is not None and len(labels) == len(items):
        facts |= {"strata": "class"} if classes is None else {"classes": classes}
        return ObjectSource(items, facts, name, path, runs_code=runs_code, labels=labels)
    return ObjectSource(items, facts, name, path, runs_code=runs_code)


class ObjectSource:
    """Elements by position.

    Args:
        items: a sequence, or a spooled stream, whose length is known once it has been read to its end.
        facts: what is known of the elements.
        name: for errors.
        path: what a reader function made them from; then each must be a dict.
        runs_code: whether reading an element runs code of the user, which then draws from private random generators.
        labels: the class of each element, if the object lists them.
    """

    def __init__(
        self,
        items: Any,
        facts: dict[str, Any],
        name: str,
        path: str = "",
        *,
        runs_code: bool = False,
        labels: Sequence[Any] | None = None,
    ):
        self._items, self.name, self._path, self._runs_code = items, name, path, runs_code
        self.facts = {**facts, "batched": False} if path else facts  # a reader yields samples
        self._labels = labels
        self.is_stream = isinstance(items, Spool)
        if self.is_stream:
            self.has = items.has  # so that reading in order does not ask for the length first

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        if self._runs_code:
            with user_code(self.name, index=index):
                element = self._items[index]
        else:
            element = self._items[index]
        if self._path and not isinstance(element, Mapping):
            message = f"{self.name} yields a {type(element).__name__}"
            raise SampleError(Issue(READER_YIELDS, message, self.location(index)))
        return element

    def location(self, index: int) -> Location:
        """Its number."""
        return Location(self._path, row=index, index=index) if self._path else Location(index=index)

    def strata(self) -> Sequence[Any] | None:
        """The class of each element, if the object lists them."""
        return self._labels


def check_elements(source: Source, report: DataReport) -> None:
    """Read every element and compare it with the first; issues go into the report."""
    has = getattr(source, "has", None)  # of a stream
    indices: Iterator[int] = iter(range(len(source))) if has is None else takewhile(has, count())
    first: dict[str, int] | None = None
    samples = 0
    while True:
        try:
            index = next(indices, None)
            if index is None:
                break
            element = source[index]
        except SampleError as error:
            report.add_error(error)
            if has is not None:
                break  # a stream that failed has no next element
            continue
        samples += 1
        arrays = dict(_arrays("", element, 0))
        ranks = {path: len(array.shape) for path, array in arrays.items()}
        first = ranks if first is None else first
        if ranks != first:
            text = f"{_describe_ranks(ranks)}, the first has {_describe_ranks(first)}"
            report.add(ELEMENT_DIFFERS, text, source.location(index))
        for path, array in arrays.items():
            if not _is_finite(array):
                file = source.location(index).file
                report.add(NOT_FINITE, "in an array", Location(file, index=index, field=path or None))
    if has is not None:
        report.facts["samples"] = samples
    if not samples and not report.errors:
        report.add(NO_SAMPLES, "it yields nothing", samples=0)


def count_samples(source: Source, report: DataReport) -> None:
    """Write the number of samples into the report, unless a stream would have to be read to its end for it."""
    if "samples" not in report.facts and SPOOLED.code not in report.counts:
        batches = isinstance(source, ObjectSource) and "samples" in source.facts
        report.facts["samples"] = source.facts["samples"] if batches else len(source)


def _arrays(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every array in a nested value with its path."""
    if _is_array(value):
        yield path, value
    elif isinstance(value, Mapping | list | tuple) and depth <= _MOST_NESTED:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value[:64]):
            yield from _arrays(f"{path}.{key}" if path else str(key), item, depth + 1)


def _is_finite(array: Any) -> bool:
    if is_tensor(array):
        return bool(not array.is_floating_point() or array.isfinite().all())
    values = np.asarray(array)
    return bool(values.dtype.kind != "f" or np.isfinite(values).all())


def _describe_ranks(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{path or 'an array'} of {plural(rank, 'axis')}" for path, rank in ranks.items()) or "no array"


def _is_instance(data: Any, module: str, *classes: str) -> bool:
    """Whether this is an object of a library, which is not imported for it."""
    library = sys.modules.get(module)
    return isinstance(data, tuple(getattr(library, name) for name in classes if hasattr(library, name)))


def _is_torch(data: Any, name: str) -> bool:
    return _is_instance(data, "torch.utils.data", name)


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "dtype")


def _is_map_style(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _is_torch(data, "IterableDataset")


def _is_function(data: Any) -> bool:
    """Whether to call it: a function or a callable that is nothing else."""
    something_else = isinstance(data, Iterable | type) or _is_map_style(data) or _is_array(data)
    return callable(data) and not something_else and not hasattr(data, "facts")


def _are_columns(data: Any) -> bool:
    """Whether a tuple is `(x, y)`: two or more arrays with as many entries each; a list would be samples."""
    if type(data) is not tuple or len(data) < 2 or not all(_is_array(column) and len(column.shape) for column in data):
        return False
    return len({int(column.shape[0]) for column in data}) == 1


def _are_rows(data: Sequence[Any]) -> bool:
    """Whether elements are texts, or dicts without a single array: samples as a table has them."""
    first = data[0] if data else None
    return isinstance(first, str) or (isinstance(first, Mapping) and not any(_arrays("", first, 0)))


def _note_texts(data: Sequence[Any], report: DataReport) -> None:
    """Strings are read as texts, which is worth a note; a list of paths is nothing that can be read."""
    first = data[:100]
    if not first or not all(isinstance(item, str | Path) for item in first):
        return
    if all(isinstance(item, Path) or re.fullmatch(r"\S{1,200}\.\w{2,7}|\w+://\S+", item) for item in first):
        raise UsageError(
            f"a list of {plural(len(data), 'path')}, such as {str(data[0])[:100]!r}", code="data-paths", param="data",
            expected="one path, or a list of samples", hint="give their folder, or a table with a column of paths",
        )  # fmt: skip
    report.add(TEXTS, f"read as {plural(len(data), 'text')}, one sample each", samples=0)


def _labels(data: Any) -> tuple[list[Any] | None, list[str] | None]:
    """The class of each element, and the names of the classes, where an object lists them."""
    if _is_torch(data, "Subset"):
        labels, classes = _labels(data.dataset)
        return None if labels is None else [labels[index] for index in data.indices], classes
    if _is_torch(data, "Dataset"):
        names = getattr(data, "classes", None)
        numbers = _plain(getattr(data, "targets", None))
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):  # as torchvision has them
            in_range = numbers is not None and all(isinstance(n, int) and 0 <= n < len(names) for n in numbers)
            return [names[number] for number in numbers or ()] if in_range else None, list(names)
        column = getattr(data, "tensors", (None,))[-1]
    elif isinstance(data, Mapping):
        column = next((data[name] for name in _LABELS if name in data), None)
    elif _are_columns(data):
        column = data[-1]
    elif isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        column = [item.get("label") if isinstance(item, Mapping) else None for item in data]
    elif isinstance(data, list) and all(isinstance(item, tuple) and len(item) == 2 for item in data):
        column = [item[1] for item in data]
    else:
        return None, None
    values = _plain(column)
    return values if values and all(isinstance(value, int | str) for value in values) else None, None


def _plain(column: Any) -> list[Any] | None:
    """A column as a list of Python values."""
    values = column.tolist() if hasattr(column, "tolist") else column
    return values if isinstance(values, list) else None


def _refuse_options(data: Any, options: Mapping[str, Any]) -> None:
    from fewbit.data.opening import check_options

    if "split" in options:
        raise UsageError(
            f"a {type(data).__name__} has no splits", code="split-unknown", param="split", expected="no split",
            hint="give the object of that split",
        )  # fmt: skip
    check_options([name for name in options if name not in _VERB_OPTIONS], (), "an object")


def _unknown(data: Any) -> FewbitError:
    if data is None:
        return UsageError(
            "there is no data: None", code="data-none", param="data", expected="a path or an object that holds samples",
            hint="check what returned None",
        )  # fmt: skip
    open_file = hasattr(data, "read")
    return DataError(
        f"an {'open file' if open_file else 'object'} of type {type(data).__name__} holds no samples",
        code="object-unknown", param="data",
        expected="a path, a list, an array, a dict of columns, a DataLoader, a dataset, a generator or a function",
        hint="give its path" if open_file else "give a list of samples",
    )  # fmt: skip
