# SPDX-License-Identifier: Apache-2.0
"""The whole dataset looked at: every fault into a report, and what can only be judged over all label files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from fewbit.data.boxes import pictures
from fewbit.data.boxes.background import missing_labels
from fewbit.data.boxes.fault import Decide, Fault, reporting
from fewbit.data.boxes.finder import Item
from fewbit.data.boxes.labels import Labels, SizeOf, read_labels
from fewbit.data.boxes.layout import Layout
from fewbit.data.boxes.pixels import READINGS
from fewbit.data.boxes.reading import DETECTION, SEGMENTATION
from fewbit.data.boxes.rows import Rules
from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.images.decode import ImageFault, image_size
from fewbit.data.images.inspection import Inspection
from fewbit.data.sample import Place

CODES = {
    "labels-all-empty": Code(
        Severity.WARN, "no label file has a row that can be used", "look whether labels were lost"
    ),
    "classes-from-one": Code(
        Severity.WARN,
        "no row has class 0: the classes may be counted from 1",
        "if they are, say so: one_based=True in Python, --option one_based=true on the command line, with --fix too",
    ),
    "maybe-oriented": Code(
        Severity.WARN,
        "every polygon has four points: these may be oriented boxes",
        "say which: oriented=True (boxes at an angle) or oriented=False (polygons)",
    ),
    "no-polygons": Code(
        Severity.WARN, "segmentation was asked for, but every row is a box", "masks will be filled rectangles"
    ),
}


@dataclass
class Survey:
    """What all label files say together.

    Args:
        classes: how many objects each class has, also those beyond `nc`.
        boxes, polygons: how many rows are boxes and polygons.
        nine, slanted: how many polygons have four points, and how many of those are no upright rectangle.
        readings: the ways to read pixels that fit every row in pixels; `None`: no row was in pixels.
        images: what was seen of the images.
    """

    classes: Counter[int] = field(default_factory=Counter)
    boxes: int = 0
    polygons: int = 0
    nine: int = 0
    slanted: int = 0
    empty: int = 0
    readings: set[str] | None = None
    images: Inspection = field(default_factory=Inspection)
    slanted_at: Place | None = None

    @property
    def one_based(self) -> bool:
        """No object has class 0."""
        return bool(self.classes) and min(self.classes) >= 1

    def add(self, item: Item, labels: Labels) -> None:
        """Take in one label file."""
        self.classes.update(shape.cls for shape in labels.shapes)
        self.boxes += sum(shape.polygon is None for shape in labels.shapes)
        self.polygons += labels.outlines
        self.nine += labels.nine
        self.slanted += labels.slanted
        self.empty += labels.empty
        if labels.slanted and self.slanted_at is None:
            self.slanted_at = Place(item.label.name)
        if labels.readings is not None:
            self.readings = labels.readings & (set(READINGS) if self.readings is None else self.readings)


def survey(layout: Layout, report: DataReport, rules: Rules, task: str | None, *, quick: bool) -> Survey:
    """Report every fault of a dataset and say what was understood of it."""
    decide = reporting(report)
    # Two splits may be the same files (`train: images`, `val: images`): each is looked at, and told about, once.
    for fault in dict.fromkeys(replace(fault, split=None) for fault in [*layout.faults, *missing_labels(layout)]):
        decide(fault)
    seen = Survey()
    items: dict[str, Item] = {}
    for item in layout.items:
        if item.labelled:
            items.setdefault(item.label.path, item)
    for item in report.progress.track(items.values(), total=len(items), label="label files"):
        labels = read_labels(item.label, rules, _keeping_classes(decide), size_of(item))
        if labels.empty:
            report.add("label-empty", f"{item.label.name} is empty", Place(item.image.name))
        seen.add(item, labels)
    seen.images = pictures.check_pictures(layout, report, quick=quick)
    _judge(layout, seen, report, rules, task)
    report.understood.update(_understood(layout, seen, rules, task))
    return seen


def size_of(item: Item) -> SizeOf:
    """Asks an item's image for its size; `None` when the image cannot say."""

    def ask() -> tuple[int, int] | None:
        try:
            return image_size(item.image.path)
        except ImageFault:
            return None

    return ask


def _keeping_classes(decide: Decide) -> Decide:
    # A class beyond the names is reported, but still counts when the classes are looked at together.
    def deciding(fault: Fault) -> str:
        action = decide(fault)
        return "keep" if fault.code == "class-beyond" else action

    return deciding


def _judge(layout: Layout, seen: Survey, report: DataReport, rules: Rules, task: str | None) -> None:
    files = len({item.label.path for item in layout.items if item.labelled})
    if files and not seen.classes:
        message = f"none of the {files} label files has a row that can be used"
        if seen.empty == files:
            message = f"every label file is empty, {files} of {files}"
        report.add("labels-all-empty", message, Place("."))
    if seen.one_based and not rules.one_based:
        span = f"classes run from {min(seen.classes)} to {max(seen.classes)}"
        known = f", and there are {layout.nc} names" if layout.nc else ""
        report.add("classes-from-one", span + known, Place("."))
    # An upright rectangle is the same object under both readings.
    if seen.slanted and seen.nine == seen.polygons and rules.oriented is None:
        message = f"all {seen.nine} rows that are not boxes have nine values"
        report.add("maybe-oriented", message, seen.slanted_at)
    if task == SEGMENTATION and not seen.polygons and seen.boxes:
        report.add("no-polygons", f"all {seen.boxes} rows are boxes", Place("."))


def _understood(layout: Layout, seen: Survey, rules: Rules, task: str | None) -> dict[str, Any]:
    outlines = seen.polygons - (seen.nine if rules.oriented else 0)
    names = dict(enumerate(layout.names))
    missing = {item.image.path for item in layout.items if not item.labelled}
    return {
        "task": task or (SEGMENTATION if outlines else DETECTION),
        "layout": layout.found.kind,
        "splits": layout.splits,
        "classes": list(layout.names) or None,
        "nc": layout.nc,
        "images": len(layout.items),
        "objects": {names.get(cls, str(cls)): count for cls, count in sorted(seen.classes.items())},
        "boxes": seen.boxes,
        "polygons": seen.polygons,
        "background": {"label_missing": len(missing), "label_empty": seen.empty},
        **seen.images.facts(),
    }
