# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its samples: open, split, read by the preset, then step after step.

Every row is trained on unless `validation_ratio` says otherwise. A cut goes by the content of rows, so equal rows are
on one side whatever their order, and by class, so that both sides have the classes in proportion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fewbit.data.dataset import Dataset
from fewbit.data.loading.presets import CUSTOM, CustomRows, DatasetPreset, PresetRows
from fewbit.data.loading.steps import apply_step, step_of_setting
from fewbit.data.loading.views import Context, DatasetSamples, Preparation, View
from fewbit.data.opening import open_source
from fewbit.data.rows.table import nested
from fewbit.data.splits import split_of_file
from fewbit.data.text.content import content_of
from fewbit.data.types import Sample, SampleError
from fewbit.data.user_code import parse_reference
from fewbit.errors import DataError, UsageError, nearest, plural

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig, DatasetConfig

_FIRST = 32
"""Rows that are looked at to recognize what they are."""
_MOST_CLASSES = 50
_VERSION = 2
"""Of everything that decides about rows before tokenization; part of the key of the token cache."""
_ON_BATCHES = (
    "batch_size", "shuffle", "drop_last", "workers", "start_method", "require_device", "max_length", "cache_tokens",
)  # fmt: skip
"""Settings that do not matter before tokenization, besides those of later steps."""
_ORJSON = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True)
class Prepared:
    """The samples of a split, what was left out and noted, and the steps that were applied."""

    view: View
    preparation: Preparation
    steps: tuple[str, ...]

    def dataset(self) -> Dataset:
        """As a `Dataset`, at epoch 0."""
        return Dataset.of(self.view, self.preparation.data)


def prepare(config: DatasetConfig, split: str | None = "train", steps: Sequence[str] | None = None) -> Prepared:
    """The prepared samples of a split.

    Args:
        config: which data and which steps.
        split: `train`, `validation`, another split name of the data, or `None` for every row.
        steps: instead of the configuration's.
    """
    settings, preset = config.custom_config, config.origin.preset
    preparation = Preparation()
    dataset = _open(config, preparation)
    view = View(DatasetSamples(dataset))
    if settings.columns:
        view = view.map(RenamedColumns(settings.columns, dict(dataset.facts.get("roles") or {})))
    view = _split(view, dict(dataset.facts.get("splits") or {}), split, config, preparation)
    preparation.rows = len(view)
    first = _first_rows(view)
    for name, column in settings.columns.items():
        if first and all(row.get(name) is None for row in first):
            raise UsageError(
                f"there is no column {column!r}", code="no-column", param="columns",
                expected=", ".join(dataset.facts.get("columns") or ()) or "a column of the data",
                hint="correct the name in custom_config={'columns': …}",
            )  # fmt: skip
    is_text = preset.name != CUSTOM or any(_is_text(row) for row in first)
    classes: Sequence[str] | None = dataset.classes
    if preset.name != CUSTOM:
        _check_preset_columns(first, preset, view)
        view, classes = view.map(PresetRows(preset, tuple(classes) if classes else None)), preset.classes
    elif is_text:
        view, classes = _custom_rows(view, first, settings, dataset)
    if steps is None:
        steps = config.preprocessing_steps
    if steps is None:
        steps = preset.steps if is_text else ()
    if is_text and (not steps or steps[0] != "tokenization"):  # which reports unusable rows itself
        view = view.select([index for index, _ in preparation.usable(view)])
    for number, name in enumerate(steps):
        if not len(view):
            break
        before = steps[:number]
        key = _cache_key(config, split, before, dataset.fingerprint) if name == "tokenization" else None
        others = partial(_open_other, config=config, split=split, steps=before, preparation=preparation)
        view = apply_step(name, view, Context(config, split, preparation, others, key))
    if not len(view):
        raise preparation.nothing_left()
    facts = {"classes": classes, "task": settings.task or preset.task}
    view = replace(view.map(_without_roles, view.lengths), facts={key: value for key, value in facts.items() if value})
    return Prepared(view, preparation, tuple(steps))


