# SPDX-License-Identifier: Apache-2.0
"""`check DATA --model M`: every sample against the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.inputs.adapter import InputAdapter
from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity
from fewbit.errors import FewbitError, plural
from fewbit.model_info import ModelInfo

NO_SAMPLE_FITS = IssueType(
    "no-sample-fits", Severity.ERROR, "dataset of which no sample can be given to the model",
    "see the other issues; {transform=FILE.py:FN} maps a sample to the model's inputs", "raise",
)  # fmt: skip
PREPROCESSING = IssueType(
    "preprocessing", Severity.ERROR, "preprocessing that cannot be applied",
    "correct the option, or {transform=FILE.py:FN}", "raise",
)  # fmt: skip
ISSUES = (NO_SAMPLE_FITS, PREPROCESSING)


def check_inputs(
    dataset: Dataset, info: ModelInfo, report: DataReport, options: Mapping[str, Any] | None = None
) -> int:
    """Compare every sample with a model and report each mismatch at its sample.

    Args:
        dataset: the samples.
        info: the model.
        report: takes the issues; `facts["fitting"]` says how many samples fit.
        options: as for `InputAdapter`.

    Returns:
        How many samples fit. If none does, that is a separate error.
    """
    inner = DataReport(on_error="drop")  # nothing is raised on the way
    adapter = InputAdapter(info, options, report=inner)
    reported = {(issue.code, issue.location) for issue in report.issues}
    fitting = checked = 0
    try:
        prepared = adapter.prepare(dataset)
        for index in range(len(prepared)):
            checked += 1
            try:
                fitting += adapter.fits(prepared, index)
            except SampleError as error:  # damaged; the check of the dataset may have reported it already
                if (error.code, error.issue.location) not in reported:
                    report.add(error.issue.type, error.issue.message, error.issue.location)
    except FewbitError as error:  # options that contradict the model, a missing tokenizer: nothing can be compared
        report.add(PREPROCESSING, _first_line(error), Location(field=error.param))
    for issue in inner.issues:
        report.add(issue.type, issue.message, issue.location)
    report.facts["fitting"] = fitting
    report.facts["inputs"] = adapter.describe() if fitting else ""
    incomplete = adapter.fixed_batch is not None and 0 < fitting < adapter.fixed_batch
    if not fitting or incomplete:
        reason = f"the model takes batches of {adapter.fixed_batch}" if incomplete else f"input {_inputs(info)}"
        report.add(NO_SAMPLE_FITS, f"{plural(fitting, 'sample')} of {checked:,} fit the model: {reason}")
    return fitting


def _first_line(error: FewbitError) -> str:
    message = error.what if error.expected is None else f"{error.what}; expected {error.expected}"
    return message.splitlines()[0]


def _inputs(info: ModelInfo) -> str:
    return ", ".join(str(tensor) for tensor in info.inputs) or "unknown"
