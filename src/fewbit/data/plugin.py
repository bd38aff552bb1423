# SPDX-License-Identifier: Apache-2.0
"""A user's own function as a dataset format.

    def tiles(path, **options):          # in mine.py; used as format="mine.py:tiles"
        for file in sorted(path.glob("*.tile")):
            yield {"pixels": read(file), "label": 3}

The function is called anew for each pass. A third-party package registers either such a function or a whole
format (see `formats/_base.py`) in the entry-point group `fewbit.formats`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fewbit.data.describe import describe
from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place, Sample
from fewbit.data.signature import Signature
from fewbit.data.source import Source
from fewbit.errors import DataError, UsageError


def as_format(member: Any) -> Any:
    """A format as it is; a plain function dressed as one."""
    if hasattr(member, "read") and hasattr(member, "check"):
        return member
    if callable(member):
        return FunctionFormat(member)
    raise UsageError(
        f"{member!r} is not a dataset format",
        expected="a module with detect, read and check, or a function that takes a path and yields dicts",
    )


class FunctionFormat:
    """The format contract on top of one function."""

    CODES: ClassVar = {
        "reader-failed": Code(Severity.ERROR, "the reader function raised an error", "fix the function", "raise"),
        "reader-yields": Code(Severity.ERROR, "the reader yields something other than a dict", "yield a dict", "raise"),
        "no-samples": Code(Severity.ERROR, "the dataset holds no sample", "check the path"),
    }

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def detect(self, source: object) -> None:
        """A bare function cannot say what it reads: it is used when it is named."""

    def read(self, source: Any, *, split: str | None, task: str | None, policy: Policy, **options: Any) -> Source:
        """The function's samples, lazily; `split` and `task` reach it only when they are given."""
        given = {name: value for name, value in (("split", split), ("task", task)) if value is not None}
        return FunctionSource(self._function, source, {**given, **options})

    def check(
        self,
        source: Any,
        report: DataReport,
        *,
        task: str | None,
        signature: Signature | None,
        quick: bool,
        **options: Any,
    ) -> None:
        """Run the function over everything (or ten samples, when quick) and report what it raises."""
        count = 0
        try:
            for count, _ in enumerate(
                self.read(source, split=None, task=task, policy=Policy(self.CODES), **options), 1
            ):
                if quick and count == 10:
                    break
        except DataError as error:
            code = error.code if error.code in self.CODES else "reader-failed"
            report.add(code, f"{error.what} ({error.where})", Place(index=count))
        if count == 0 and not report.counts:
            report.add("no-samples", f"{self._function.__name__} yielded nothing for {source}")
        report.understood["samples"] = count


class FunctionSource(Source):
    """What a reader function yields."""

    def __init__(self, function: Callable[..., Any], path: Any, options: dict[str, Any]):
        super().__init__()
        self._function, self._path, self._options = function, path, options

    def __iter__(self) -> Iterator[Sample]:
        elements = Loan().iterate(lambda: self._function(self._path, **self._options), self._failed)
        for index, element in enumerate(elements):
            if not isinstance(element, Mapping):
                raise DataError(
                    f"{self._function.__name__} yielded {describe(element)}",
                    code="reader-yields",
                    where=f"sample {index}",
                    expected="a dict",
                )
            yield Sample(element, place=getattr(element, "place", Place(str(self._path), index=index)))

    def _failed(self, index: int, error: Exception) -> DataError:
        return DataError(
            f"{self._function.__name__} raised {type(error).__name__}: {error}",
            code="reader-failed",
            where=f"sample {index}, {_line_of(error)}",
            try_=FunctionFormat.CODES["reader-failed"].fix,
        )


def _line_of(error: BaseException) -> str:
    """File and line where the user's code raised; its call, when it did not get as far as its own first line."""
    ours = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "when it was called"
