# SPDX-License-Identifier: Apache-2.0
"""COCO: a JSON file of images, annotations and categories per split, and the images anywhere below.

    annotations/instances_train2017.json    train2017/000000000009.jpg
    train/_annotations.coco.json            train/a.jpg
    instances.json                          images/a.jpg

A sample has `image`, `boxes` (relative centre and size), `classes` (categories numbered in the order of their ids) and,
for segmentation, `masks`. Boxes of keypoint files are read, keypoints are not; captions are not.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from fewbit.data.detection import issues
from fewbit.data.detection.objects import Object, ReportIssue, Rle, Size, fit_box, fit_polygon, without_duplicates
from fewbit.data.detection.source import (
    DETECTION,
    SEGMENTATION,
    Annotation,
    DetectionSource,
    Entry,
    change_line,
    copy_others,
    detection_task,
    repaired_images,
)
from fewbit.data.files import Folder
from fewbit.data.images import shapes
from fewbit.data.images.file_source import example_image, read_head
from fewbit.data.images.format_options import flag_option, split_option
from fewbit.data.images.signatures import is_image_name
from fewbit.data.splits import SPLITS, split_of_file, split_of_folder
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    IssueType,
    Location,
    SampleError,
)
from fewbit.errors import plural

_MOST_BYTES = 1 << 30
_MOST_NAN_BYTES = 1 << 28
_LARGEST = 1e9  # no image is that wide; NaN and infinity are not below it
_HEAD = 1 << 16
_MOST_FILES = 64
_KEYS = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_FIELDS = re.compile(rb'"(file_name|bbox|image_id|coco_url|supercategory)"\s*:')


def detect(files: Files) -> Detection | None:
    """A JSON file whose first bytes have the keys of COCO."""
    names = annotation_files(files)
    if not names:
        return None
    if len(files.names()) > 1 and not any(is_image_name(name) for name in files.names()):
        return Detection(0.75, f"{names[0]} has the keys of COCO, but there are no images")
    return Detection(0.95, f"{names[0]} has the keys of COCO")


def annotation_files(files: Files) -> list[str]:
    """Names of the JSON files that begin like COCO's; those with boxes only, if there are any."""
    candidates = [name for name in files.names() if name.lower().endswith(".json")]
    candidates.sort(key=lambda name: ("annotation" not in name.lower() and "instances" not in name.lower(), name))
    names = sorted(name for name in candidates[:_MOST_FILES] if _begins_like_coco(files, name))
    instances = [name for name in names if not re.search("caption|keypoint|panoptic|stuff|image_info", name.lower())]
    return instances or [name for name in names if "keypoint" in name.lower()] or names


def _begins_like_coco(files: Files, name: str) -> bool:
    head = read_head(files, name, _HEAD)
    return head.lstrip()[:1] == b"{" and bool(_KEYS.search(head)) and bool(_FIELDS.search(head))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> CocoSource:
    """Read the annotation files and find their images; with `full` depth also decode the images."""
    task = detection_task(options) or DETECTION
    crowd = bool(flag_option("crowd", options.get("crowd")))
    names = annotation_files(files)
    if names and len(files.names()) == 1 and (path := files.path(names[0])):  # given alone, it stands for its folder
        folder = Path(path).absolute().parent
        files = Folder(folder.parent if folder.name.lower() == "annotations" else folder, files.root, report)
        names = [name for name in files.names() if os.path.basename(name) == names[0]][:1]
    splits = {name: split_of_file(name) or _split_above(name) for name in names}
    selected = split_option(options.get("split"), [split for split in SPLITS if split in splits.values()])
    index = CocoIndex(files, report, crowd, task == SEGMENTATION, depth)
    for name in sorted(names, key=lambda name: (*SPLITS, None).index(splits[name])):
        if selected in (None, splits[name]):
            index.add_file(name, splits[name])
    source = CocoSource(index, task)
    source.check(report, depth)
    return source


def _split_above(name: str) -> str | None:
    folders = [split_of_folder(folder) for folder in name.split("/")[:-1]]
    return next((split for split in reversed(folders) if split), None)


