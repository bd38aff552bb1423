# SPDX-License-Identifier: Apache-2.0
"""`check DATA --model M`: every sample against the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.inputs.adapter import InputAdapter
from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity
from fewbit.errors import FewbitError, UsageError
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
        report: takes the issues; its facts say how many samples fit (`fitting`) and how they were prepared (`inputs`
            in one line, `preprocessing` as settings).
        options: as for `InputAdapter`.

    Returns:
        How many samples fit. If none does, that is a separate error.

    Raises:
        UsageError: options contradict each other or the model.
    """
    inner = DataReport(on_error="drop")  # nothing is raised on the way
    adapter = InputAdapter(info, options, report=inner)
    reported = {(issue.code, issue.location) for issue in report.issues}
    fitting = checked = 0
    try:
        prepared = adapter.prepare(dataset)
        for index in prepared.indices():  # texts are a stream
            checked += 1
            try:
                fitting += bool(adapter.rows(prepared[index], prepared, index)[0])
            except SampleError as error:  # damaged; the check of the dataset may have reported it already
                if (error.code, error.issue.location) not in reported:
                    report.add(error.issue.type, error.issue.message, error.issue.location)
    except UsageError:
        raise
    except FewbitError as error:  # a missing tokenizer, for example: nothing can be compared
        report.add(PREPROCESSING, error.what, Location(error.where or "") if error.where else Location())
    for issue in inner.issues:
        report.add(issue.type, issue.message, issue.location)
    report.facts |= {"fitting": fitting, "compared": checked}
    if fitting:
        report.facts |= {"inputs": adapter.describe(), "preprocessing": adapter.record()}
    batch = adapter.fixed_batch
    if not fitting or (batch is not None and fitting < batch):
        reason = f"it takes batches of {batch}" if fitting else f"it takes {', '.join(map(str, info.inputs)) or '?'}"
        report.add(NO_SAMPLE_FITS, f"{fitting:,} of {checked:,} fit the model: {reason}")
    return fitting
