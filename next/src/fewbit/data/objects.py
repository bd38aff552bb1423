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

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.spool import SPOOLED, Spool, is_tensor
from fewbit.data.torch_loader import ROWS_AS_LISTS, DictRows, is_loader, loader_batches
from fewbit.data.types import DataReport, Depth, IssueType, Location, SampleError, Severity, Source
from fewbit.data.user_code import USER_CODE, call, user_code
from fewbit.errors import DataError, UsageError, plural

NO_SAMPLES = IssueType("no-samples", Severity.ERROR, "no sample", "check what it is made from", "raise")
ELEMENT_DIFFERS = IssueType(
    "element-differs", Severity.WARNING, "element that is built differently from the first",
    "yield the same names and numbers of axes every time",
)  # fmt: skip
NOT_FINITE = IssueType(
    "not-finite",
    Severity.ERROR,
    "NaN or infinity",
    "find what brings it in, or leave the sample out",
    "keep",
    ("raise",),
)
ISSUES = (NO_SAMPLES, ELEMENT_DIFFERS, NOT_FINITE, SPOOLED, ROWS_AS_LISTS, USER_CODE)

_MOST_NESTED = 8
_INNER = ("_source", "_items", "_rows", "table", "_spool")
"""Attributes in which sources of this package store their inner source."""
_IGNORED_OPTIONS = ("text_column", "label_column")
"""Options that the verbs use, for every source."""


def object_source(
    data: Any,
    report: DataReport,
    options: Mapping[str, Any] | None = None,
    *,
    depth: Depth = "index",
    name: str | None = None,
) -> Source:
    """A source over an object.

    Args:
        data: see the table above.
        report: takes issues; its `data_format` is set.
        options: `split` and `task`; the arguments of a function; the options of rows for Hugging Face datasets.
        depth: `full` reads every element and compares it with the first.
        name: what errors call it; its type by default.

    Raises:
        DataError: it holds no samples.
    """
    settings = dict(options or {})
    one_shot = isinstance(data, Iterator)
    if one_shot and depth == "full":
        raise UsageError(
            "checking a generator would use it up", code="generator-once", param="data",
            expected="something that can be read twice", hint="give a list, or a function that returns the generator",
        )  # fmt: skip
    return _open(data, report, settings, depth, name, 0)


def _open(
    data: Any, report: DataReport, options: dict[str, Any], depth: Depth, name: str | None, nested: int
) -> Source:
    from fewbit.data.dataset import Dataset

    if _is_huggingface(data):
        from fewbit.data.formats.huggingface import scan_object

        return scan_object(data, report, depth=depth, options=options)
    if isinstance(data, Dataset):
        report.data_format = data.report.data_format
        return DatasetSource(data)
    if _is_function(data):
        if nested > _MOST_NESTED:
            raise _unknown(data)
        arguments = {key: value for key, value in options.items() if key not in ("task", "split", *_IGNORED_OPTIONS)}
        result = call(data, arguments, param="data")
        remaining = {key: value for key, value in options.items() if key not in arguments}
        return _open(result, report, remaining, depth, name or getattr(data, "__name__", None), nested + 1)
    _refuse_options(data, options)
    if isinstance(data, Source):
        return data
    name = name or type(data).__name__
    items, facts, runs_code = _elements(data, report, name)
    if labels := _class_names(data):
        facts["classes"] = labels
    elements = ObjectSource(items, facts, name, runs_code=runs_code, targets=_targets(data, items))
    if depth == "full":
        check_elements(elements, report)
    elif not isinstance(items, Spool) and not len(items) and data is not None:
        report.add(NO_SAMPLES, f"{name} is empty", samples=0)
    return elements


