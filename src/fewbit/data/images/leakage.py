# SPDX-License-Identifier: Apache-2.0
"""The same image twice: in two splits (a test that was trained on), in two classes (a label contradicts itself)."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.data.duplicates import duplicates
from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.sample import Place
from fewbit.data.walk import Entry

CODES = {
    "duplicate-across-splits": Code(
        Severity.WARN, "the same image is in two splits: results on the second are too good", "keep it in one split"
    ),
    "duplicate-across-classes": Code(
        Severity.WARN, "the same image is in two classes: one label must be wrong", "keep it in its true class"
    ),
    "duplicate": Code(Severity.INFO, "the same image is twice in one class", "remove one"),
}

Placed = tuple[str, str, Entry]
"""Split, class and entry of an image."""


def copies(images: Sequence[Placed]) -> list[list[Placed]]:
    """Groups of images with the same bytes, each in the order of reading."""
    by_path = {placed[2].path: placed for placed in images}
    return [[by_path[entry.path] for entry in group] for group in duplicates(placed[2] for placed in images)]


def report_copies(images: Sequence[Placed], report: DataReport) -> None:
    """Report every image that repeats the content of an earlier one."""
    for first, *rest in copies(images):
        for split, name, entry in rest:
            code = "duplicate"
            if split != first[0]:
                code = "duplicate-across-splits"
            if name != first[1]:
                report.add("duplicate-across-classes", f"has the same bytes as {first[2].name}", Place(entry.name))
                if code == "duplicate":
                    continue
            report.add(code, f"has the same bytes as {first[2].name}", Place(entry.name))
