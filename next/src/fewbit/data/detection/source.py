# SPDX-License-Identifier: Apache-2.0
"""Samples of images with objects, read, checked and repaired the same way for YOLO, COCO and Pascal VOC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.detection import issues
from fewbit.data.detection.objects import Object, ReportIssue, Size, check_mask_size, object_masks
from fewbit.data.images.decode import decode_image, image_size
from fewbit.data.images.file_source import NO_IMAGES, FileSource, check_first_bytes, copy_file
from fewbit.data.images.inspect import equal_files, inspect_images
from fewbit.data.tasks import find_task
from fewbit.data.types import Action, DataReport, Depth, Files, Issue, IssueType, Location, Sample, SampleError
from fewbit.errors import DataError, UsageError

DETECTION, SEGMENTATION = "object-detection", "segmentation"


OnError = Action | Mapping[str, Action] | None


@dataclass(slots=True)
class Entry:
    """One image and what is written about it; objects are judged when the sample is read."""

    name: str  # the image file
    split: str | None = None
    annotation: str = ""  # the file that describes it; empty if there is none
    size: Size | None = None  # as that file says
    objects: list[Any] = field(default_factory=list)
    mask: str = ""  # the file of its mask


@dataclass(slots=True)
class Annotation:
    """The usable objects of one image, and whether there were any: an image that lost all is not background."""

    objects: list[Object] = field(default_factory=list)
    annotated: bool = False


def detection_task(options: Mapping[str, Any]) -> str | None:
    """The task that was asked for, if it is one of images with boxes or masks."""
    if options.get("task") is None:
        return None
    task = find_task(options["task"]).name
    if task not in (DETECTION, SEGMENTATION):
        raise UsageError(
            f"images with boxes cannot be used for {task}", code="task-mismatch", param="task",
            expected=f"{DETECTION} or {SEGMENTATION}", hint=f"{{task={DETECTION}}}",
        )  # fmt: skip
    return task


class DetectionSource(FileSource):
    """Images with objects; a subclass reads those of one. `facts` has the task and the class names."""

    def __init__(self, files: Files, entries: Iterable[Entry], facts: dict[str, Any], on_error: OnError):
        super().__init__(files, entries, facts)
        self.unusable: dict[str, Issue] = {}  # by image; a repaired copy leaves these out, whatever `on_error` says
        self._actions = DataReport(on_error=on_error)

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The objects of an image, given the size of the upright image, if it can be decoded."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sample:
        image = self.image(index)
        annotation = self.annotation(index, (image.shape[1], image.shape[0]), self._act)
        if annotation.annotated and not annotation.objects and self._actions.action(issues.OBJECTS_LOST) != "keep":
            raise SampleError(self._lost(index))
        return self.sample(index, image, annotation.objects)

    def image(self, index: int) -> np.ndarray:
        """The upright RGB image."""
        with self.files.open(self.entries[index].name) as stream:
            return decode_image(stream, self.location(index))

    def sample(self, index: int, image: np.ndarray, objects: list[Object]) -> Sample:
        """Everything as arrays."""
        sample: Sample = {
            "image": image,
            "boxes": np.array([instance.box for instance in objects], np.float32).reshape(-1, 4),
            "classes": np.array([instance.class_index for instance in objects], np.int64),
        }
        if self.facts["task"] == SEGMENTATION:
            size = image.shape[1], image.shape[0]
            check_mask_size(objects, size, self.location(index))
            sample["masks"] = object_masks(objects, size)
        return sample

    def _act(self, kind: IssueType, message: str, location: Location) -> Action:
        """What to do about an issue met while reading a sample."""
        action = self._actions.action(kind)
        if action == "raise":
            raise SampleError(Issue(kind, message, location))
        return action

    def _lost(self, index: int) -> Issue:
        return Issue(issues.OBJECTS_LOST, "none of its objects can be used", self.location(index))

    def claimed_size(self, index: int, size: Size | None, issue: ReportIssue) -> Size | None:
        """The size that boxes in pixels refer to: what the annotation says, if it says anything, else the image's.

        Raises:
            SampleError: they differ, and that is not to be kept.
        """
        claimed = self.entries[index].size
        if claimed is not None and size is not None and claimed != size:
            message = f"{size[0]} x {size[1]} pixels; its annotation says {claimed[0]} x {claimed[1]}"
            if self._actions.action(issues.IMAGE_SIZE) != "keep":
                raise SampleError(Issue(issues.IMAGE_SIZE, message, self.location(index)))
            issue(issues.IMAGE_SIZE, message, self.location(index))
        return claimed or size

    def check(self, report: DataReport, depth: Depth, visit: Callable[[int, Annotation], None] | None = None) -> None:
        """Report what is wrong with images, then with objects, and leave out what is to be dropped.

        `index` depth looks at the first bytes of images only; `visit` is shown every annotation of a full check.
        """
        names = [entry.name for entry in self.entries]
        if depth == "index":
            self.leave_out(check_first_bytes(self.files, names, report))
        else:
            inspection = inspect_images(self.files, names, report)
            self.unusable |= inspection.damaged
            left_out = inspection.dropped | self._leaked(inspection.sizes, report)
            sizes = {name: (header.width, header.height) for name, header in inspection.headers.items()}
            self.leave_out(left_out | self._check_objects(sizes, report, visit))
        if not names:
            report.add(NO_IMAGES, "no image was found", Location("."), samples=0)
        alike: dict[str, list[str]] = {}
        for name in self.facts.get("classes", ()):
            alike.setdefault(str(name).strip().casefold(), []).append(repr(name))
        for group in (group for group in alike.values() if len(group) > 1):
            report.add(issues.LABELS_ALIKE, f"{' and '.join(group)} are different classes", Location("."))
        report.facts |= self.facts
        if len(self.entries) < len(names):
            report.facts["left_out"] = len(names) - len(self.entries)

    def _check_objects(
        self, sizes: Mapping[str, Size], report: DataReport, visit: Callable[[int, Annotation], None] | None
    ) -> set[str]:
        """Read the objects of every image; returns the images to leave out."""
        left_out: set[str] = set()
        classes: Counter[int] = Counter()
        for index, entry in enumerate(self.entries):
            size = sizes.get(entry.name)
            try:
                annotation = self.annotation(index, size, report.add)
                if annotation.annotated and not annotation.objects:
                    raise SampleError(self._lost(index))
                if self.facts["task"] == SEGMENTATION and size is not None:
                    check_mask_size(annotation.objects, size, self.location(index))
            except SampleError as error:
                action = report.add(error.issue.type, error.issue.message, error.issue.location)
                if action == "drop":
                    left_out.add(entry.name)
                if action != "keep":
                    self.unusable.setdefault(entry.name, error.issue)
                continue
            classes.update(instance.class_index for instance in annotation.objects)
            if visit is not None:
                visit(index, annotation)
        names = dict(enumerate(self.facts.get("classes", ())))
        self.facts["class_counts"] = {names.get(i, str(i)): classes[i] for i in sorted({*names, *classes})}
        return left_out

    def _leaked(self, sizes: Mapping[str, int], report: DataReport) -> set[str]:
        """Images with the same bytes as one in an earlier split, if those are to be dropped."""
        splits = {entry.name: entry.split for entry in self.entries}
        leaked: set[str] = set()
        groups = equal_files(self.files, list(splits), sizes) if len(set(splits.values())) > 1 else []
        for original, name in ((group[0], name) for group in groups for name in group[1:]):
            if splits[name] != splits[original]:
                message = f"same bytes as {original} in {splits[original]}"
                issue = Issue(issues.DUPLICATE_ACROSS_SPLITS, message, Location(name))
                self.unusable.setdefault(name, issue)
                if report.add(issue.type, issue.message, issue.location) == "drop":
                    leaked.add(name)
        return leaked


@dataclass
class RepairedImage:
    """A usable image: its size, its objects, and what was wrong with them."""

    entry: Entry
    size: Size
    objects: list[Object]
    issues: list[Issue]


def repaired_images(source: DetectionSource) -> tuple[dict[str, RepairedImage], list[str]]:
    """Every usable image of a source that was scanned at full depth, by name, and a line per change.

    Raises:
        DataError: no image can be used.
    """
    changes = [change_line(issue) for issue in source.unusable.values()]
    usable: dict[str, RepairedImage] = {}
    for index, entry in enumerate(source.entries):
        if entry.name in source.unusable:
            continue
        issues: list[Issue] = []

        def repair(kind: IssueType, message: str, location: Location, issues: list[Issue] = issues) -> Action:
            action = _repair_action(kind)
            if action != "keep":
                issues.append(Issue(kind, message, location))
            return action

        with source.files.open(entry.name) as stream:
            size = image_size(stream, source.location(index))
        annotation = source.annotation(index, size, repair)
        changes += map(change_line, sorted(issues, key=lambda issue: issue.location.line or issue.location.row or 0))
        if annotation.annotated and not annotation.objects:
            changes.append(f"{entry.name}: none of its objects can be used: leaves the image out")
        else:
            usable[entry.name] = RepairedImage(entry, entry.size or size, annotation.objects, issues)
    if not usable:
        raise DataError(
            "no image of the dataset can be used", code="no-images", where=source.files.root,
            hint="{fewbit.check} says what is wrong with each image",
        )  # fmt: skip
    return usable, changes


def _repair_action(kind: IssueType) -> Action:
    """Whatever keeps most: a repair, else leaving it out, unless it is harmless."""
    if "repair" in (kind.on_error, *kind.actions):
        return "repair"
    return "keep" if kind.on_error == "keep" else "drop"


def change_line(issue: Issue) -> str:
    """One line of the list of changes."""
    return f"{issue}: {issue.type.fix}" if issue.type.fix else str(issue)


def copy_others(source: DetectionSource, folder: Path, written: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """Copy every file of the dataset that is neither written anew nor left out; returns what changed."""
    names = [name for name in source.files.names() if name not in {*written, *left_out}]
    return [line for name in names for line in copy_file(source.files, name, folder)]
