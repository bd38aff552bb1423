# SPDX-License-Identifier: Apache-2.0
"""YOLO detection and segmentation: images, and label files with one box or polygon per row; with or without data.yaml.

A sample has

    image      uint8 [H, W, 3], RGB, upright
    boxes      float32 [n, 4]: centre x, centre y, width, height, relative to the image
    classes    int64 [n]
    polygons   n entries: float32 [k, 2], relative to the image, or None if the row is a box
    masks      bool [n, H, W], for segmentation: polygons by the even-odd rule, boxes as rectangles
"""

from __future__ import annotations

import itertools
import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.detection import issues
from fewbit.data.detection.objects import Object, ReportIssue, Size
from fewbit.data.detection.source import (
    DETECTION,
    SEGMENTATION,
    Annotation,
    DetectionSource,
    Entry,
    OnError,
    RepairedImage,
    change_line,
    copy_others,
    detection_task,
    repaired_images,
)
from fewbit.data.detection.yolo_labels import PIXEL_CONVENTIONS, RowOptions, format_row, looks_like_labels, read_labels
from fewbit.data.detection.yolo_layout import YoloLayout, lay_out, split_folders, yaml_files
from fewbit.data.detection.yolo_tree import Tree
from fewbit.data.images.file_source import copy_file, example_image, read_head
from fewbit.data.images.format_options import flag_option, wrong_option
from fewbit.data.images.signatures import is_image_name
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    Location,
    Sample,
    SampleError,
)
from fewbit.errors import plural

_MOST_IMAGES_SEEN, _MOST_TEXTS_SEEN, _MOST_LABELS_SEEN = 500, 8, 64
_HEAD = 4096
_LABEL_BYTES, _LABEL_ROWS = 4 << 20, 1 << 15
"""More is not a label file; parsing it would take long."""


def detect(files: Files) -> Detection | None:
    """A data.yaml with splits, folders of images and labels, or label files next to images."""
    tree = Tree(files)
    for data in yaml_files(tree):
        if data.splits and (data.names or data.class_count or tree.alone):
            return Detection(0.95, f"{data.name} names splits and classes")
    if tree.alone or not tree.names:
        return None
    kind, folders = split_folders(tree)
    names = itertools.chain.from_iterable(tree.below(folder, DataReport()) for _, folder in folders)
    images = list(itertools.islice(filter(is_image_name, names), _MOST_IMAGES_SEEN))
    texts = [text for text in map(tree.label_of, images) if text]
    heads = list(
        itertools.islice(filter(None, (read_head(tree.files, text, _HEAD) for text in texts)), _MOST_TEXTS_SEEN)
    )
    has_rows = any(map(looks_like_labels, heads))
    if kind == "same folder":
        confidence = 1.0 if 2 * len(texts) > len(images) else 0.85
        return Detection(confidence, "label files that belong to images") if has_rows else None
    if texts and (has_rows or not heads):
        return Detection(0.92, f"folders of images and labels: {kind}")
    annotated = any(name.lower().endswith((".json", ".xml")) for name in tree.names)
    return Detection(0.2 if annotated or texts else 0.4, f"{kind}, but no label files") if images else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> YoloSource:
    """Pair images with label files; with `full` depth also read both."""
    task = detection_task(options)
    oriented = flag_option("oriented", options.get("oriented"))
    pixels = options.get("pixels")
    if pixels not in (None, *PIXEL_CONVENTIONS):
        raise wrong_option("pixels", pixels, ", ".join(PIXEL_CONVENTIONS))
    before = len(report.issues)
    layout = lay_out(files, report, options.get("split"))
    one_based = bool(flag_option("one_based", options.get("one_based")))
    rows = RowOptions(layout.names, layout.class_count, one_based, pixels or ("" if depth == "index" else None))
    source = YoloSource(layout, rows, report.on_error)
    source.changes = [change_line(issue) for issue in report.issues[before:] if issue.type.fix]
    source.facts["task"] = task or (SEGMENTATION if source.has_polygons(oriented is True) else DETECTION)
    survey = _Survey(source, report)
    source.check(report, depth, survey.add)
    if depth == "full":
        survey.judge(task, oriented)
        source.rows = replace(rows, pixels=pixels or survey.pixel_convention(), pixel_boxes=[])
        if task is None:
            outlines = survey.polygons - (survey.quads if oriented else 0)
            source.facts["task"] = report.facts["task"] = SEGMENTATION if outlines else DETECTION
    return source


