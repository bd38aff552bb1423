# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:NAME` as data, and as a format.

def samples():                       # --data mine.py:samples; a list, a dataset or a loader needs no function
    yield {"x": np.zeros(3)}

def tiles(path, scale=1):            # --data FOLDER --data-format mine.py:tiles --data-option scale=2
    for file in sorted(path.glob("*.tile")):
        yield {"pixels": read(file) * scale, "label": 3}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.data.objects import object_source
from fewbit.data.types import (
    DataReport,
    Depth,
    Format,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
    Source,
)
from fewbit.data.user_code import call, load_object
from fewbit.errors import UsageError

READER_YIELDS = IssueType(
    "reader-yields",
    Severity.ERROR,
    "reader that yields something other than a dict",
    "yield a dict per sample",
    "raise",
)


def user_source(reference: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """What `FILE.py:NAME` names, read as an object; a function is called with the options it takes.

    Args:
        reference: as the user wrote it.
        report: takes issues.
        depth: see `Format.scan`.
        options: arguments of the function.
    """
    data = load_object(reference, param="data")
    report.data_format = "objects"
    return object_source(data, report, options, depth=depth, name=reference.rpartition(":")[2])


def user_format_source(
    data: str, reference: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]
) -> Source:
    """A path, read by a function of the user that takes it and yields dicts.

    Args:
        data: the path; a URL is passed on as text.
        reference: `FILE.py:NAME` of the function, or of a `Format`.
        report: takes issues.
        depth: see `Format.scan`.
        options: further arguments of the function.
    """
    from fewbit.data.opening import locate, missing_path

    reader = load_object(reference, param="data_format")
    report.data_format = reference
    if isinstance(reader, Format):
        source: Source = reader.scan(locate(data, report), report, depth=depth, options=options)
        return source
    if not callable(reader):
        raise UsageError(
            f"{reference} is not a dataset format", code="data-format-unknown", param="data_format",
            expected="a function that takes a path and yields dicts", hint="{data=FILE.py:NAME} reads an object itself",
        )  # fmt: skip
    path: Any = data if "://" in data else Path(data).expanduser()
    if isinstance(path, Path) and not path.exists():
        raise missing_path(data, path)
    takes = inspect.signature(reader).parameters
    arguments = {name: value for name, value in options.items() if name not in ("task", "split") or name in takes}
    name = reference.rpartition(":")[2]
    samples = call(reader, arguments, path, param="data_format")
    if samples is None:
        raise SampleError(Issue(READER_YIELDS, f"{name} returns nothing", Location(data)))
    source = object_source(_again(samples), report, depth=depth, name=name)
    return Dicts(source, data, name)


def _again(samples: Any) -> Any:
    """What a reader returned; its generator is ours to read, so it may be used up by a check."""
    return (lambda: samples) if hasattr(samples, "__next__") else samples


class Dicts:
    """Samples of a reader function, each of which must be a dict."""

    def __init__(self, source: Source, path: str, name: str):
        self._source, self._path, self._name = source, path, name

    @property
    def facts(self) -> Mapping[str, Any]:
        """Those of what it returned; samples have no batch axis."""
        return {**self._source.facts, "batched": False}

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        sample = self._source[index]
        if not isinstance(sample, Mapping):
            message = f"{self._name} yields a {type(sample).__name__}"
            raise SampleError(Issue(READER_YIELDS, message, self.location(index)))
        return dict(sample)

    def location(self, index: int) -> Location:
        """The path, and the number of the sample."""
        return Location(self._path, row=index, index=index)

    def strata(self) -> Sequence[Any] | None:
        """Those of what it returned."""
        return self._source.strata()