class AnnotationRow(NamedTuple):
    """One annotation, as far as it is needed; the segmentation as JSON, which takes less memory than lists."""

    row: int
    box: tuple[float, ...] | None
    category: Any
    segmentation: bytes = b""


class CocoIndex:
    """Images, annotations and categories of all annotation files."""

    def __init__(self, files: Files, report: DataReport, crowd: bool, masks: bool, depth: Depth):
        self.files, self.report, self._crowd, self._masks, self._depth = files, report, crowd, masks, depth
        self.entries: dict[str, Entry] = {}
        self.categories: dict[Any, str] = {}
        self.issues: list[Issue] = []  # of rows that a repaired copy leaves out
        self.repairs: list[Issue] = []  # of rows in which it changes something
        self.annotation_files: list[str] = []
        self._by_base: dict[str, list[str]] = defaultdict(list)
        for name in filter(is_image_name, files.names()):
            self._by_base[posixpath.basename(name)].append(name)

    def add_file(self, name: str, split: str | None) -> None:
        """Read one annotation file."""
        try:
            content = load_annotations(self.files, name)
        except (SampleError, ValueError) as error:
            message = error.issue.message if isinstance(error, SampleError) else str(error)
            location = Location(name, line=getattr(error, "lineno", None))
            self.report.add(issues.LABEL_UNREADABLE, message, location)
            return
        self.annotation_files.append(name)
        self._add_categories(name, content)
        self._add_annotations(name, content, self._add_images(name, split, content))

    def _add_categories(self, file: str, content: Mapping[str, Any]) -> None:
        categories, location = content.get("categories"), Location(file, field="categories")
        rows = categories if isinstance(categories, list) else []
        valid = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), int | str)]
        if not valid and content.get("annotations"):
            self.report.add(issues.CATEGORIES_MISSING, "classes are not known", location)
        for row in valid:
            identity, name = row["id"], str(row.get("name") or f"category_{row['id']}")
            if self.categories.setdefault(identity, name) != name:
                message = f"category {identity!r} is {name!r}, elsewhere {self.categories[identity]!r}"
                self.report.add(issues.NAMES_CONFLICT, message, location)

    def _add_images(self, file: str, split: str | None, content: Mapping[str, Any]) -> dict[Any, Entry | None]:
        """Add the images of one file; returns them by id, `None` for those that are left out."""
        images: dict[Any, Entry | None] = {}
        find = self.image_finder(file)
        for row, entry in enumerate(content["images"]):
            location = Location(file, row=row, field="images")
            valid = isinstance(entry, dict) and isinstance(entry.get("file_name"), str)
            if not valid or not isinstance(entry.get("id"), int | str):
                self._reject(issues.IMAGE_INVALID, _shown(entry), location)
            elif entry["id"] in images:
                self._reject(issues.IMAGE_INVALID, f"another image has the id {entry['id']!r}", location)
            elif (image := find(entry["file_name"])) is None:
                images[entry["id"]] = None
                self._reject(issues.IMAGE_MISSING, entry["file_name"][:200], location)
            else:
                width, height = entry.get("width"), entry.get("height")
                has_size = isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0
                size = (width, height) if has_size else None
                images[entry["id"]] = self.entries.setdefault(image, Entry(image, split, file, size))
        return images

    def _add_annotations(self, file: str, content: Mapping[str, Any], images: Mapping[Any, Entry | None]) -> None:
        crowds = 0
        first: dict[int | str, int] = {}  # row by id
        for row, entry in enumerate(content.get("annotations", ())):
            identity = entry.get("image_id") if isinstance(entry, dict) else None
            if not isinstance(identity, int | str) or identity not in images:
                message = f"there is no image {str(identity)[:60]}" if identity is not None else _shown(entry)
                self._reject(issues.ANNOTATION_ORPHAN, message, Location(file, row=row, field="annotations"))
            elif entry.get("iscrowd") in (1, True) and not self._crowd:
                crowds += 1
            elif (image := images[identity]) is not None:
                self._check_entry(entry, Location(file, row=row, field="annotations"), first)
                category = entry.get("category_id")
                segmentation = _dumped(entry.get("segmentation")) if self._masks else b""
                category = category if isinstance(category, int | str) else None
                image.objects.append(AnnotationRow(row, _numbers(entry.get("bbox")), category, segmentation))
        if crowds:
            self.report.add(issues.CROWD_SKIPPED, plural(crowds, "region"), Location(file))

    def _check_entry(self, entry: Mapping[str, Any], location: Location, first: dict[int | str, int]) -> None:
        """Report what a repaired copy corrects and reading does not need."""
        number, row = entry.get("id"), location.row or 0
        if isinstance(number, int | str) and first.setdefault(number, row) != row:
            self._repair(issues.ANNOTATION_TWICE, f"row {first[number]} has the id {str(number)[:60]}, too", location)
        if self._depth == "full" and not self._masks and isinstance(entry.get("segmentation"), list):
            try:
                for polygon in entry["segmentation"]:
                    _check_polygon(polygon)
            except ValueError as error:
                self._repair(issues.SEGMENTATION_UNUSABLE, str(error), location)

    def _repair(self, kind: IssueType, message: str, location: Location) -> None:
        self.report.add(kind, message, location)
        self.repairs.append(Issue(kind, message, location))

    def _reject(self, kind: IssueType, message: str, location: Location) -> None:
        self.report.add(kind, message, location)
        self.issues.append(Issue(kind, message, location))

    def image_finder(self, annotation: str) -> Callable[[str], str | None]:
        """Finds an image by its `file_name`: at that path below any folder, or at least with the same base name.

        Of several, one next to the annotation file comes first, then one in a folder of its split.
        """
        above, split, by_base = posixpath.dirname(annotation), split_of_file(annotation), self._by_base

        def rank(path: str, name: str) -> tuple[bool, bool, bool]:
            folder = posixpath.dirname(name)
            elsewhere = split is None or split_of_folder(posixpath.basename(folder)) != split
            return not f"/{name}".endswith(f"/{path}"), folder != above, elsewhere

        def find(file_name: str) -> str | None:
            path = posixpath.normpath(file_name.replace("\\", "/"))
            ranked = sorted((rank(path, name), name) for name in by_base.get(posixpath.basename(path), ()))
            ambiguous = len(ranked) > 1 and ranked[0][0] == ranked[1][0]
            return ranked[0][1] if ranked and not ambiguous else None

        return find


