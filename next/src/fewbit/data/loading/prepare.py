# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its samples: open, split, read by the preset, then step after step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.loading.presets import CUSTOM, CustomRows, DatasetPreset
from fewbit.data.loading.splitting import split_rows
from fewbit.data.loading.steps import STEPS, is_reference
from fewbit.data.loading.user_step import apply_function
from fewbit.data.loading.views import Context, DatasetView, Mapped, Preparation, Selected, View, ViewSource, usable
from fewbit.data.opening import open_source
from fewbit.data.rows.table import nested
from fewbit.data.text.content import content_of
from fewbit.data.types import Depth, Sample, SampleError
from fewbit.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig, DatasetConfig

_FIRST = 32
"""Rows that are looked at to recognize what they are."""
_VERSION = 1
"""Of everything that decides about rows before tokenization; part of the key of the token cache."""


@dataclass(frozen=True)
class Prepared:
    """The samples of a split.

    Args:
        view: by position and epoch.
        preparation: counts of dropped rows, and notes.
        steps: what was done.
        facts: classes, task.
    """

    view: View
    preparation: Preparation
    steps: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def dataset(self) -> Dataset:
        """As a `Dataset`, at epoch 0."""
        return Dataset.of(ViewSource(self.view, self.facts), self.preparation.data)


def prepare(config: DatasetConfig, split: str | None = "train", steps: Sequence[str] | None = None) -> Prepared:
    """The prepared samples of a split.

    Args:
        config: which data and which steps.
        split: `train`, `validation`, another split name of the data, or `None` for every row.
        steps: instead of the configuration's.
    """
    settings, preset = config.custom_config, config.origin.preset
    preparation = Preparation()
    rows, dataset = _open(config, preparation)
    rows = split_rows(rows, dict(dataset.facts.get("splits") or {}), split, preset, settings, preparation)
    preparation.rows = len(rows)
    view, text, classes = _read_by_preset(rows, preset, settings, dataset, preparation)
    steps = config.preprocessing_steps if steps is None else steps
    if steps is None:
        steps = preset.steps if text else ()
    if text and (not steps or steps[0] != "tokenization"):  # which reports unusable rows itself
        positions = [index for index, _ in usable(view, preparation)]
        view = view if len(positions) == len(view) else Selected(view, positions)
    view = _apply(view, steps, config, split, preparation)
    if not len(view):
        lines = preparation.lines()
        raise DataError(
            "no sample is left" + (f": {lines[0]}" if lines else ""), code="no-samples", where=preparation.data.source,
            expected="at least one", hint="`fewbit check` lists what is wrong with the data",
        )  # fmt: skip
    facts = {name: value for name, value in (("classes", classes), ("task", settings.task or preset.task)) if value}
    return Prepared(Mapped(view, _without_roles, keeps_length=True), preparation, tuple(steps), facts)


def _open(config: DatasetConfig, preparation: Preparation) -> tuple[View, Dataset]:
    settings, origin = config.custom_config, config.origin
    try:
        source, report = open_source(
            origin.data, data_format=settings.data_format, data_option={**origin.data_option, **settings.data_option},
            task=settings.task, on_error=settings.on_error, depth=_depth(settings),
        )  # fmt: skip
    except DataError as error:
        if origin.preset.name == CUSTOM or settings.path is not None:
            raise
        raise DataError(
            error.what, code=error.code, where=error.where, expected=error.expected,
            hint=f"custom_config={{'path': …}} reads {origin.preset.name} from a file with the columns "
            + ", ".join(origin.preset.columns),
        ) from error  # fmt: skip
    preparation.data = report
    dataset = Dataset.of(source, report)
    if not len(dataset):
        raise DataError(
            "the dataset is empty", code="no-samples", where=report.source, expected="at least one row",
            hint="check how it was made",
        )  # fmt: skip
    view: View = DatasetView(dataset)
    if settings.columns:
        view = Mapped(view, RenamedColumns(settings.columns, dict(dataset.facts.get("roles") or {})))
    return view, dataset


def _depth(settings: CustomConfig) -> Depth:
    """Dropping damaged samples needs to know them all before the first batch."""
    actions = settings.on_error.values() if isinstance(settings.on_error, dict) else [settings.on_error]
    return "full" if any(action in ("drop", "repair") for action in actions) else "index"


@dataclass(frozen=True)
class RenamedColumns:
    """Chosen columns under the names that steps use; dots select nested fields.

    Args:
        names: field and column.
        roles: key and column of what the source has renamed already.
    """

    names: dict[str, str]
    roles: dict[str, str]

    def __call__(self, row: Sample) -> Sample:
        keys = {column: key for key, column in self.roles.items()}
        return {field: nested(row, keys.get(column, column)) for field, column in self.names.items()}


