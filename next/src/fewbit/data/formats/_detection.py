# SPDX-License-Identifier: Apache-2.0
"""What YOLO, COCO and Pascal VOC share: objects on images, issues of boxes and polygons, and samples made of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewbit.data.images import shapes
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image
from fewbit.data.images.inspect import DUPLICATE_ACROSS_SPLITS, equal_files, inspect_images
from fewbit.data.images.shapes import Box, Points
from fewbit.data.splits import SPLITS
from fewbit.data.tasks import find_task
from fewbit.data.types import Action, DataReport, Files, Issue, IssueType, Location, Sample, SampleError, Severity
from fewbit.errors import UsageError, plural

DETECTION, SEGMENTATION = "object-detection", "segmentation"

NO_IMAGES = IssueType(
    "no-annotated-images", Severity.ERROR, "dataset without images",
    "give the folder that holds the images and their labels", "raise",
)  # fmt: skip
IMAGE_MISSING = IssueType(
    "image-missing", Severity.ERROR, "image that is not there", "restore the image or delete its entry", "raise",
    ("drop",), "leaves the entry out",
)  # fmt: skip
IMAGE_SIZE = IssueType(
    "image-size-mismatch", Severity.ERROR, "image of another size than its annotation says",
    "annotate the image as it is now, or restore it", "raise", ("drop", "keep"),
)  # fmt: skip
LABEL_UNREADABLE = IssueType(
    "label-unreadable", Severity.ERROR, "label or annotation file that cannot be read", "restore it, or write it again",
    "raise", ("drop",), "leaves the image out",
)  # fmt: skip
NAMES_CONFLICT = IssueType(
    "names-conflict", Severity.WARNING, "files that name the classes differently", "correct the wrong one",
    fix="writes the names that are used",
)  # fmt: skip
CLASS_BEYOND = IssueType(
    "class-beyond", Severity.ERROR, "object of a class without a name", "correct the class, or add it to the names",
    "raise", ("drop", "keep"), "leaves the object out",
)  # fmt: skip
OBJECTS_LOST = IssueType(
    "objects-lost", Severity.WARNING, "image whose objects were all unusable",
    "correct its labels; without them it would look like background", "drop", ("raise", "keep"), "leaves the image out",
)  # fmt: skip
BOX_INVALID = IssueType(
    "box-invalid", Severity.ERROR, "box that is not four numbers", "correct or delete it", "raise", ("drop",)
)
BOX_EMPTY = IssueType(
    "box-empty", Severity.WARNING, "box without area", "delete it", "drop", ("raise",), "leaves the box out"
)
OUT_OF_RANGE = IssueType(
    "out-of-range", Severity.WARNING, "box or polygon that reaches beyond the image", "clip it at the border", "repair",
    ("raise", "drop", "keep"), "clips it at the border",
)  # fmt: skip
OUT_OF_RANGE_SLIGHTLY = IssueType(
    "out-of-range-slightly", Severity.NOTE, "box or polygon that reaches beyond the image by a thousandth or less",
    "nothing: readers clip it", "repair", ("raise", "drop", "keep"), "clips it at the border",
)  # fmt: skip
OUTSIDE_IMAGE = IssueType(
    "outside-image", Severity.WARNING, "box or polygon outside the image", "correct or delete it", "drop", ("raise",),
    "leaves it out",
)  # fmt: skip
POLYGON_EMPTY = IssueType(
    "polygon-empty", Severity.WARNING, "polygon without area", "delete it", "drop", ("raise",), "leaves the polygon out"
)
POLYGON_CROSSES = IssueType(
    "polygon-crosses", Severity.WARNING, "polygon that crosses itself",
    "draw it again: what lies inside twice counts as outside", "keep", ("raise", "drop"),
)  # fmt: skip
POLYGON_TOO_LONG = IssueType(
    "polygon-too-long", Severity.ERROR, f"polygon of more than {shapes.MOST_POINTS:,} corners",
    "draw it with fewer corners", "raise", ("drop",), "leaves the polygon out",
)  # fmt: skip
MASKS_TOO_LARGE = IssueType(
    "masks-too-large", Severity.ERROR, "image whose masks would fill the memory",
    "resize the image, or read boxes only: {task=object-detection}", "raise", ("drop",), "leaves the image out",
)  # fmt: skip

DETECTION_ISSUES = (
    *IMAGE_ISSUES, DUPLICATE_ACROSS_SPLITS, NO_IMAGES, IMAGE_MISSING, LABEL_UNREADABLE, NAMES_CONFLICT, CLASS_BEYOND,
    OBJECTS_LOST, BOX_EMPTY, OUT_OF_RANGE, OUT_OF_RANGE_SLIGHTLY, OUTSIDE_IMAGE, POLYGON_EMPTY,
    POLYGON_CROSSES, POLYGON_TOO_LONG, MASKS_TOO_LARGE,
)  # fmt: skip

Size = tuple[int, int]
"""Width and height in pixels."""
OnError = Action | Mapping[str, Action] | None
"""The user's choice of actions."""
ReportIssue = Callable[[IssueType, str, Location], Action]
"""Takes an issue and says what to do about it, as `DataReport.add` does."""


