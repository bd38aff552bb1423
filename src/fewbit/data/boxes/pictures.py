# SPDX-License-Identifier: Apache-2.0
"""The image files of a dataset, checked, and whether the splits share any."""

from __future__ import annotations

import os
from itertools import combinations

from fewbit.data.boxes.layout import Layout
from fewbit.data.duplicates import duplicates
from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.images import decode, leakage
from fewbit.data.images.inspection import Inspection, inspect_images
from fewbit.data.sample import Place
from fewbit.data.split_names import SPLITS, UNSPLIT
from fewbit.data.walk import Entry

_SHARED = "duplicate-across-splits"

CODES = {
    **decode.CODES,
    _SHARED: leakage.CODES[_SHARED],
    "splits-alike": Code(
        Severity.INFO, "two splits are the same images", "results on one say nothing that the other does not"
    ),
}

_MANY = 500  # images from which on a second process is worth its start


def check_pictures(layout: Layout, report: DataReport, *, quick: bool) -> Inspection:
    """Report every image that cannot be used or is suspect, and every one that two splits share.

    Args:
        layout: the dataset.
        report: where to.
        quick: look at names and first bytes only, and compare no contents.
    """
    splits: dict[str, set[str]] = {}
    for item in layout.items:
        splits.setdefault(item.image.path, set()).add(item.split)
    entries = list({item.image.path: item.image for item in layout.items}.values())
    workers = min(4, os.cpu_count() or 1) if len(entries) >= _MANY else 1
    found = inspect_images(entries, report, quick=quick, workers=workers)
    _check_shared(entries, splits, report)
    if not quick and len(layout.splits) > 1:
        _check_copies(entries, splits, report)
    return found


def _check_shared(entries: list[Entry], splits: dict[str, set[str]], report: DataReport) -> None:
    """Images that two splits name. Whole splits that are the same are meant so: one line instead of one an image."""
    members: dict[str, set[str]] = {}
    for path, found in splits.items():
        for split in found:
            members.setdefault(split, set()).add(path)
    names = [split for split in (*SPLITS, UNSPLIT) if split in members]
    alike = {(a, b) for a, b in combinations(names, 2) if members[a] == members[b]}
    for a, b in sorted(alike):
        report.add("splits-alike", f"{a} and {b} are the same {len(members[a])} images", Place("."))
    for image in entries:
        shared = [split for split in names if split in splits[image.path]]
        if not alike.issuperset(combinations(shared, 2)):
            report.add(_SHARED, f"is in {' and in '.join(shared)}", Place(image.name))


def _check_copies(entries: list[Entry], splits: dict[str, set[str]], report: DataReport) -> None:
    for first, *rest in duplicates(entries):
        for entry in rest:
            apart = splits[entry.path] - splits[first.path]
            if apart:
                message = f"has the same bytes as {first.name}, in {' and '.join(sorted(splits[first.path]))}"
                report.add(_SHARED, message, Place(entry.name))
