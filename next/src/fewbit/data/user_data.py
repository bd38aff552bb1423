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
from collections.abc import Mapping
from typing import Any

from fewbit.data.objects import READER_YIELDS, object_source
from fewbit.data.types import DataReport, Depth, Format, Issue, Location, SampleError, Source
from fewbit.data.user_code import call, load_object
from fewbit.errors import UsageError


def user_source(reference: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """What `FILE.py:NAME` names, read as an object; a function is called with the options it takes."""
    report.data_format = "objects"
    data = load_object(reference, param="data")
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
    from fewbit.data.opening import exists, local_path, locate, missing_path

    report.data_format = reference
    reader = load_object(reference, param="data_format")
    if isinstance(reader, Format):
        report.files, report.unit = locate(data, report), reader.unit
        return reader.scan(report.files, report, depth=depth, options=options)
    if not callable(reader):
        raise UsageError(
            f"{reference} is not a dataset format", code="data-format-unknown", param="data_format",
            expected="a function that takes a path and yields dicts", hint="{data=FILE.py:NAME} reads an object itself",
        )  # fmt: skip
    path: Any = data if "://" in data else local_path(data)
    if "://" not in data and not exists(path):
        raise missing_path(data, path)
    takes = inspect.signature(reader).parameters
    arguments = {name: value for name, value in options.items() if name not in ("task", "split") or name in takes}
    name = reference.rpartition(":")[2]
    samples = call(reader, arguments, path, param="data_format")
    if samples is None:
        raise SampleError(Issue(READER_YIELDS, f"{name} returns nothing", Location(data)))
    if hasattr(samples, "__next__"):  # a generator of ours to read: a check may use it up
        return object_source(lambda: samples, report, depth=depth, name=name, path=data)
    return object_source(samples, report, depth=depth, name=name, path=data)