@dataclass(slots=True)
class Entry:
    """One image and what is written about it; objects are judged when the sample is read."""

    image: str
    split: str | None = None
    annotation: str = ""  # the file that describes it; empty if there is none
    size: Size | None = None  # as that file says
    objects: list[Any] = field(default_factory=list)
    mask: str = ""  # the file of its mask


@dataclass(slots=True)
class Object:
    """One object on an image, in relative coordinates."""

    class_index: int
    box: Box
    polygons: tuple[Points, ...] = ()  # the outlines of its parts
    mask: Callable[[], shapes.Mask] | None = None  # of an RLE
    difficult: bool = False  # a flag of Pascal VOC


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


class DetectionSource:
    """Images with objects; a subclass reads those of one. `facts` are `classes`, `task` and what else is known."""

    def __init__(self, files: Files, entries: Sequence[Entry], facts: dict[str, Any], on_error: OnError):
        self.files, self.entries = files, list(entries)
        counts = Counter(entry.split for entry in entries)
        self.facts = {"splits": {split: counts[split] for split in SPLITS if counts[split]}, **facts}
        self.unusable: dict[str, Issue] = {}  # by image; a repaired copy leaves these out, whatever `on_error` says
        self._actions = DataReport(on_error=on_error)

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The objects of an image, given the size of the upright image, if it can be decoded."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.entries)

    def location(self, index: int) -> Location:
        """The image file."""
        return Location(self.entries[index].image, index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split of each image, if there are several; images hold objects of many classes."""
        splits = [entry.split for entry in self.entries]
        return splits if len(set(splits)) > 1 else None

    def __getitem__(self, index: int) -> Sample:
        image = self.image(index)
        annotation = self.annotation(index, (image.shape[1], image.shape[0]), self.act)
        if annotation.annotated and not annotation.objects and self._actions.action(OBJECTS_LOST) != "keep":
            raise SampleError(self._lost(index))
        return self.sample(index, image, annotation.objects)

    def image(self, index: int) -> np.ndarray:
        """The upright RGB image."""
        with self.files.open(self.entries[index].image) as stream:
            return decode_image(stream, self.location(index))

    def sample(self, index: int, image: np.ndarray, objects: list[Object]) -> Sample:
        """Everything as arrays."""
        sample: Sample = {
            "image": image,
            "boxes": np.array([instance.box for instance in objects], np.float32).reshape(-1, 4),
            "classes": np.array([instance.class_index for instance in objects], np.int64),
        }
        if self.facts["task"] == SEGMENTATION:
            check_mask_size(objects, (image.shape[1], image.shape[0]), self.location(index))
            sample["masks"] = object_masks(objects, image.shape[0], image.shape[1])
        return sample

    def claimed_size(self, index: int, size: Size | None, issue: ReportIssue) -> Size | None:
        """The size that boxes in pixels refer to: what the annotation says, if it says anything, else the image's.

        Raises:
            SampleError: they differ, and that is not to be kept.
        """
        claimed = self.entries[index].size
        if claimed is not None and size is not None and claimed != size:
            message = f"{size[0]} x {size[1]} pixels; its annotation says {claimed[0]} x {claimed[1]}"
            if self._actions.action(IMAGE_SIZE) != "keep":
                raise SampleError(Issue(IMAGE_SIZE, message, self.location(index)))
            issue(IMAGE_SIZE, message, self.location(index))
        return claimed or size

    def act(self, kind: IssueType, message: str, location: Location) -> Action:
        """What to do about an issue met while reading a sample."""
        action = self._actions.action(kind)
        if action == "raise":
            raise SampleError(Issue(kind, message, location))
        return action

    def check(self, report: DataReport, visit: Callable[[int, Any], None] | None = None) -> None:
        """Decode every image, read all objects, report every issue, and leave out what is to be dropped.

        Issues of images come first, then those of objects; `visit` is shown the annotation of each sample.
        """
        names = [entry.image for entry in self.entries]
        inspection = inspect_images(self.files, names, report)
        left_out = inspection.dropped | self._leaked(inspection.sizes, report)
        self.unusable |= inspection.damaged
        classes: Counter[int] = Counter()
        for index, name in enumerate(names):
            header = inspection.headers.get(name)
            size = (header.width, header.height) if header else None
            try:
                annotation = self.annotation(index, size, report.add)
                if annotation.annotated and not annotation.objects:
                    raise SampleError(self._lost(index))
                if self.facts["task"] == SEGMENTATION and size is not None:
                    check_mask_size(annotation.objects, size, self.location(index))
            except SampleError as error:
                action = report.add(error.issue.type, error.issue.message, error.issue.location)
                left_out |= {name} if action == "drop" else set()
                if action != "keep":
                    self.unusable.setdefault(name, error.issue)
                continue
            classes.update(instance.class_index for instance in annotation.objects)
            if visit is not None:
                visit(index, annotation)
        self.entries = [entry for entry in self.entries if entry.image not in left_out]
        class_names = dict(enumerate(self.facts.get("classes") or ()))
        self.facts["class_counts"] = {class_names.get(i, str(i)): classes[i] for i in sorted({*class_names, *classes})}

    def _lost(self, index: int) -> Issue:
        return Issue(OBJECTS_LOST, "none of its objects can be used", self.location(index))

    def _leaked(self, sizes: Mapping[str, int], report: DataReport) -> set[str]:
        """Images with the same bytes as one in an earlier split, if those are to be dropped."""
        splits = {entry.image: entry.split for entry in self.entries}
        leaked: set[str] = set()
        groups = equal_files(self.files, list(splits), sizes) if len(set(splits.values())) > 1 else []
        for original, name in ((group[0], name) for group in groups for name in group[1:]):
            if splits[name] != splits[original]:
                message = f"same bytes as {original} in {splits[original]}"
                self.unusable.setdefault(name, Issue(DUPLICATE_ACROSS_SPLITS, message, Location(name)))
                if report.add(DUPLICATE_ACROSS_SPLITS, message, Location(name)) == "drop":
                    leaked.add(name)
        return leaked


def fit_box(box: Box, location: Location, issue: ReportIssue) -> Box | None:
    """A box on its image: clipped if it reaches beyond, `None` if nothing is left of it."""
    if not (box[2] > 0 and box[3] > 0):
        issue(BOX_EMPTY, f"{box[2]:g} wide, {box[3]:g} high", location)
        return None
    edges = shapes.box_edges(box)
    if shapes.overshoot(edges) <= shapes.ROUNDING:
        return box
    clipped = shapes.clip_box(box)
    if clipped is None:
        issue(OUTSIDE_IMAGE, f"the box spans {_spans(edges)}", location)
        return None
    action = _report_overshoot("box", edges, location, issue)
    return {"repair": clipped, "keep": box}.get(action)


def fit_polygon(points: Points, location: Location, issue: ReportIssue) -> Points | None:
    """A polygon on its image: cleaned, clipped if it reaches beyond, `None` if nothing is left of it."""
    if len(points) > shapes.MOST_POINTS:
        issue(POLYGON_TOO_LONG, plural(len(points), "corner"), location)
        return None
    polygon = shapes.without_repeats(points)
    if not shapes.has_area(polygon):
        issue(POLYGON_EMPTY, f"its {plural(len(points), 'corner')} enclose nothing", location)
        return None
    edges = shapes.polygon_edges(polygon)
    if (overshoot := shapes.overshoot(edges)) > shapes.ROUNDING:
        clipped = np.clip(polygon, 0, 1) if overshoot <= shapes.SLIGHT else shapes.clip_polygon(polygon)
        if not shapes.has_area(clipped):
            issue(OUTSIDE_IMAGE, f"the polygon spans {_spans(edges)}", location)
            return None
        action = _report_overshoot("polygon", edges, location, issue)
        if action not in ("repair", "keep"):
            return None
        polygon = clipped if action == "repair" else polygon
    if shapes.crosses_itself(polygon):
        message = f"the outline of {plural(len(polygon), 'corner')} crosses itself"
        return polygon if issue(POLYGON_CROSSES, message, location) == "keep" else None
    return polygon


def _report_overshoot(shape: str, edges: shapes.Edges, location: Location, issue: ReportIssue) -> Action:
    kind = OUT_OF_RANGE_SLIGHTLY if shapes.overshoot(edges) <= shapes.SLIGHT else OUT_OF_RANGE
    return issue(kind, f"the {shape} spans {_spans(edges)}", location)


def _spans(edges: shapes.Edges) -> str:
    return f"x {edges[0]:.4g} to {edges[2]:.4g}, y {edges[1]:.4g} to {edges[3]:.4g} of 0 to 1"


def check_mask_size(objects: Sequence[Object], size: Size, location: Location) -> None:
    """Raise a `SampleError` if the masks of these objects would take too much memory or time."""
    width, height = size
    needed = len(objects) * height * width
    if needed > shapes.MOST_MASK_BYTES:
        message = f"{plural(len(objects), 'mask')} of {width} x {height} pixels need {needed:,} bytes"
        raise SampleError(Issue(MASKS_TOO_LARGE, message, location))
    crossings = sum(shapes.crossing_count(outline, height) for instance in objects for outline in _outlines(instance))
    if crossings > shapes.MOST_CROSSINGS:
        raise SampleError(Issue(MASKS_TOO_LARGE, f"the outlines cross pixel rows {crossings:,.0f} times", location))


def object_masks(objects: Sequence[Object], height: int, width: int) -> np.ndarray:
    """One mask per object, bool [n, height, width]; an object without an outline is a filled rectangle."""
    masks = np.zeros((len(objects), height, width), np.bool_)
    for mask, instance in zip(masks, objects):
        if instance.mask is not None:
            decoded = instance.mask()[:height, :width]
            mask[: decoded.shape[0], : decoded.shape[1]] = decoded
        for outline in _outlines(instance):
            mask |= shapes.rasterize(outline, height, width)
    return masks


def _outlines(instance: Object) -> Sequence[Points]:
    if instance.mask is not None:
        return ()
    return instance.polygons or (shapes.box_outline(instance.box),)
