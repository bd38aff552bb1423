# SPDX-License-Identifier: Apache-2.0
"""Checks of arrays: suspicious values, several splits in one file, files that differ from the others."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.data.arrays.files import Array, ArrayHeader
from fewbit.data.splits import Split, split_of_folder
from fewbit.data.types import DataReport, IssueType, Location, Sample, Severity
from fewbit.errors import plural

_VALUES: dict[str, Any] = {"on_error": "keep", "actions": ("raise", "drop")}
ARRAY_NAN = IssueType(
    "array-nan", Severity.ERROR, "array with NaN", "find the step that makes it (0/0, log of 0), or {on_error=drop}",
    **_VALUES,
)  # fmt: skip
ARRAY_INF = IssueType(
    "array-inf", Severity.WARNING, "array with infinite values", "use a large finite number", **_VALUES
)
ARRAY_CONSTANT = IssueType(
    "array-constant", Severity.WARNING, "array with one value only", "leave the sample out", **_VALUES,
    aliases=("array-zero",),
)  # fmt: skip
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
    "shape-differs", Severity.NOTE, "array with several shapes",
    "pad the arrays, or {batch_size=1}, if batches are needed",
)  # fmt: skip
DUPLICATE_SAMPLE = IssueType(
    "duplicate-sample", Severity.WARNING, "two samples with the same values", "remove one of them"
)
SPLITS_INSIDE = IssueType(
    "splits-inside", Severity.ERROR, "one file with the arrays of several splits",
    "save one file per split and open each", "raise", ("keep",),
)  # fmt: skip
STACK_SUSPECTED = IssueType(
    "stack-suspected", Severity.WARNING, "arrays that share their first axis, read as one sample per file",
    "{data_option=stacked=true} reads each entry as a sample; {data_option=stacked=false} confirms",
    aliases=("columns-suspected", "stacked-assumed"),
)  # fmt: skip
BATCH_SUSPECTED = IssueType(
    "batch-suspected", Severity.NOTE, "arrays that all begin with an axis of size 1, as if a batch axis was left in",
    "check with {model=model.onnx}; save array[0] if it is a batch axis",
)  # fmt: skip
VALUE_ISSUES = (ARRAY_NAN, ARRAY_INF, ARRAY_CONSTANT, ARRAY_EMPTY)
CHECK_ISSUES = (
    *VALUE_ISSUES, KEYS_DIFFER, RANK_DIFFERS, DTYPE_DIFFERS, SHAPE_DIFFERS, DUPLICATE_SAMPLE, SPLITS_INSIDE,
    STACK_SUSPECTED, BATCH_SUSPECTED,
)  # fmt: skip


def odd_values(sample: Sample) -> list[tuple[IssueType, str, str]]:
    """Values that are probably mistakes, with the array; constant integers are normal: a mask, a segment."""
    issues = []
    for name, array in sample.items():
        if not array.size:
            issues.append((ARRAY_EMPTY, f"shape {list(array.shape)}", name))
        elif array.dtype.kind in "fc" or (array.dtype == np.uint8 and array.ndim >= 2):
            with np.errstate(all="ignore"):
                low, high = array.min(), array.max()
                if np.isfinite(low) and np.isfinite(high):
                    if array.size > 1 and low == high:
                        issues.append((ARRAY_CONSTANT, f"{low if low else 'zero'} everywhere", name))
                    continue
                kind, test = (ARRAY_NAN, np.isnan) if np.isnan(array).any() else (ARRAY_INF, np.isinf)
                issues.append((kind, f"{int(test(array).sum()):,} of {plural(array.size, 'value')}", name))
    return issues


def digest(sample: Mapping[str, Array]) -> bytes:
    """A hash of names, dtypes, shapes and values."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = np.asarray(sample[name])
        hasher.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        hasher.update(array.tobytes())
    return hasher.digest()


def splits_inside(names: Sequence[str]) -> str:
    """What to write instead of a file with `x_train, y_train, x_test`; empty for an ordinary file.

    >>> splits_inside(["x_train", "x_test"])
    "arrays of train, test; write numpy.savez('train.npz', x=data['x_train'])"
    """
    splits: dict[Split, dict[str, str]] = defaultdict(dict)
    for name in names:
        first, *middle, last = re.split(r"[_\-./ ]", name) if re.search(r"[_\-./ ]", name) else (name, "")
        if split := split_of_folder(last):
            splits[split]["_".join((first, *middle))] = name
        elif split := split_of_folder(first):
            splits[split]["_".join((*middle, last))] = name
    stems = Counter(stem for arrays in splits.values() for stem in arrays)
    if len(splits) < 2 or max(stems.values()) < 2:
        return ""
    split, arrays = next(iter(splits.items()))
    words = ", ".join(f"{stem}=data[{name!r}]" for stem, name in arrays.items())
    return f"arrays of {', '.join(splits)}; write numpy.savez('{split}.npz', {words})"


def compare_array(report: DataReport, key: str, headers: Mapping[str, ArrayHeader], stacked: bool) -> None:
    """Report how one array differs between files.

    Args:
        report: takes issues.
        key: name of the array.
        headers: by file.
        stacked: whether the first axis counts samples.
    """
    ranks = Counter(len(header.shape) for header in headers.values())
    dtypes = Counter(header.dtype.newbyteorder("=") for header in headers.values())
    rank = max(ranks, key=lambda rank: (ranks[rank], rank))
    dtype = max(dtypes, key=lambda kind: (dtypes[kind], str(kind)))
    for name, header in headers.items() if len(ranks) > 1 or len(dtypes) > 1 else ():
        if len(header.shape) != rank:
            report.add(RANK_DIFFERS, f"{list(header.shape)}, elsewhere {rank} axes", Location(name, field=key))
        if header.dtype.newbyteorder("=") != dtype:
            report.add(DTYPE_DIFFERS, f"{header.dtype}, elsewhere {dtype}", Location(name, field=key))
    shapes = {header.shape for header in headers.values()}
    if len(shapes) > 1 and len(ranks) == 1 and not stacked:
        examples = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        report.add(SHAPE_DIFFERS, f"{plural(len(shapes), 'shape')}: {examples}", Location(field=key))


def suspect(report: DataReport, headers_by_file: Mapping[str, Mapping[str, ArrayHeader]], names: Sequence[str]) -> None:
    """Report other ways to read the files.

    Args:
        report: takes issues.
        headers_by_file: of the files that were looked at.
        names: of all files.
    """
    headers = [header for arrays in headers_by_file.values() for header in arrays.values()]
    firsts = {header.shape[:1] for header in headers}
    if headers and firsts == {(1,)} and all(len(header.shape) > 1 for header in headers):
        report.add(BATCH_SUSPECTED, f"first shape {list(headers[0].shape)}")
    if len(firsts) != 1 or firsts <= {(1,), ()}:
        return
    entries, rank = plural(headers[0].shape[0], "entry"), max(len(header.shape) for header in headers)
    # (3, H, W) alone is an image; ids and mask of one text are vectors.
    if len(names) == 1 and rank > (1 if len(headers) > 1 else 3):
        report.add(STACK_SUSPECTED, f"{entries}, read as one sample", Location(names[0]))
    elif 1 < len(names) <= 64 and all(re.fullmatch(r"\D+\.npy", name, re.IGNORECASE) for name in names):
        report.add(STACK_SUSPECTED, f"{plural(len(names), 'file')} of {entries}, read as one sample each")