def _elements(data: Any, report: DataReport, name: str) -> tuple[Any, dict[str, Any], bool]:
    """Elements by position, their facts, and whether reading one runs code of the user."""
    if data is None:
        return (), {}, False
    if is_loader(data):
        batches, facts = loader_batches(data, report)
        return batches, facts, True
    if is_tensor(data) or isinstance(data, np.ndarray | np.generic) or _is_array(data):
        if not len(data.shape):
            raise DataError(
                "an array without axes holds no samples", code="columns-uneven", where=name,
                expected="samples along the first axis", hint="array[None] is one sample",
            )  # fmt: skip
        return data, {"batched": False}, False
    if isinstance(data, Mapping) or _is_frame(data):
        columns = data if isinstance(data, Mapping) else {str(key): data[key].to_numpy() for key in data.columns}
        return DictRows(columns), {"batched": False, "columns": [str(key) for key in columns]}, False
    if _are_columns(data):
        return TupleRows(data), {"batched": False}, False
    if isinstance(data, list | tuple):
        return data, {"batched": False} if _are_rows(data) else {}, False
    if _is_map_style(data):
        return data, {"batched": False} if _is_torch_dataset(data) else {}, True
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        facts = {"batched": False} if _is_torch_dataset(data) else {}
        return Spool(lambda: data, name, report), facts, False  # the spool runs the code
    raise _unknown(data)


class ObjectSource:
    """Elements by position.

    Args:
        items: a sequence, or a spooled stream, whose length is known once it has been read to its end.
        facts: what is known of the elements.
        name: of the object's type, for errors.
        runs_code: whether reading an element runs code of the user, which then draws from private random generators.
        targets: the class number of each element, if the object lists them.
    """

    def __init__(
        self,
        items: Any,
        facts: dict[str, Any],
        name: str,
        *,
        runs_code: bool = False,
        targets: Sequence[int] | None = None,
    ):
        self._items, self.facts, self._name, self._runs_code = items, facts, name, runs_code
        self._targets = targets
        if isinstance(items, Spool):
            self.has = items.has  # so that reading in order does not ask for the length first

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        if not self._runs_code:
            return self._items[index]
        with user_code(self._name, index=index):
            return self._items[index]

    def location(self, index: int) -> Location:
        """Its number."""
        return Location(index=index)

    def strata(self) -> Sequence[Any] | None:
        """The class of each element, if the object lists them."""
        if self._targets is None:
            return None
        classes = self.facts.get("classes")
        return [classes[number] if classes else number for number in self._targets]


