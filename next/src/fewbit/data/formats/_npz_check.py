# SPDX-License-Identifier: Apache-2.0
"""Checks of arrays: suspicious values, several splits in one file, files that differ from the others."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.formats._npy import Array, ArrayHeader
from fewbit.data.splits import Split, split_of_folder
from fewbit.data.types import DataReport, IssueType, Location, Sample, Severity
from fewbit.errors import plural

_VALUES: dict[str, Any] = {"on_error": "keep", "actions": ("raise", "drop"), "fix": ""}
ARRAY_NAN = IssueType(
    "array-nan",
    Severity.ERROR,
    "array with NaN",
    "find the step that makes it (0/0, log of 0), or {on_error=drop}",
    **_VALUES,
)
ARRAY_INF = IssueType(
    "array-inf", Severity.WARNING, "array with infinite values", "use a large finite number", **_VALUES
)
ARRAY_ZERO = IssueType("array-zero", Severity.WARNING, "array of zeros only", "leave the sample out", **_VALUES)
ARRAY_CONSTANT = IssueType(
    "array-constant", Severity.WARNING, "array with one value only", "leave the sample out", **_VALUES
)
ARRAY_EMPTY = IssueType("array-empty", Severity.WARNING, "array without values", "leave the sample out", **_VALUES)
KEYS_DIFFER = IssueType(
    "keys-differ", Severity.ERROR, "file whose arrays have other names than in most files",
    "save the same names in each file", "keep",
    ("raise", "drop", "repair"), "renames arrays whose names differ only in case, `:0` or separators",
)  # fmt: skip
RANK_DIFFERS = IssueType(
    "rank-differs", Severity.ERROR, "array with more or fewer axes than in most files",
    "save the same axes in each file", "keep", ("raise", "drop"),
)  # fmt: skip
DTYPE_DIFFERS = IssueType(
    "dtype-differs", Severity.WARNING, "array with another dtype than in most files", "save the same dtype in each file"
)
SHAPE_DIFFERS = IssueType(
    "shape-differs",
    Severity.NOTE,
    "array with several shapes",
    "pad the arrays, or {batch_size=1}, if batches are needed",
)
DUPLICATE_SAMPLE = IssueType(
    "duplicate-sample", Severity.WARNING, "two samples with the same values", "remove one of them"
)
SPLITS_INSIDE = IssueType(
    "splits-inside", Severity.ERROR, "one file with the arrays of several splits",
    "save one file per split and open each", "raise", ("keep",),
)  # fmt: skip
STACK_SUSPECTED = IssueType(
    "stack-suspected", Severity.NOTE, "one file whose arrays share their first axis, read as one sample",
    "{data_option=stacked=true} reads each entry as a sample; stacked=false confirms",
)  # fmt: skip
COLUMNS_SUSPECTED = IssueType(
    "columns-suspected", Severity.NOTE, ".npy files with the same first axis, read as one sample each",
    "{data_option=stacked=true} reads them as columns of one dataset; stacked=false confirms",
)  # fmt: skip
BATCH_SUSPECTED = IssueType(
    "batch-suspected", Severity.NOTE, "arrays that all begin with an axis of size 1, as if a batch axis was left in",
    "check with {model=model.onnx}; save array[0] if it is a batch axis",
)  # fmt: skip
VALUE_ISSUES = (ARRAY_NAN, ARRAY_INF, ARRAY_ZERO, ARRAY_CONSTANT, ARRAY_EMPTY)
CHECK_ISSUES = (
    *VALUE_ISSUES, KEYS_DIFFER, RANK_DIFFERS, DTYPE_DIFFERS, SHAPE_DIFFERS, DUPLICATE_SAMPLE, SPLITS_INSIDE,
    STACK_SUSPECTED, COLUMNS_SUSPECTED, BATCH_SUSPECTED,
)  # fmt: skip


def odd_values(sample: Sample) -> list[tuple[IssueType, str, str]]:
    """Values that are probably mistakes; constant integers are normal: a mask, a segment."""
    issues = []
    for name, array in sample.items():
        if array.size == 0:
            issues.append((ARRAY_EMPTY, f"shape {list(array.shape)}", name))
        if array.size == 0 or not (array.dtype.kind in "fc" or (array.dtype == np.uint8 and array.ndim >= 2)):
            continue
        with np.errstate(all="ignore"):
            low, high = array.min(), array.max()
            if np.isfinite(low) and np.isfinite(high):
                if array.size > 1 and low == high:
                    kind = ARRAY_CONSTANT if low else ARRAY_ZERO
                    issues.append((kind, f"{low} everywhere" if low else "zero everywhere", name))
                continue
            invalid = int(np.isnan(array).sum())
        if invalid:
            issues.append((ARRAY_NAN, f"{invalid:,} of {plural(array.size, 'value')}", name))
        else:
            issues.append((ARRAY_INF, f"{int(np.isinf(array).sum()):,} of {plural(array.size, 'value')}", name))
    return issues


def digest(sample: Mapping[str, Array]) -> bytes:
    """A hash of names, dtypes, shapes and values."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = np.asarray(sample[name])
        hasher.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        hasher.update(array.tobytes())
    return hasher.digest()


