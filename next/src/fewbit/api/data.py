# SPDX-License-Identifier: Apache-2.0
"""The verbs of the data layer: open, check and repair datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fewbit.api.options import checked, refuse_later
from fewbit.data.dataset import Dataset
from fewbit.data.opening import ReadingOptions, exists, local_path, open_samples, scan_source
from fewbit.data.tasks import TASK_KEYS, find_task
from fewbit.data.types import Action, DataReport, SampleError
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
    resize: str | None
    mean: Any
    std: Any
    layout: str | None
    text_column: str | None
    label_column: str | None
    max_length: int
    pack: str


@checked("check", implied=("model",))
def open_dataset(data: Any, **options: Unpack[DataOptions]) -> Dataset:
    """Open anything that holds samples: a path, an archive, a URL, a hub name, `FILE.py:NAME`, or an object.

    Args:
        data: what to open. Nothing is decoded until a sample is asked for, unless `on_error` is to drop samples.
        options: see `DataOptions`. Those for images and text hold for `Dataset.inputs`.

    Raises:
        DataError: it is damaged, and `on_error` says to raise; all issues are named at once.
    """
    from fewbit.data.inputs import load_transform

    count, seed, transform = options.get("samples"), options.get("seed", 0), options.get("transform")
    dataset = open_samples(data, samples=count, seed=seed, **reading_options(options))
    if transform is not None:
        dataset = dataset.map(load_transform(transform))
    dataset.options = dict(options)
    return dataset


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
        purpose: `calibration`: also judge whether the data suits this use.
        progress: None (automatic), True, False, or an object.
        options: see `DataOptions`.
    """
    if purpose == "training":
        raise refuse_later("purpose", purpose, "check", "it comes with finetune")
    info = None if model is None else _inspect(model, options)
    run = Run(make_progress(progress))
    try:
        with run.phase("check data", unit="sample") as bar:
            dataset, report = _scan(data, quick=quick, options=options)
            if info is not None:
                _check_model(dataset, info, report, options)
            if purpose == "calibration":
                _advise(dataset, report, info, options)
            bar.advance(report.facts.get("samples", 0))
    finally:
        run.close()
    return report


@checked("check", implied=("fix",))
def fix_dataset(
    data: Any, output: str | Path, *, overwrite: bool = False, **options: Unpack[DataOptions]
) -> DataReport:
    """Write a repaired copy of a dataset; the original is never changed.

    Args:
        data: what to repair.
        output: a new folder.
        overwrite: replace an earlier repaired copy, unless files in it were changed or added since.
        options: see `DataOptions`.

    Returns:
        The report of the original; `facts["changes"]` says what was changed, `facts["copy"]` is the report of the copy.
    """
    from fewbit import registry
    from fewbit.data.repaired_copy import check_copy, mark_copy

    inputs = [Path(data)] if isinstance(data, str | Path) and Path(data).exists() else []
    check_copy(Path(output), overwrite=overwrite, inputs=inputs)
    given = options.get("on_error")
    actions: dict[str, Action] = {"*": "repair", "**": "drop"}
    actions |= given if isinstance(given, Mapping) else {}
    reading = reading_options(options)
    source, report = scan_source(data, **reading | {"on_error": actions, "depth": "full"})
    names = registry.names("data_formats")
    format = registry.get("data_formats", report.data_format) if report.data_format in names else None
    if format is None or format.write is None:
        raise UsageError(
            f"data of the format {report.data_format} cannot be repaired", code="fix-unsupported",
            where=report.source, hint="correct the files that {fewbit.check} names",
        )  # fmt: skip
    report.facts["samples"] = _count_original(data, reading)
    settings = reading | {"data_format": report.data_format, "depth": "full"}
    with open_output(Path(output), overwrite=overwrite, inputs=inputs, is_file=False) as folder:
        folder.clear()
        report.facts["changes"] = format.write(source, folder.work)
        if not len(scan_source(str(folder.work), **settings | {"depth": "index"})[0]):
            folder.clear()
            raise DataError(
                f"every {report.unit} would be left out, so there is nothing to copy", code="fix-empty",
                where=report.source, expected=f"at least one {report.unit} that can be read",
                hint="correct the files that {fewbit.check} names",
            )  # fmt: skip
        mark_copy(folder.work)
    report.facts["copy"] = scan_source(str(output), **settings)[1]
    return report