class YoloSource(DetectionSource):
    """Images with their label files."""

    def __init__(self, layout: YoloLayout, rows: RowOptions, on_error: OnError):
        # Two splits may be the same folder; then every image is still read once.
        once: dict[str, Entry] = {}
        for entry in layout.entries:
            once.setdefault(entry.name, entry)
        counts = Counter(entry.split for entry in layout.entries)
        splits = {split: counts[split] for split in SPLITS if counts[split]}
        facts = {"classes": list(layout.names), "splits": splits, "layout": layout.kind}
        super().__init__(layout.tree.files, once.values(), facts, on_error)
        self.rows = rows
        self.unusable |= layout.shared
        self.repeated = [entry for entry in layout.entries if entry is not once[entry.name]]  # in a second split
        self.changes: list[str] = []  # that a repaired copy makes because of the layout

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The rows of the label file."""
        label = self.entries[index].annotation
        if not label:
            return Annotation()
        try:
            content = self.files.read(label, _LABEL_BYTES + 1)
        except SampleError as error:
            raise SampleError(Issue(issues.LABEL_UNREADABLE, error.issue.message, Location(label))) from error
        if len(content) > _LABEL_BYTES or max(content.count(b"\n"), content.count(b"\r")) > _LABEL_ROWS:
            message = f"more than {_LABEL_BYTES:,} bytes or {_LABEL_ROWS:,} rows"
            raise SampleError(Issue(issues.LABEL_UNREADABLE, message, Location(label)))
        return read_labels(content, label, self.rows, size, issue)

    def sample(self, index: int, image: np.ndarray, objects: list[Object]) -> Sample:
        """Also the polygons."""
        polygons = [instance.polygons[0].astype(np.float32) if instance.polygons else None for instance in objects]
        return {**super().sample(index, image, objects), "polygons": polygons}

    def has_polygons(self, oriented: bool) -> bool:
        """Whether one of a few label files, evenly chosen, holds a polygon."""
        labels = [entry.annotation for entry in self.entries if entry.annotation]
        for label in labels[:: max(1, len(labels) // _MOST_LABELS_SEEN)]:
            counts = {len(row.split()) for row in read_head(self.files, label, _HEAD).splitlines()}
            if any(count >= 7 and count % 2 == 1 and not (count == 9 and oriented) for count in counts):
                return True
        return False


@dataclass
class _Survey:
    """What can only be judged over all label files."""

    source: YoloSource
    report: DataReport
    classes: Counter[int] = field(default_factory=Counter)
    polygons: int = 0
    quads: int = 0
    slanted: str = ""  # a label file with an oriented box, perhaps
    files: int = 0

    def add(self, index: int, labels: Annotation) -> None:
        """Count one label file."""
        entry = self.source.entries[index]
        if not entry.annotation:
            return
        self.files += 1
        if not labels.annotated:
            self.report.add(issues.LABEL_EMPTY, f"{entry.annotation} is empty", Location(entry.name))
        self.classes.update(instance.class_index for instance in labels.objects)
        for outline in (instance.polygons[0] for instance in labels.objects if instance.polygons):
            self.polygons += 1
            self.quads += len(outline) == 4
            if len(outline) == 4 and max(len(set(side)) for side in outline.T.tolist()) > 2:
                self.slanted = self.slanted or entry.annotation

    def pixel_convention(self) -> str:
        """The convention that fits every row in pixels; empty if several do: a guess would move boxes."""
        conventions, places = self.source.rows.conventions, self.source.rows.pixel_boxes
        if len(conventions) > 1 and places:
            names = " or ".join(name for name in PIXEL_CONVENTIONS if name in conventions)
            message = f"{plural(len(places), 'row')} in pixels, such as this, fit as {names}"
            self.report.add(issues.PIXELS_AMBIGUOUS, message, places[0])
            return ""
        if not conventions:
            self.report.add(issues.PIXELS_UNFIT, "no way to write boxes in pixels fits all rows", Location("."))
        return next(iter(conventions), "") if len(conventions) == 1 else ""

    def judge(self, task: str | None, oriented: bool | None) -> None:
        """Report what is suspicious about all label files together."""
        if self.files and not self.classes:
            self.report.add(issues.LABELS_ALL_EMPTY, plural(self.files, "label file"), Location("."))
        if self.classes and min(self.classes) >= 1 and not self.source.rows.one_based:
            message = f"classes are {min(self.classes)} to {max(self.classes)}"
            self.report.add(issues.CLASSES_FROM_ONE, message, Location("."))
        # An upright rectangle is the same either way.
        if self.slanted and self.quads == self.polygons and oriented is None:
            message = f"all {plural(self.quads, 'row')} that are not boxes have nine values"
            self.report.add(issues.MAYBE_ORIENTED, message, Location(self.slanted))
        if task == SEGMENTATION and self.classes and not self.polygons:
            self.report.add(issues.NO_POLYGONS, f"all {plural(self.classes.total(), 'row')} are boxes", Location("."))


def write(source: YoloSource, folder: Path) -> list[str]:
    """Write a repaired copy: images byte for byte, label files anew only if something is wrong with them.

    A dataset without issues is copied as it is; any other gets the layout data.yaml, images/{split}, labels/{split}.
    """
    usable, changes = repaired_images(source)
    changes = [*source.changes, *changes]
    if source.rows.one_based:
        changes.append("classes that were counted from 1 are counted from 0")
    if not changes:
        return copy_others(source, folder, (), ())
    return list(dict.fromkeys([*changes, *_write_anew(source, usable, folder)]))


def _write_anew(source: YoloSource, usable: Mapping[str, RepairedImage], folder: Path) -> list[str]:
    import yaml

    changes: list[str] = []
    used_names: set[str] = set()
    entries = [entry for entry in (*source.entries, *source.repeated) if entry.name in usable]
    for entry in entries:
        preferred = _target(entry)
        target = _free_name(preferred, used_names)
        if target != preferred:
            changes.append(f"{entry.name}: is images/{target} now, since its name was taken")
        copy_file(source.files, entry.name, folder, f"images/{target}")
        label, repaired = f"labels/{posixpath.splitext(target)[0]}.txt", usable[entry.name]
        if repaired.issues or source.rows.one_based:
            (folder / label).parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{format_row(instance)}\n" for instance in repaired.objects)
            (folder / label).write_text(text, encoding="utf-8", newline="\n")
        elif entry.annotation:
            copy_file(source.files, entry.annotation, folder, label)
    content: dict[str, Any] = {entry.split or "train": posixpath.join("images", entry.split or "") for entry in entries}
    if names := source.facts.get("classes"):
        content["names"] = dict(enumerate(names))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (folder / "data.yaml").write_text(text, encoding="utf-8", newline="\n")
    return [*changes, f"data.yaml: written with {', '.join(content)}"]


def _target(entry: Entry) -> str:
    """Where an image goes below `images/`: its split, then its own folders without those of the layout."""
    folders = [] if posixpath.isabs(entry.name) else entry.name.split("/")[:-1]
    folders = [name for name in folders if name.lower() not in ("images", "labels") and not split_of_folder(name)]
    return posixpath.join(entry.split or "", *folders, posixpath.basename(entry.name))


def _free_name(name: str, used_names: set[str]) -> str:
    """A name whose stem no other image has, since its label file will have the same."""
    stem, suffix = posixpath.splitext(name)
    free, number = stem, 1
    while free.lower() in used_names:
        number += 1
        free = f"{stem}_{number}"
    used_names.add(free.lower())
    return free + suffix


def example(folder: Path) -> Path:
    """Four images in two splits, with boxes, a polygon and one image of background."""
    rows = {
        "train/a": "0 0.5 0.5 0.25 0.5\n",
        "train/b": "1 0.1 0.1 0.5 0.1 0.5 0.5 0.3 0.7 0.1 0.5\n0 0.7 0.7 0.2 0.2\n",
        "val/c": "1 0.25 0.5 0.5 0.5\n",
        "val/d": "",
    }
    for number, (name, text) in enumerate(rows.items()):
        example_image(folder / "images" / f"{name}.png", number)
        label = folder / "labels" / f"{name}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(text)
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n")
    return folder


FORMAT = Format(
    "yolo", "YOLO boxes and polygons", "images/ and labels/ with one .txt per image, with or without a data.yaml",
    issues.YOLO, detect, scan, example,
    (
        FormatOption("oriented", "rows of nine values are oriented boxes (true) or polygons (false)", bool),
        FormatOption("one_based", "label files count classes from 1", bool, False),
        FormatOption("pixels", "how boxes in pixels are written when they are repaired: centre, corners or top-left"),
    ),
    write, "image",
)  # fmt: skip