def splits_inside(infos: Mapping[str, ArrayHeader]) -> str:
    """What to write instead of a file with `x_train, y_train, x_test`; empty for an ordinary file."""
    splits: dict[Split, dict[str, str]] = defaultdict(dict)
    for name in infos:
        words = re.split(r"[_\-./ ]", name)
        for position in (-1, 0):
            if len(words) > 1 and (split := split_of_folder(words[position])):
                splits[split]["_".join(words[:-1] if position else words[1:])] = name
                break
    stems = Counter(stem for names in splits.values() for stem in names)
    if len(splits) < 2 or max(stems.values()) < 2:
        return ""
    split, names = next(iter(splits.items()))
    arrays = ", ".join(f"{stem}=data[{name!r}]" for stem, name in names.items())
    return f"arrays of {', '.join(splits)}; write numpy.savez('{split}.npz', {arrays})"


def compare_array(report: DataReport, key: str, infos: Mapping[str, ArrayHeader], stacked: bool) -> None:
    """Report how one array differs between files.

    Args:
        report: takes issues.
        key: name of the array.
        infos: its headers by file.
        stacked: whether the first axis counts samples.
    """
    ranks = Counter(len(info.shape) for info in infos.values())
    dtypes = Counter(info.dtype.newbyteorder("=") for info in infos.values())
    rank, dtype = (
        max(ranks, key=lambda rank: (ranks[rank], rank)),
        max(dtypes, key=lambda kind: (dtypes[kind], str(kind))),
    )
    for name, info in infos.items() if len(ranks) > 1 or len(dtypes) > 1 else ():
        if len(info.shape) != rank:
            report.add(RANK_DIFFERS, f"{list(info.shape)}, elsewhere {rank} axes", Location(name, field=key))
        if info.dtype.newbyteorder("=") != dtype:
            report.add(DTYPE_DIFFERS, f"{info.dtype}, elsewhere {dtype}", Location(name, field=key))
    shapes = {info.shape for info in infos.values()}
    if len(shapes) > 1 and len(ranks) == 1 and not stacked:
        examples = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        report.add(SHAPE_DIFFERS, f"{plural(len(shapes), 'shape')}: {examples}", Location(field=key))


def suspect(report: DataReport, headers: Mapping[str, Mapping[str, ArrayHeader]], names: Sequence[str]) -> None:
    """Report other ways to read the files, as notes.

    Args:
        report: takes issues.
        headers: arrays by file, of the files that were looked at.
        names: of all files.
    """
    infos = [info for infos in headers.values() for info in infos.values()]
    firsts = {info.shape[:1] for info in infos}
    same_first_axis = len(firsts) == 1 and (1,) not in firsts and () not in firsts
    max_rank = max((len(info.shape) for info in infos), default=0)
    if same_first_axis and len(names) == 1:
        if max_rank > (1 if len(infos) > 1 else 3):  # (3, H, W) alone is an image; ids and mask of one text are vectors
            report.add(STACK_SUSPECTED, f"{infos[0].shape[0]:,} entries", Location(names[0]))
    elif same_first_axis and 1 < len(names) <= 64 and all(name.lower().endswith(".npy") for name in names):
        report.add(COLUMNS_SUSPECTED, f"{plural(len(names), 'file')} of {infos[0].shape[0]:,} entries")
    elif infos and all(info.shape[:1] == (1,) and len(info.shape) > 1 for info in infos):
        report.add(BATCH_SUSPECTED, f"first shape {list(infos[0].shape)}")


def describe(infos: Sequence[ArrayHeader], stacked: bool) -> dict[str, Any]:
    """dtype, and shape with `None` for axes that vary."""
    shapes = {info.shape[1:] if stacked else info.shape for info in infos}
    ranks = {len(shape) for shape in shapes}
    shape = (
        [axes.pop() if len(axes := set(column)) == 1 else None for column in zip(*shapes)] if len(ranks) == 1 else None
    )
    return {"dtype": str(infos[0].dtype.newbyteorder("=")), "shape": shape}
