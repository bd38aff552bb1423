# SPDX-License-Identifier: Apache-2.0
"""The verbs of the data layer: open, check and repair datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fewbit.api.options import checked
from fewbit.data.dataset import Dataset
from fewbit.data.opening import open_source, scan_source
from fewbit.data.tasks import TASK_KEYS, find_task
from fewbit.data.types import Action, DataReport, SampleError, Source
from fewbit.errors import DataError, UsageError
from fewbit.model_info import ModelInfo
from fewbit.options import option
from fewbit.output import open_output
from fewbit.progress import Run, make_progress


class DataOptions(TypedDict, total=False):
    """Options of every function that reads data; see `fewbit check --help` for each."""

    data_format: str | None
    data_option: Mapping[str, Any] | None
    task: str | None
    split: str | None
    samples: int | None
    seed: int
    transform: Callable[[Any], Any] | str | None
    on_error: Action | Mapping[str, Action]
    workers: int
    preprocess: str | None
    image_size: int | str | tuple[int | None, int | None] | None
    resize: str
    mean: Any
    std: Any
    layout: str | None
    text_column: str | None
    label_column: str | None
    max_length: int
    pack: str


@checked("check")
def open_dataset(data: Any, **options: Unpack[DataOptions]) -> Dataset:
    """Open anything that holds samples: a path, an archive, a URL, a hub name, `FILE.py:NAME`, or an object.

    Args:
        data: what to open. Nothing is decoded until a sample is asked for.
        options: see `DataOptions`.

    Raises:
        DataError: it is damaged, and `on_error` says to raise; all issues are named at once.
    """
    source, report = open_source(data, **reading_options(options))
    dataset = Dataset.of(source, report, transform=user_transform(options.get("transform")))
    count = options.get("samples")
    return dataset if count is None else dataset.subset(count, options.get("seed", 0))


@checked("check")
def check_dataset(
    data: Any,
    *,
    model: Any = None,
    quick: bool = False,
    purpose: str | None = None,
    progress: Any = None,
    **options: Unpack[DataOptions],
) -> DataReport:
    """Check a dataset and report every problem in it, with file, line and remedy; nothing is changed.

    Args:
        data: what to check.
        model: compare every sample with the inputs of this model.
        quick: read names, sizes and headers only.
        purpose: `calibration` or `training`: also judge whether the data suits this use.
        progress: None (automatic), True, False, or an object.
        options: see `DataOptions`.
    """
    run = Run(make_progress(progress))
    try:
        with run.phase("check data", unit="sample") as bar:
            _, report = _scan(data, quick=quick, model=model, purpose=purpose, options=options)
            bar.advance(report.facts.get("samples", 0))
    finally:
        run.close()
    return report


@checked("check")
def fix_dataset(data: Any, output: str | Path, **options: Unpack[DataOptions]) -> DataReport:
    """Write a repaired copy of a dataset; the original is never changed.

    Args:
        data: what to repair.
        output: a new folder.
        options: see `DataOptions`.

    Returns:
        The report of the original; `facts["changes"]` says what was changed, `facts["copy"]` is the report of the copy.
    """
    from fewbit import registry

    given = options.get("on_error")
    policy: dict[str, Action] = {"*": "repair", "**": "drop"}
    policy |= given if isinstance(given, Mapping) else {}
    reading = reading_options(options) | {"on_error": policy, "depth": "full"}
    source, report = scan_source(data, **reading)
    names = registry.names("data_formats")
    format = registry.get("data_formats", report.data_format) if report.data_format in names else None
    if format is None or format.write is None:
        raise UsageError(
            f"data of the format {report.data_format} cannot be repaired", code="fix-unsupported",
            where=report.source, hint="correct the files that {fewbit.check} names",
        )  # fmt: skip
    inputs = [Path(data)] if isinstance(data, str | Path) and Path(data).exists() else []
    with open_output(Path(output), inputs=inputs, is_file=False) as folder:
        report.facts["changes"] = format.write(source, folder.work)
    settings = reading_options(options) | {"data_format": report.data_format, "depth": "full"}
    report.facts["copy"] = scan_source(str(output), **settings)[1]
    return report


def _scan(
    data: Any, *, quick: bool, model: Any, purpose: str | None, options: DataOptions
) -> tuple[Source, DataReport]:
    count = options.get("samples")
    depth = "index" if quick or count is not None else "full"
    source, report = scan_source(data, **reading_options(options) | {"depth": depth})
    report.facts.setdefault("samples", len(source))
    if quick:
        report.facts["quick"] = True
    dataset = Dataset.of(source, report, transform=user_transform(options.get("transform")))
    if count is not None:
        dataset = dataset.subset(count, options.get("seed", 0))
        report.facts["checked"] = len(dataset)
        for index in range(len(dataset)):
            try:
                dataset[index]
            except SampleError as error:
                report.add(error.issue.type, error.issue.message, error.issue.location)
    if (task := options.get("task")) is not None:
        _check_task(dataset, task, report, quick=quick)
    if model is not None:
        _check_model(dataset, model, report, purpose, options)
    elif purpose == "calibration":
        _advise(dataset, report, None, options)
    return source, report


def _check_task(dataset: Dataset, name: str, report: DataReport, *, quick: bool) -> None:
    """Whether samples have the keys of a task; the first decides what all have, except for labels."""
    task = find_task(name)
    report.facts["task"] = task.name
    for index in range(len(dataset) if not quick else min(len(dataset), 1)):
        try:
            sample = dataset[index]
        except SampleError:
            continue  # reported by the scan
        missing = [
            " or ".join(group) for group in task.needs
            if group and not any(isinstance(sample, Mapping) and sample.get(key) is not None for key in group)
        ]  # fmt: skip
        if missing:
            keys = ", ".join(sample) if isinstance(sample, Mapping) else type(sample).__name__
            report.add(TASK_KEYS, f"no {', no '.join(missing)}; it has {keys}", dataset.location(index))


def _check_model(dataset: Dataset, model: Any, report: DataReport, purpose: str | None, options: DataOptions) -> None:
    from fewbit.backends import find_backend
    from fewbit.data.inputs import check_inputs

    info = find_backend(model).inspect(model)
    report.facts["model"] = {"kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    check_inputs(dataset, info, report, options)
    if purpose == "calibration":
        _advise(dataset, report, info, options)


def _advise(dataset: Dataset, report: DataReport, info: ModelInfo | None, options: DataOptions) -> None:
    from fewbit.data.inputs.advisor import advise

    samples, seed = options.get("samples") or option("samples").default, options.get("seed", 0)
    advise(dataset, report, info=info, samples=samples, seed=seed, max_length=options.get("max_length", 512))


def reading_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `open_source` takes of the data options; column names go to the format."""
    settings = dict(options.get("data_option") or {})
    for name in ("text_column", "label_column"):
        if options.get(name) is not None:
            settings[name] = options[name]
    on_error = options.get("on_error")
    return {
        "data_format": options.get("data_format"), "data_option": settings, "task": options.get("task"),
        "split": options.get("split"), "on_error": None if on_error == "raise" else on_error,
    }  # fmt: skip


def user_transform(transform: Any) -> Callable[[Any], Any] | None:
    if isinstance(transform, str):
        from fewbit.data.user_code import load_function

        function: Callable[[Any], Any] = load_function(transform, param="transform")
        return function
    if transform is not None and not callable(transform):
        raise DataError(
            f"a transform of type {type(transform).__name__}", code="transform", expected="a function",
            hint="{transform=FILE.py:FN}",
        )  # fmt: skip
    result: Callable[[Any], Any] | None = transform
    return result