class DatasetSource:
    """The samples of a `Dataset`: its order, through its transform."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    @property
    def facts(self) -> Mapping[str, Any]:
        """Those of its source."""
        facts: Mapping[str, Any] = self._dataset.facts
        return facts

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        location: Location = self._dataset.location(index)
        return location

    def strata(self) -> Sequence[Any] | None:
        """Those of the dataset."""
        strata: Sequence[Any] | None = self._dataset.strata()
        return strata


class TupleRows(Sequence[Any]):
    """The rows of several arrays of one length, as tuples."""

    def __init__(self, columns: Sequence[Any]):
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        return tuple(column[index] for column in self._columns)


def check_elements(source: Source, report: DataReport) -> None:
    """Read every element and compare it with the first; issues go into the report."""
    first: dict[str, int] | None = None
    index = samples = 0
    while True:
        try:
            element = source[index]
        except IndexError:
            break
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            index += 1
            if len_or_none(source) is None:
                break  # a stream that failed has no next element
            continue
        arrays = dict(_arrays("", element, 0))
        ranks = {path: len(array.shape) for path, array in arrays.items()}
        if first is None:
            first = ranks
        elif ranks != first:
            report.add(
                ELEMENT_DIFFERS,
                f"{_describe_ranks(ranks)}, the first has {_describe_ranks(first)}",
                source.location(index),
            )
        for path, array in arrays.items():
            if not _is_finite(array):
                location = source.location(index)
                report.add(NOT_FINITE, "in an array", Location(location.file, index=index, field=path or None))
        index += 1
        samples += 1
        if (length := len_or_none(source)) is not None and index >= length:
            break
    if len_or_none(source) is None:  # a stream that failed
        report.facts.setdefault("samples", samples)
    if not samples and not report.errors:
        report.add(NO_SAMPLES, "it yields nothing", samples=0)


def count_samples(source: Source, report: DataReport) -> None:
    """Write the number of samples into the report, unless a stream would have to be read to its end for it."""
    samples = source.facts.get("samples") if isinstance(source, ObjectSource) else None
    samples = len_or_none(source) if samples is None else samples
    if samples is not None:
        report.facts.setdefault("samples", samples)


def len_or_none(source: Source) -> int | None:
    """The length, if it is known without reading a stream to its end."""
    inner: Any = source
    while inner is not None:
        if isinstance(inner, Spool):
            return inner.known_length
        inner = next((vars(inner)[name] for name in _INNER if name in getattr(inner, "__dict__", ())), None)
    return len(source)


def _arrays(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every array in a nested value with its path."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        yield path, value
    elif depth > _MOST_NESTED or isinstance(value, str | bytes):
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(f"{path}.{key}" if path else str(key), item, depth + 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value[:64]):
            yield from _arrays(f"{path}.{number}" if path else str(number), item, depth + 1)


def _is_finite(array: Any) -> bool:
    if is_tensor(array):
        return bool(not array.is_floating_point() or array.isfinite().all())
    values = np.asarray(array)
    return bool(values.dtype.kind != "f" or np.isfinite(values).all())


def _describe_ranks(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{path or 'an array'} of {plural(rank, 'axis')}" for path, rank in ranks.items()) or "no array"


def _is_huggingface(data: Any) -> bool:
    """Whether this is a dataset of the `datasets` library, which is not imported for it."""
    datasets = sys.modules.get("datasets")
    kinds = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    return isinstance(data, tuple(getattr(datasets, name) for name in kinds if hasattr(datasets, name)))


def _is_function(data: Any) -> bool:
    """Whether to call it: a function or a callable that is nothing else."""
    if not callable(data) or isinstance(data, Mapping | Sequence | Iterable) or _is_map_style(data):
        return False
    return not (hasattr(data, "shape") and hasattr(data, "dtype")) and not hasattr(data, "facts")


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "dtype") and hasattr(data, "__array__") and hasattr(data, "__len__")


def _is_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _are_columns(data: Any) -> bool:
    """Whether a tuple is `(x, y)`: two or more arrays with as many entries each; a list would be samples."""
    if type(data) is not tuple or len(data) < 2:
        return False
    if not all(hasattr(column, "shape") and hasattr(column, "dtype") and len(column.shape) for column in data):
        return False
    return len({int(column.shape[0]) for column in data}) == 1


def _are_rows(data: Sequence[Any]) -> bool:
    """Whether elements are texts, or dicts without a single array: samples as a table has them."""
    if not data or not isinstance(data[0], Mapping | str):
        return False
    return isinstance(data[0], str) or not any(True for _ in _arrays("", data[0], 0))


def _is_map_style(data: Any) -> bool:
    if isinstance(data, str | bytes | type) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return False
    torch = sys.modules.get("torch")
    return torch is None or not isinstance(data, torch.utils.data.IterableDataset)


def _is_torch_dataset(data: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.utils.data.Dataset)


def _class_names(data: Any) -> list[str] | None:
    """Names of the classes, as datasets of torchvision have them."""
    names = getattr(data, "classes", None) if _is_torch_dataset(data) else None
    return list(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _targets(data: Any, items: Any) -> list[int] | None:
    """Class numbers, as datasets of torchvision list them."""
    if not _class_names(data):
        return None
    targets: Any = getattr(data, "targets", None)
    numbers = targets.tolist() if hasattr(targets, "tolist") else targets
    if not isinstance(numbers, list) or len(numbers) != len(items):
        return None
    count = len(data.classes)
    return numbers if all(isinstance(number, int) and 0 <= number < count for number in numbers) else None


def _refuse_options(data: Any, options: Mapping[str, Any]) -> None:
    if "split" in options:
        raise UsageError(
            f"a {type(data).__name__} has no splits", code="split-unknown", param="split", expected="no split",
            hint="give the object of that split",
        )  # fmt: skip
    unknown = [name for name in options if name not in ("task", *_IGNORED_OPTIONS)]
    if unknown:
        raise UsageError(
            f"an object has no option {unknown[0]!r}", code="data-option-unknown", param="data_option",
            expected="no options", hint="options belong to files, and to functions that take arguments",
        )  # fmt: skip


def _unknown(data: Any) -> DataError:
    return DataError(
        f"an object of type {type(data).__name__} holds no samples", code="object-unknown", param="data",
        expected="a path, a list, an array, a dict of columns, a DataLoader, a dataset, a generator or a function",
        hint="give a list of samples",
    )  # fmt: skip