def _count_original(data: Any, reading: ReadingOptions) -> int:
    """Samples before anything is left out, as `check` counts them."""
    try:
        return len(scan_source(data, **reading | {"on_error": None, "depth": "index"})[0])
    except DataError:  # a damaged table is counted only if every row is read
        return len(scan_source(data, **reading | {"on_error": None, "depth": "full"})[0])


def _inspect(model: Any, options: DataOptions) -> ModelInfo:
    """The model's header; options that contradict it are errors before any data is read."""
    from fewbit.backends import find_backend
    from fewbit.data.images import IMAGE_OPTIONS
    from fewbit.data.images.preprocess import resolve_preprocessing

    info = find_backend(model).inspect(model)
    if any(options.get(name) is not None for name in IMAGE_OPTIONS):
        resolve_preprocessing(options, info)
    return info


def _scan(data: Any, *, quick: bool, options: DataOptions) -> tuple[Dataset, DataReport]:
    """Read everything, or names and headers, or a sample of it."""
    count, task = options.get("samples"), options.get("task")
    settings = reading_options(options) | {"depth": "index" if quick or count is not None else "full"}
    source, report = scan_source(data, **settings)
    local = isinstance(data, str | Path) and exists(local_path(str(data)))
    if count is not None and count >= len(source) and local and not quick:  # all of them: the complete check
        count = None
        source, report = scan_source(data, **settings | {"depth": "full"})
    report.facts.setdefault("samples", len(source))
    dataset = Dataset.of(source, report)
    if quick:
        report.facts["quick"] = True
    if count is not None:
        dataset = dataset.subset(count, options.get("seed", 0))
        report.facts["checked"] = len(dataset)
        for index in range(len(dataset)):
            try:
                dataset[index]
            except SampleError as error:
                report.add_error(error)
    if task is not None:
        _check_task(dataset, task, report, quick=quick)
    return dataset, report


def _check_task(dataset: Dataset, name: str, report: DataReport, *, quick: bool) -> None:
    """Whether samples have the keys of a task; with `quick` only the first is read."""
    task = find_task(name)
    report.facts["task"] = task.name
    for index in range(len(dataset) if not quick else min(len(dataset), 1)):
        try:
            sample = dataset[index]
        except SampleError:
            continue  # reported by the scan
        keys = [key for key in sample if sample[key] is not None] if isinstance(sample, Mapping) else []
        missing = [" or ".join(group) for group in task.needs if group and not set(group) & set(keys)]
        if missing:
            text = f"no {', no '.join(missing)}; it has {', '.join(keys) or type(sample).__name__}"
            report.add(TASK_KEYS, text, dataset.location(index))


def _check_model(dataset: Dataset, info: ModelInfo, report: DataReport, options: DataOptions) -> None:
    from fewbit.data.inputs import check_inputs

    report.facts["model"] = {"kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    check_inputs(dataset, info, report, options)


def _advise(dataset: Dataset, report: DataReport, info: ModelInfo | None, options: DataOptions) -> None:
    from fewbit.data.inputs import advise

    samples, seed = options.get("samples") or option("samples").default, options.get("seed", 0)
    advise(dataset, report, info=info, samples=samples, seed=seed, max_length=options.get("max_length", 512))


def reading_options(options: Mapping[str, Any]) -> ReadingOptions:
    """What `open_source` takes of the data options; column names go to the format."""
    columns = {name: options[name] for name in ("text_column", "label_column") if options.get(name) is not None}
    on_error = options.get("on_error")
    return {
        "data_format": options.get("data_format"), "data_option": {**(options.get("data_option") or {}), **columns},
        "task": options.get("task"), "split": options.get("split"),
        "on_error": None if on_error == "raise" else on_error,
    }  # fmt: skip
