# SPDX-License-Identifier: Apache-2.0
"""Images without labels: told apart, listed, and explained when it is most of them.

An image may be background: its label file is missing, or there and empty. Both are legal. A split in which
most label files are missing is a mistake more often than not, and a dataset without a single one always is.
"""

from __future__ import annotations

import itertools
import os
from pathlib import PurePosixPath

from fewbit.data import walk
from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.finder import Item
from fewbit.data.boxes.layout import Layout
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place

CODES = {
    "labels-none": Code(
        Severity.ERROR,
        "no image has a label file",
        "put the label files where they are looked for",
        "raise",
        ("keep",),
    ),
    "labels-mostly-missing": Code(
        Severity.WARN, "more than half of the images of a split have no label file", "look whether labels were lost"
    ),
    "label-missing": Code(Severity.INFO, "an image has no label file: background", "nothing, if nothing is on it"),
    "label-empty": Code(Severity.INFO, "an image has an empty label file: background", "nothing, if nothing is on it"),
}

_LOOK_AT = 50_000  # files that the search for misplaced labels looks at


def missing_labels(layout: Layout) -> list[Fault]:
    """A fault for every image without a label file, and one for a split or a dataset where that cannot be right."""
    missing = [item for item in layout.items if not item.labelled]
    faults = [Fault("label-missing", f"{item.label.name} is not there", Place(item.image.name)) for item in missing]
    if layout.items and len(missing) == len(layout.items):
        return [_none(layout), *faults]
    for split, count in layout.splits.items():
        lost = [item for item in missing if item.split == split]
        if 2 * len(lost) > count:
            share = f"{len(lost)} of the {count} images ({100 * len(lost) // count} %) of {split}"
            message = f"{share} have no label file; {_mismatches(lost)}"
            faults.insert(0, Fault("labels-mostly-missing", message, Place(lost[0].image.name)))
    return faults


def _none(layout: Layout) -> Fault:
    items = layout.items
    message = f"none of the {len(items)} images has a label file; {_mismatches(items)}"
    return Fault("labels-none", message, Place(items[0].label.name), _guess(layout))


def _mismatches(items: list[Item]) -> str:
    return "; ".join(f"{item.image.name} needs {item.label.name}, tried {item.label.path}" for item in items[:3])


def _guess(layout: Layout) -> str:
    """Where the labels may be instead."""
    root = layout.found.root
    entries = list(itertools.islice(walk.walk(root), _LOOK_AT))
    wanted = {PurePosixPath(item.image.name).stem for item in layout.items}
    first = layout.items[0]
    needed = os.path.dirname(first.label.name) or "the folder of the images"
    texts = [entry for entry in entries if entry.name.endswith(".txt")]
    same = [entry for entry in texts if PurePosixPath(entry.name).stem in wanted]
    if same:
        folder = os.path.dirname(same[0].name) or "."
        return f"label files of the right names lie in {folder}: move them to {needed}"
    for suffix, kind in ((".xml", "Pascal VOC"), (".json", "COCO or LabelMe")):
        if any(entry.name.endswith(suffix) for entry in entries):
            return f"there are {suffix} files, perhaps {kind} annotations: convert them to YOLO label files in {needed}"
    if texts:
        name = f"{os.path.basename(first.image.name)} to {os.path.basename(first.label.name)}"
        return f"there are .txt files such as {texts[0].name}, but none is named like an image ({name}): rename them"
    return f"there is no .txt file in {root}: put the label files into {needed}"