def _read_by_preset(
    view: View, preset: DatasetPreset, settings: CustomConfig, dataset: Dataset, preparation: Preparation
) -> tuple[View, bool, Sequence[str] | None]:
    """Rows as a preset means them, whether they are text, and the names of their classes."""
    first = _first_rows(view)
    if preset.example is not None:
        _check_columns(first, preset, view)
        class_names = dataset.classes
        return Mapped(view, PresetRows(preset.name, tuple(class_names) if class_names else None)), True, preset.classes
    text = any(_is_text(row) for row in first)
    if settings.columns and first:
        missing = [name for name in settings.columns if all(row.get(name) is None for row in first)]
        if missing:
            column = settings.columns[missing[0]]
            raise UsageError(
                f"there is no column {column!r}", code="no-column", param="columns",
                expected=", ".join(dataset.facts.get("columns") or ()) or "a column of the data",
                hint="correct the name in custom_config={'columns': …}",
            )  # fmt: skip
    classes = settings.classes or dataset.classes
    if classes is None and any(isinstance(row.get("label"), str) for row in first):
        labels = {str(row["label"]) for _, row in usable(view, Preparation()) if row.get("label") not in (None, "")}
        classes = sorted(labels)
    numbered = dataset.classes is not None and settings.classes is None  # the source numbers them itself
    reader = CustomRows(first, settings.separator, None if numbered else classes)
    return (Mapped(view, reader) if text else view), text, classes


class PresetRows:
    """Rows through the `example` function of a preset; picklable by the preset's name."""

    def __init__(self, preset: str, classes: tuple[str, ...] | None):
        self._preset, self._classes = preset, classes

    def __call__(self, row: Sample) -> Sample:
        from fewbit.data.loading.presets import PRESETS

        example = PRESETS[self._preset].example
        assert example is not None
        label = row.get("label")
        if self._classes is not None and isinstance(label, int | np.integer) and 0 <= label < len(self._classes):
            row = row | {"label": self._classes[label]}
        return example(row)


def _first_rows(view: View) -> list[Sample]:
    rows = []
    for index in range(min(len(view), _FIRST)):
        try:
            rows.append(view.get(index))
        except SampleError:
            continue
        if any(isinstance(value, np.ndarray) for value in rows[-1].values()):
            break  # one image is enough
    return rows


def _check_columns(first: Sequence[Sample], preset: DatasetPreset, view: View) -> None:
    """A column that none of the first rows has was probably given another name."""
    if preset.example is None or not first:
        return
    for row in first:
        try:
            preset.example(row)
        except SampleError as error:
            if "is missing" in error.issue.message:
                continue
        return
    names = list(dict.fromkeys(name for row in first for name in row))
    missing = [column for column in preset.columns if column not in names]
    guesses = {column: (nearest(column, names) or ["…"])[0] for column in missing or preset.columns}
    raise UsageError(
        f"{preset.name} needs the columns {', '.join(preset.columns)}", code="no-column", where=str(view.location(0)),
        param="columns", expected=f"them among {', '.join(names)}", hint=f"custom_config={{'columns': {guesses}}}",
    )  # fmt: skip


def _is_text(row: Sample) -> bool:
    if "image" in row or "audio" in row or "pixel_values" in row:
        return False
    return "input_ids" in row or ("tags" in row) or content_of(row) is not None


def _apply(
    view: View, steps: Sequence[str], config: DatasetConfig, split: str | None, preparation: Preparation
) -> View:
    key = _cache_key(config, split)
    for number, name in enumerate(steps):

        def open_other(data: Any, before: Sequence[str] = steps[:number]) -> View:
            from fewbit.data.loading.config import DatasetConfig

            if isinstance(data, Mapping) and "dataset_name" in data:
                data = DatasetConfig.from_dict(data)
            other_config = data if isinstance(data, DatasetConfig) else config.replace(dataset_name=data, path=None)
            prepared = prepare(other_config, split, before)
            preparation.dropped += prepared.preparation.dropped
            preparation.first |= prepared.preparation.first
            return prepared.view

        so_far = None if key is None else _step_key(steps[:number], config.custom_config)
        context = Context(
            config.custom_config, lambda: config.tokenizer, split, preparation, open_other,
            None if so_far is None else f"{key} {so_far}",
        )  # fmt: skip
        view = apply_function(view, name, context) if is_reference(name) else STEPS[name].apply(view, context)
    return view


def _cache_key(config: DatasetConfig, split: str | None) -> str | None:
    """What the rows depend on, for data in files; `None` for objects, URLs and the hub."""
    from fewbit.data.files import Folder

    data = config.origin.data
    if not isinstance(data, str) or not Path(data).expanduser().exists():
        return None
    files = Folder(Path(data).expanduser())
    settings = config.custom_config
    names = (
        "data_format", "data_option", "on_error", "columns", "classes", "task", "separator", "train_split",
        "validation_split", "validation_ratio", "seed",
    )  # fmt: skip
    inputs = [str(_VERSION), str(config.dataset_name), str(split), *(repr(getattr(settings, name)) for name in names)]
    inputs += [f"{name} {files.fingerprint(name)}" for name in files.names()]
    return hashlib.sha256("\0".join(inputs).encode("utf-8", "surrogateescape")).hexdigest()


def _step_key(steps: Sequence[str], settings: CustomConfig) -> str | None:
    """What the steps so far depend on; `None` if that is other data or a function in memory."""
    if "mixing" in steps or settings.filter_function is not None:
        return None
    prefixes = ("filter_", "sampling_")
    inputs = [
        f"{name}={getattr(settings, name)!r}" for name in type(settings).model_fields if name.startswith(prefixes)
    ]
    for step in steps:
        code = Path(step.rpartition(":")[0]).expanduser().read_bytes() if is_reference(step) else b""
        inputs.append(f"{step} {hashlib.sha256(code).hexdigest()}")
    return hashlib.sha256("\0".join(inputs).encode("utf-8", "surrogateescape")).hexdigest()


def _without_roles(sample: Sample) -> Sample:
    return {name: value for name, value in sample.items() if name != "roles"}