def load_annotations(files: Files, name: str) -> dict[str, Any]:
    """The content of an annotation file, as far as its lists are lists."""
    content = files.read(name, _MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    value = _parse(content)
    if not isinstance(value, dict) or not isinstance(value.get("images"), list):
        raise ValueError('there is no list "images"')
    if not isinstance(value.get("annotations", []), list):
        raise ValueError('"annotations" is not a list')
    return value


def _parse(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        if len(content) > _MOST_NAN_BYTES or not re.search(rb"\bNaN\b|\bInfinity\b", content):
            raise
        try:
            return json.loads(content)  # Python's own writer writes NaN, which is not JSON
        except (ValueError, RecursionError):
            raise error from None


def _shown(entry: Any) -> str:
    """An entry by its keys; its complete text could be very long or nested without end."""
    return f"keys {', '.join(list(map(str, entry))[:6])}"[:200] if isinstance(entry, dict) else type(entry).__name__


def _numbers(box: Any) -> tuple[float, ...] | None:
    if not isinstance(box, list) or len(box) != 4 or not all_numbers(box):
        return None
    return tuple(map(float, box))


def all_numbers(values: list[Any]) -> bool:
    """Whether all values are numbers of a sensible size."""
    return all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values)


def _dumped(segmentation: Any) -> bytes:
    try:
        return orjson.dumps(segmentation) if segmentation else b""
    except TypeError:  # integers of more than 64 bits, lists nested too deeply
        return b"null"


class CocoSource(DetectionSource):
    """Images with the annotations of COCO files."""

    def __init__(self, index: CocoIndex, task: str):
        categories = dict(sorted(index.categories.items(), key=lambda pair: (isinstance(pair[0], str), pair[0])))
        facts = {"task": task, "classes": list(categories.values())}
        super().__init__(index.files, index.entries.values(), facts, index.report.on_error)
        self._class_indices = {identity: number for number, identity in enumerate(categories)}
        self.index: CocoIndex | None = index

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"index": None}  # workers do not repair

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The annotations of an image."""
        entry = self.entries[index]
        claimed = self.claimed_size(index, size, issue)
        objects = (self._object(row, claimed, entry.annotation, issue) for row in entry.objects) if claimed else ()
        usable = [instance for instance in objects if instance is not None]
        return Annotation(list(without_duplicates(usable, issue)), annotated=bool(entry.objects))

    def _object(self, row: AnnotationRow, size: Size, file: str, issue: ReportIssue) -> Object | None:
        location = Location(file, row=row.row, field="annotations")
        class_index = self._class_indices.get(row.category)
        if class_index is None and self._class_indices:
            issue(issues.CLASS_BEYOND, f"category {str(row.category)[:60]}", location)
            return None
        if row.box is None:
            issue(issues.BOX_INVALID, "the box is not four numbers", location)
            return None
        x, y, width, height = (value / size[axis % 2] for axis, value in enumerate(row.box))
        box = fit_box((x + width / 2, y + height / 2, width, height), location, issue, size)
        if box is None:
            return None
        instance = Object(class_index or 0, box, location)
        if not row.segmentation:
            return instance
        try:
            segmentation = orjson.loads(row.segmentation)
            if isinstance(segmentation, dict):
                instance.rle = _rle(segmentation, size)
                return instance
            polygons = [fit_polygon(points, location, issue, size) for points in list(_polygons(segmentation, size))]
        except ValueError as error:
            issue(issues.SEGMENTATION_INVALID, str(error), location)
            return None
        instance.polygons = tuple(points for points in polygons if points is not None)
        return instance if instance.polygons else None


def _rle(segmentation: Mapping[str, Any], size: Size) -> Rle:
    width, height = size
    counts = segmentation.get("counts")
    if segmentation.get("size") != [height, width] or not isinstance(counts, str | list):
        raise ValueError(f"the RLE has no counts, or not the size [{height}, {width}]")
    return Rle(shapes.rle_runs(counts, height, width), height, width)


def _polygons(segmentation: Any, size: Size) -> Iterator[shapes.Points]:
    if not isinstance(segmentation, list) or not segmentation:
        raise ValueError("not a list of polygons")
    for polygon in segmentation:
        _check_polygon(polygon)
        yield np.array(polygon, np.float64).reshape(-1, 2) / size


def _check_polygon(polygon: Any) -> None:
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or not all_numbers(polygon):
        raise ValueError("a polygon is a list of six or more numbers, x and y in turn")


def write(source: CocoSource, folder: Path) -> list[str]:
    """Write a repaired copy: images byte for byte, annotation files anew only if something is wrong in them.

    Entries without an image, unusable annotations and duplicates are left out; boxes are clipped at the border;
    ids that occur twice are replaced.
    """
    index = source.index
    assert index is not None
    usable, changes = repaired_images(source)
    changes = [*map(change_line, (*index.issues, *index.repairs)), *changes]
    repairs: dict[tuple[str, int | None], set[IssueType]] = defaultdict(set)
    for issue in index.repairs:
        repairs[issue.location.file, issue.location.row].add(issue.type)
    wrong = {(issue.location.file, issue.location.field, issue.location.row) for issue in index.issues}
    clipped: dict[tuple[str, int | None], dict[str, Any]] = {}
    for image in usable.values():
        file, rows = image.entry.annotation, {instance.location.row: instance for instance in image.objects}
        wrong |= {(file, "annotations", row.row) for row in image.entry.objects if row.row not in rows}
        for issue in image.issues:
            if issue.type in (issues.OUT_OF_RANGE, issues.OUT_OF_RANGE_SLIGHTLY) and issue.location.row in rows:
                clipped[file, issue.location.row] = _in_pixels(rows[issue.location.row], image.size)
    for file in index.annotation_files if changes else ():
        content, find = load_annotations(source.files, file), index.image_finder(file)
        content["images"] = [
            entry for row, entry in enumerate(content["images"])
            if (file, "images", row) not in wrong and find(entry["file_name"]) in usable
        ]  # fmt: skip
        identities = {entry["id"] for entry in content["images"]}
        annotations = list(enumerate(content.get("annotations", ())))
        numbers = (entry.get("id") for _, entry in annotations if isinstance(entry, dict))
        free = itertools.count(1 + max((number for number in numbers if isinstance(number, int)), default=0))
        content["annotations"] = [
            _repaired(entry, clipped.get((file, row), {}), repairs[file, row], free) for row, entry in annotations
            if (file, "annotations", row) not in wrong and entry["image_id"] in identities
        ]  # fmt: skip
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    left_out = {entry.name for entry in source.entries if entry.name not in usable} | set(source.unusable)
    return changes + copy_others(source, folder, index.annotation_files if changes else (), left_out)


def _repaired(
    entry: dict[str, Any], clipped: dict[str, Any], repairs: Collection[IssueType], free: Iterator[int]
) -> dict[str, Any]:
    """An annotation with its box clipped, an area that agrees with it, and an id of its own."""
    result = entry | clipped
    if issues.ANNOTATION_TWICE in repairs:
        result["id"] = next(free)
    if issues.SEGMENTATION_UNUSABLE in repairs:
        result["segmentation"] = []
    if clipped and isinstance(area := entry.get("area"), int | float):
        if "segmentation" in clipped:
            outlines = [np.array(outline).reshape(-1, 2) for outline in clipped["segmentation"]]
            result["area"] = round(sum(shapes.polygon_area(outline) for outline in outlines), 6)
        elif math.isclose(area, entry["bbox"][2] * entry["bbox"][3], rel_tol=0.01):  # else it is that of a mask
            result["area"] = round(clipped["bbox"][2] * clipped["bbox"][3], 6)
    return result


def _in_pixels(instance: Object, size: Size) -> dict[str, Any]:
    """The box and the polygons of an object as COCO writes them."""
    left, top, right, bottom = shapes.box_edges(instance.box)
    corners = np.array([[left, top], [right - left, bottom - top]])
    outlines = [np.round(points * size, 6).ravel().tolist() for points in (corners, *instance.polygons)]
    return {"bbox": outlines[0]} | ({"segmentation": outlines[1:]} if instance.polygons else {})


def example(folder: Path) -> Path:
    """Five images in two splits with boxes, a polygon and a mask of runs."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    shapes_by_category = {
        3: ([8, 6, 16, 12], [[8, 6, 24, 6, 24, 18, 8, 18]]),
        7: ([4, 0, 2, 24], {"size": [24, 32], "counts": [24 * 4, 24 * 2, 24 * 26]}),
    }
    for split, count in (("train2017", 3), ("val2017", 2)):
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(count):
            name = f"{split[0]}{number}.png"
            example_image(folder / split / name, 10 * count + number)
            images.append({"id": number, "file_name": name, "width": 32, "height": 24})
            for category, (box, segmentation) in shapes_by_category.items():
                entry = {"id": len(annotations), "image_id": number, "category_id": category, "iscrowd": 0}
                annotations.append(entry | {"bbox": box, "segmentation": segmentation, "area": box[2] * box[3]})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_bytes(orjson.dumps(content))
    return folder


FORMAT = Format(
    "coco", "COCO", "annotations/instances_{split}.json and images anywhere below", issues.COCO, detect, scan, example,
    (FormatOption("crowd", "crowd regions are objects", bool, False),), write, "image",
    suffixes=(".json",),
)  # fmt: skip