def _open(config: DatasetConfig, preparation: Preparation) -> Dataset:
    settings, origin = config.custom_config, config.origin
    # Dropping damaged samples needs to know them all before the first batch.
    actions = settings.on_error.values() if isinstance(settings.on_error, dict) else [settings.on_error]
    complete = any(action in ("drop", "repair") for action in actions)
    try:
        source, preparation.data = open_source(
            origin.data, data_format=settings.data_format, data_option={**origin.data_option, **settings.data_option},
            task=settings.task, on_error=settings.on_error, depth="full" if complete else "index",
        )  # fmt: skip
    except DataError as error:
        if origin.preset.name != CUSTOM and settings.path is None:
            columns = ", ".join(origin.preset.columns)
            error.hint = (
                f"custom_config={{'path': …}} reads {origin.preset.name} from a file with the columns {columns}"
            )
        raise
    dataset = Dataset.of(source, preparation.data)
    if not len(dataset):
        raise DataError(
            "the dataset is empty", code="no-samples", where=preparation.data.source, expected="at least one row",
            hint="check how it was made",
        )  # fmt: skip
    return dataset


@dataclass(frozen=True)
class RenamedColumns:
    """Chosen columns under the names that steps use; dots select nested fields.

    Args:
        names: field and column.
        roles: key and column of what the source has renamed already.
    """

    names: Mapping[str, str]
    roles: Mapping[str, str]

    def __call__(self, row: Sample) -> Sample:
        keys = {column: key for key, column in self.roles.items()}
        return {field: nested(row, keys.get(column, column)) for field, column in self.names.items()}


def _split(
    view: View, splits: Mapping[str, int], split: str | None, config: DatasetConfig, preparation: Preparation
) -> View:
    """The rows of one split: one of the data's own, or one side of a cut."""
    if split is None:
        return view
    settings = config.custom_config
    wanted = split_of_file(split) or split
    train = _name_in_data(settings.train_split or "train", splits, required=settings.train_split is not None)
    validation = _name_in_data(settings.validation_split or "val", splits, required=bool(settings.validation_split))
    if validation is None and config.origin.preset.validation_split is not None:
        validation = _name_in_data(config.origin.preset.validation_split, splits)
    if wanted not in ("train", "val"):
        return _rows_of_split(view, splits, _name_in_data(split, splits, required=True))
    if wanted == "val" and validation is not None:
        return _rows_of_split(view, splits, validation)
    if train is None and len(splits) > 1:
        raise UsageError(
            f"the data has the splits {', '.join(splits)}, none of which is train", code="split-missing", param="split",
            expected="a split to train on", hint="custom_config={'train_split': …}",
        )  # fmt: skip
    rows = _rows_of_split(view, splits, train)
    if settings.validation_ratio and validation is None:
        held_out = held_out_rows(rows, settings.validation_ratio, settings.seed)
        count = plural(int(held_out.sum()), "row")
        preparation.notes.append(f"validation: {count} of {len(held_out):,} cut off by content")
        return rows.select(np.flatnonzero(held_out == (wanted == "val")))
    if wanted == "train":
        return rows
    raise UsageError(
        "the data has no validation split", code="split-missing", param="split",
        expected=", ".join(splits) or "rows of one split only",
        hint="custom_config={'validation_ratio': 0.1} cuts one off",
    )  # fmt: skip


def _rows_of_split(view: View, splits: Mapping[str, int], name: str | None) -> View:
    """The rows of one split; splits are stored one after the other."""
    if name is None or splits[name] == len(view):
        return view
    names = list(splits)
    start = sum(splits[earlier] for earlier in names[: names.index(name)])
    return view.select(np.arange(start, start + splits[name]))


def _name_in_data(name: str, splits: Mapping[str, int], *, required: bool = False) -> str | None:
    """What the data calls a split."""
    meaning = split_of_file(name) or name
    match = name if name in splits else next((key for key in splits if (split_of_file(key) or key) == meaning), None)
    if match is None and required:
        raise UsageError(
            f"there is no split {name!r}", code="split-missing", param="split",
            expected=", ".join(nearest(name, splits) or splits) or "data with splits",
            hint="give one of these, or None for every row",
        )  # fmt: skip
    return match


