# SPDX-License-Identifier: Apache-2.0
"""`check_dataset`: what a dataset is, and every fault in it, before anything expensive starts."""

from __future__ import annotations

import inspect
from itertools import islice
from pathlib import Path
from typing import Any

from fewbit.data.describe import describe
from fewbit.data.detect import find_format
from fewbit.data.feeding import Feeder
from fewbit.data.findings import Code, DataReport, Policy, Progress, Severity
from fewbit.data.opening import as_path, check_options
from fewbit.data.sample import Place
from fewbit.data.signature import Signature, read_signature
from fewbit.data.source import Source
from fewbit.errors import FewbitError

_SHOWN = 3

CODES = {
    "needs-transform": Code(
        Severity.INFO,
        "samples are not yet what the model takes",
        "pass a transform_fn: Dataset(path, transform_fn), where model(transform_fn(sample)) works",
    )
}


class DataCheck:
    """One check, split into what it found and the run that finds it, so that an interrupted run keeps its findings.

    Args:
        path: a file or folder, or a Python object such as a loader.
        format: a member of `formats`, or `"file.py:function"`; detected when left out.
        task: what the data is for; formats that serve several tasks use it.
        model: anything `read_signature` reads; samples are compared with its inputs.
        quick: names, sizes and headers only.
        limit: how many places a finding keeps; counts are exact in any case.
        progress: told how far the check is.
        options: the format's own options.
    """

    def __init__(
        self,
        path: Any,
        *,
        format: str | None = None,
        task: str | None = None,
        model: Any = None,
        quick: bool = False,
        limit: int | None = 10_000,
        progress: Progress | None = None,
        **options: Any,
    ):
        self._source = as_path(path)
        name, self._member, why = find_format(self._source, format)
        check_options(self._member.check, options, name)
        self._task, self._quick, self._options = task, quick, options
        self._signature = None if model is None else read_signature(model)
        self.report = DataReport(
            path=str(self._source) if isinstance(self._source, Path) else describe(self._source, depth=0),
            format=name,
            why=why,
            codes={**CODES, **self._member.CODES},
            limit=limit,
            progress=progress or Progress(),
        )

    def run(self) -> DataReport:
        """Find everything; on an interrupt the report says that it is not complete."""
        self.report.complete = False
        self._member.check(
            self._source, self.report, task=self._task, signature=self._signature, quick=self._quick, **self._options
        )
        self._look_at_samples()
        self.report.complete = True
        return self.report

    def _look_at_samples(self) -> None:
        """Open the dataset as a user would and describe the first samples; what fails here is already a finding."""
        try:
            options = dict(self._options)
            if "signature" in inspect.signature(self._member.read).parameters:
                options["signature"] = self._signature  # samples as the model gets them
            policy = Policy(self._member.CODES)
            source: Source = self._member.read(self._source, split=None, task=self._task, policy=policy, **options)
            for index, element in enumerate(islice(source, _SHOWN)):
                place = getattr(element, "place", None) or source.place(index)
                self.report.samples.append({"place": str(place), "sample": describe(element)})
                if index == 0 and self._signature is not None:
                    self._compare(element, source, self._signature, place)
        except FewbitError as error:
            self.report.samples.append({"place": error.where or "", "sample": f"not readable: {error.what}"})

    def _compare(self, element: Any, source: Source, signature: Signature, place: Place) -> None:
        """Formats that hold ready inputs compare every file themselves; the others need a transform, said once."""
        if "input-missing" in self._member.CODES:
            return
        wrong = "; ".join(problem.message for problem in Feeder(source, signature).fit(element).errors)
        if wrong:
            self.report.add("needs-transform", wrong, place)


def check_dataset(
    path: Any, *, format: str | None = None, task: str | None = None, model: Any = None, **options: Any
) -> DataReport:
    """Check a dataset in full and return a report of everything found; never raises for what the data holds.

    Args:
        path: a file or folder, or a Python object such as a loader.
        format: a member of `formats`, or `"file.py:function"`; detected when left out.
        task: what the data is for.
        model: an ONNX or OpenVINO path, a `torch.nn.Module` …: samples are compared with its inputs.
        options: `quick`, `limit`, `progress`, and the options of the format.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"text": "hello"}\\n{"text": 1')
    >>> report = check_dataset(folder / "a.jsonl")
    >>> report.ok, report.errors[0].place.line
    (False, 2)
    """
    return DataCheck(path, format=format, task=task, model=model, **options).run()
