# SPDX-License-Identifier: Apache-2.0
"""Which rows are trained on and which are validated on: the data's own splits, or a cut by content if one is requested.

Every row is trained on unless `validation_ratio` says otherwise. A cut goes by the content of rows, so equal rows are
on one side whatever their order, and by class, so both sides have every class in proportion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fewbit.data.loading.presets import DatasetPreset
from fewbit.data.loading.views import Preparation, Selected, View
from fewbit.data.splits import split_of_file
from fewbit.data.types import SampleError
from fewbit.errors import DataError, UsageError, nearest, plural

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

VALIDATION = "val"
_ORJSON = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def split_rows(
    view: View,
    splits: Mapping[str, int],
    split: str | None,
    preset: DatasetPreset,
    settings: CustomConfig,
    report: Preparation,
) -> View:
    """The rows of one split.

    Args:
        view: every row, split after split.
        splits: how many rows each split of the data has, in order.
        split: `train`, `validation`, another name of the data's, or `None` for every row.
        preset: says what its data calls them.
        settings: `train_split`, `validation_split`, `validation_ratio`, `seed`.
        report: gets a note if rows are split off.

    Raises:
        UsageError: there is no such split.
    """
    if split is None:
        return view
    meaning = _canonical(split)
    train = _name_in_data(settings.train_split or "train", splits, settings.train_split is not None)
    named = settings.validation_split or (preset.splits or {}).get(VALIDATION)
    held_out = _name_in_data(settings.validation_split or VALIDATION, splits, settings.validation_split is not None)
    if held_out is None and named is not None:
        held_out = _name_in_data(named, splits, False)
    if meaning not in ("train", VALIDATION):
        name = _name_in_data(split, splits, True)
        assert name is not None
        return _rows_of_split(view, splits, name)
    if meaning == VALIDATION and held_out is not None:
        return _rows_of_split(view, splits, held_out)
    if train is None and len(splits) > 1:
        raise UsageError(
            f"the data has the splits {', '.join(splits)}, none of which is train", code="split-missing", param="split",
            expected="a split to train on", hint="custom_config={'train_split': …}",
        )  # fmt: skip
    rows = view if train is None else _rows_of_split(view, splits, train)
    if settings.validation_ratio == 0 or held_out is not None:
        if meaning == "train":
            return rows
        raise UsageError(
            "the data has no validation split", code="split-missing", param="split",
            expected=", ".join(splits) or "rows of one split only",
            hint="custom_config={'validation_ratio': 0.1} cuts one off",
        )  # fmt: skip
    validation = validation_rows(rows, settings.validation_ratio, settings.seed)
    side = np.flatnonzero(validation if meaning == VALIDATION else ~validation)
    report.notes.append(f"validation: {plural(int(validation.sum()), 'row')} of {len(validation):,} cut off by content")
    return Selected(rows, side)


def validation_rows(view: View, ratio: float, seed: int) -> np.ndarray:
    """Which rows are validated on: boolean, one per row."""
    draws, strata = _draws_and_strata(view, seed)
    validation = cut(draws, strata, ratio)
    if validation.all() or not validation.any():
        raise DataError(
            f"{plural(len(validation), 'row')} cannot be cut in two", code="too-few-rows",
            expected="two different rows", hint="custom_config={'validation_ratio': 0} trains on all of them",
        )  # fmt: skip
    return validation


def cut(draws: np.ndarray, strata: Sequence[Any], ratio: float) -> np.ndarray:
    """Choose a share of each stratum by the lowest draws; equal draws are equal rows and stay together.

    >>> cut(np.array([5, 1, 9, 1], np.uint64), ["a"] * 4, 0.25).tolist()
    [False, True, False, True]
    """
    _, codes = np.unique(np.asarray([str(value) for value in strata]), return_inverse=True)
    # Equal rows under different classes would be cut apart: the first of them decides for all.
    _, first, group = np.unique(draws, return_index=True, return_inverse=True)
    codes = codes[first][group]
    sizes = np.bincount(codes)
    exact = sizes * ratio
    quotas = np.floor(exact).astype(np.int64)
    total = max(1, round(ratio * len(draws)))
    quotas[np.argsort(quotas - exact, kind="stable")[: max(0, total - int(quotas.sum()))]] += 1
    validation = np.zeros(len(draws), bool)
    for stratum, quota in enumerate(quotas):
        members = np.flatnonzero(codes == stratum)
        values, counts = np.unique(draws[members], return_counts=True)
        groups = int(np.searchsorted(np.cumsum(counts), quota)) + 1 if quota else 0
        # One row of each class stays in train, unless there is nothing else to validate on.
        most = len(values) - 1 if len(values) > 1 or len(quotas) > 1 else 0
        validation[members] = np.isin(draws[members], values[: min(groups, most)])
    return validation


def _draws_and_strata(view: View, seed: int) -> tuple[np.ndarray, Sequence[Any]]:
    strata = view.strata()
    draws = np.empty(len(view), np.uint64)
    labels = [""] * len(view) if strata is None else list(strata)
    by_index = _has_arrays(view)  # images are not decoded to be compared
    for index in range(len(view)):
        content: Any = index
        if not by_index:
            try:
                content = view.get(index)
            except SampleError as error:
                content = error.issue.message
            if strata is None and isinstance(content, Mapping):
                labels[index] = content.get("label", "")
        draws[index] = _draw(content, seed)
    # More strata than could be spread are answers, not classes.
    return draws, labels if len({str(label) for label in labels}) <= max(50, len(labels) // 2) else [""] * len(labels)


def _has_arrays(view: View) -> bool:
    for index in range(min(len(view), 8)):
        try:
            return any(isinstance(value, np.ndarray) for value in view.get(index).values())
        except SampleError:
            continue
    return False


def _draw(content: Any, seed: int) -> int:
    """64 bits that depend on the content of a row and the seed only."""
    try:
        data = orjson.dumps(content, option=_ORJSON, default=repr)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
        data = repr(sorted(content.items()) if isinstance(content, Mapping) else content).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=str(seed).encode()).digest(), "little")


def _rows_of_split(view: View, splits: Mapping[str, int], name: str) -> View:
    """The rows of one split; splits are stored one after the other."""
    names = list(splits)
    start = sum(splits[earlier] for earlier in names[: names.index(name)])
    return view if splits[name] == len(view) else Selected(view, np.arange(start, start + splits[name]))


def _name_in_data(name: str, splits: Mapping[str, int], required: bool) -> str | None:
    """What the data calls a split."""
    meaning = _canonical(name)
    matched = name if name in splits else next((split for split in splits if _canonical(split) == meaning), None)
    if matched is None and required:
        raise UsageError(
            f"there is no split {name!r}", code="split-missing", param="split",
            expected=", ".join(nearest(name, splits) or splits) or "data with splits",
            hint="give one of these, or None for every row",
        )  # fmt: skip
    return matched


def _canonical(name: str) -> str:
    return split_of_file(name) or name