def held_out_rows(view: View, ratio: float, seed: int) -> np.ndarray:
    """Which rows are validated on: boolean, one per row.

    Different rows are ordered by class and a hash of their content, and a share of them is taken at equal distances.
    """
    strata = view.strata()
    has_arrays = any(isinstance(value, np.ndarray) for row in _first_rows(view) for value in row.values())
    hashes = np.empty(len(view), np.uint64)
    labels = [""] * len(view) if strata is None else [str(stratum) for stratum in strata]
    for index in range(len(view)):
        content: Any = index  # images are not decoded to be compared
        if not has_arrays:
            try:
                content = view.get(index)
            except SampleError as error:
                content = error.issue.message
            if strata is None and isinstance(content, Mapping):
                labels[index] = str(content.get("label", ""))
        hashes[index] = _hash(content, seed)
    if len(set(labels)) > max(_MOST_CLASSES, len(labels) // 2):  # answers, not classes
        labels = [""] * len(labels)
    different, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.lexsort((different, np.asarray(labels)[first]))
    count = max(1, round(ratio * len(order)))
    if count >= len(order):
        raise DataError(
            f"{plural(len(view), 'row')} cannot be cut in two", code="too-few-rows", expected="two different rows",
            hint="custom_config={'validation_ratio': 0} trains on all of them",
        )  # fmt: skip
    chosen = order[((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)]
    return np.isin(group, chosen)


def _hash(content: Any, seed: int) -> int:
    """64 bits that depend on the content of a row and the seed only."""
    try:
        data = orjson.dumps(content, option=_ORJSON, default=repr)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
        data = repr(sorted(content.items()) if isinstance(content, Mapping) else content).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=str(seed).encode()).digest(), "little")


def _first_rows(view: View) -> list[Sample]:
    rows: list[Sample] = []
    for index in range(min(len(view), _FIRST)):
        try:
            rows.append(view.get(index))
        except SampleError:
            continue
        if any(isinstance(value, np.ndarray) for value in rows[-1].values()):
            break  # one image is enough
    return rows


def _is_text(row: Sample) -> bool:
    if "image" in row or "audio" in row or "pixel_values" in row:
        return False
    return "input_ids" in row or "tags" in row or content_of(row) is not None


def _check_preset_columns(first: Sequence[Sample], preset: DatasetPreset, view: View) -> None:
    """A column that none of the first rows has was probably given another name."""
    names = list(dict.fromkeys(name for row in first for name in row))
    missing = [name for name, others in preset.columns.items() if not {name, *others} & set(names)]
    if first and missing:
        guesses = {column: (nearest(column, names) or ["…"])[0] for column in missing}
        raise UsageError(
            f"{preset.name} needs the columns {', '.join(preset.columns)}", code="no-column",
            where=str(view.location(0)), param="columns", expected=f"them among {', '.join(names)}",
            hint=f"custom_config={{'columns': {guesses}}}",
        )  # fmt: skip


def _custom_rows(
    view: View, first: Sequence[Sample], settings: CustomConfig, dataset: Dataset
) -> tuple[View, Sequence[str] | None]:
    """Rows of text as their columns mean them, and the names of their classes."""
    if dataset.classes is not None and settings.classes is None:  # the source numbers them itself
        return view.map(CustomRows(first, settings.separator, None)), dataset.classes
    classes: Sequence[str] | None = settings.classes
    if classes is None and any(isinstance(row.get("label"), str) for row in first):
        labels = (row.get("label") for _, row in Preparation().usable(view))
        classes = sorted({str(label) for label in labels if label not in (None, "")})
    return view.map(CustomRows(first, settings.separator, classes)), classes


def _open_other(
    data: Any, config: DatasetConfig, split: str | None, steps: Sequence[str], preparation: Preparation
) -> View:
    """Other data as this one, up to a step; what is dropped there counts here."""
    if isinstance(data, Mapping) and "dataset_name" in data:
        data = type(config).from_dict(data)
    other = data if isinstance(data, type(config)) else config.replace(dataset_name=data, path=None)
    prepared = prepare(other, split, steps)
    preparation.dropped += prepared.preparation.dropped
    preparation.first |= prepared.preparation.first
    return prepared.view


def _cache_key(config: DatasetConfig, split: str | None, steps: Sequence[str], fingerprint: str | None) -> str | None:
    """What the rows depend on before tokenization; `None` if that is an object, other data or a function in memory."""
    settings = config.custom_config
    if fingerprint is None or "mixing" in steps or callable(settings.filter_function):
        return None
    inputs = [str(_VERSION), str(config.dataset_name), str(split), fingerprint]
    for name in type(settings).model_fields:
        step = step_of_setting(name)
        if name not in (*_ON_BATCHES, "tokenizer") and (step is None or step in steps):
            inputs.append(f"{name}={getattr(settings, name)!r}")
    for step in (*steps, settings.filter_function or ""):
        reference = parse_reference(step)
        inputs.append(f"{step} {b'' if reference is None else hashlib.sha256(reference[0].read_bytes()).digest()!r}")
    return hashlib.sha256("\0".join(inputs).encode("utf-8", "surrogateescape")).hexdigest()


def _without_roles(sample: Sample) -> Sample:
    return {name: value for name, value in sample.items() if name != "roles"}
