# SPDX-License-Identifier: Apache-2.0
"""COCO: a JSON file of images, annotations and categories per split, and the images anywhere below.

    annotations/instances_train2017.json    train2017/000000000009.jpg
    train/_annotations.coco.json            train/a.jpg
    instances.json                          images/a.jpg

A sample has `image`, `boxes` (relative centre and size), `classes` (categories numbered in the order of their ids) and,
for segmentation, `masks`. Boxes of keypoint files are read, keypoints are not; captions are not.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fewbit.data.files import Folder
from fewbit.data.formats import _detection as detection
from fewbit.data.formats._class_folders import as_flag, as_split
from fewbit.data.formats._detection import (
    DETECTION,
    SEGMENTATION,
    Annotation,
    DetectionSource,
    Entry,
    Object,
    OnError,
    ReportIssue,
    Size,
)
from fewbit.data.images import shapes
from fewbit.data.images.signatures import is_image_name
from fewbit.data.splits import SPLITS, split_of_file, split_of_folder
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    IssueType,
    Location,
    SampleError,
    Severity,
)
from fewbit.errors import plural

CATEGORIES_MISSING = IssueType(
    "categories-missing", Severity.ERROR, "annotation file without categories",
    'write "categories": [{"id": 1, "name": "cat"}, …]', "raise", ("keep",),
)  # fmt: skip
IMAGE_INVALID = IssueType(
    "image-entry-invalid", Severity.ERROR, "image entry without a file name or a unique id",
    'an image is {"id": 1, "file_name": "a.jpg", "width": 640, "height": 480}', "raise", ("drop",),
)  # fmt: skip
ANNOTATION_ORPHAN = IssueType(
    "annotation-orphan", Severity.ERROR, "annotation of an unknown image", "correct or delete it", "raise", ("drop",)
)
SEGMENTATION_INVALID = IssueType(
    "segmentation-invalid", Severity.ERROR, "segmentation that is neither polygons nor RLE", "correct or delete it",
    "raise", ("drop",),
)  # fmt: skip
CROWD_SKIPPED = IssueType(
    "crowd-skipped", Severity.NOTE, "crowd regions that are left out", "{data_option=crowd=true} reads them as objects"
)
ISSUES = (
    *detection.DETECTION_ISSUES, detection.IMAGE_SIZE, detection.BOX_INVALID, CATEGORIES_MISSING, IMAGE_INVALID,
    ANNOTATION_ORPHAN, SEGMENTATION_INVALID, CROWD_SKIPPED,
)  # fmt: skip

_MOST_BYTES = 1 << 30
_MOST_NAN_BYTES = 1 << 28
_HEAD = 1 << 16
_LARGEST = 1e9  # no image is that wide; NaN and infinity are not below it
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
    try:
        head = files.read(name, _HEAD)
    except SampleError:
        return False
    return head.lstrip()[:1] == b"{" and bool(_KEYS.search(head)) and bool(_FIELDS.search(head))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> CocoSource:
    """Read the annotation files and find their images; with `full` depth also decode the images."""
    task = detection.detection_task(options) or DETECTION
    crowd = as_flag("crowd", options.get("crowd")) or False
    names = annotation_files(files)
    if names and len(files.names()) == 1 and (path := files.path(names[0])):  # given alone, it stands for its folder
        folder = Path(path).absolute().parent
        files = Folder(folder.parent if folder.name.lower() == "annotations" else folder, files.root, report)
        names = [name for name in files.names() if os.path.basename(name) == names[0]][:1]
    splits = {name: split_of_file(name) or _split_above(name) for name in names}
    selected = as_split(options.get("split"), {split: 0 for split in SPLITS if split in splits.values()})
    names = [name for split in (*SPLITS, None) for name in names if splits[name] == split and selected in (None, split)]
    parsed = {name: content for name in names if (content := _load(files, name, report)) is not None}
    categories = _categories(parsed, report)
    entries: dict[str, Entry] = {}
    for name, content in parsed.items():
        images = _index_images(entries, name, splits[name], content, _image_finder(files, name), report)
        _index_objects(images, name, content, report, crowd=crowd, masks=task == SEGMENTATION)
    source = CocoSource(files, list(entries.values()), task, categories, report.on_error)
    if not entries:
        report.add(
            detection.NO_IMAGES,
            f"none of the images of {plural(len(names), 'annotation file')} was found",
            Location("."),
        )
    if depth == "full":
        source.check(report)
    report.facts.update({key: value for key, value in source.facts.items() if value})
    return source


def _split_above(name: str) -> str | None:
    folders = [split_of_folder(folder) for folder in name.split("/")[:-1]]
    return next((split for split in reversed(folders) if split), None)


def _load(files: Files, name: str, report: DataReport) -> dict[str, Any] | None:
    """The content of an annotation file, or `None` after reporting why not."""
    try:
        content = files.read(name, _MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        value = _parse(content)
        if not isinstance(value, dict) or not isinstance(value.get("images"), list):
            raise ValueError('there is no list "images"')
        if not isinstance(value.get("annotations", []), list):
            raise ValueError('"annotations" is not a list')
        return value
    except (SampleError, ValueError) as error:
        message = error.issue.message if isinstance(error, SampleError) else str(error)
        report.add(detection.LABEL_UNREADABLE, message, Location(name, line=getattr(error, "lineno", None)))
        return None


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


def _categories(parsed: Mapping[str, dict[str, Any]], report: DataReport) -> dict[Any, str]:
    """Names by id, over all files, in the order of the ids."""
    names: dict[Any, str] = {}
    for file, content in parsed.items():
        entries = content.get("categories")
        entries = entries if isinstance(entries, list) else []
        valid = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), int | str)]
        if not valid and content.get("annotations"):
            report.add(CATEGORIES_MISSING, "classes are not known", Location(file, field="categories"))
        for entry in valid:
            name = str(entry.get("name") or f"category_{entry['id']}")
            if names.setdefault(entry["id"], name) != name:
                message = f"category {entry['id']!r} is {name!r}, elsewhere {names[entry['id']]!r}"
                report.add(detection.NAMES_CONFLICT, message, Location(file, field="categories"))
    return dict(sorted(names.items(), key=lambda pair: (isinstance(pair[0], str), pair[0])))


def _image_finder(files: Files, annotation: str) -> Callable[[str], str | None]:
    """Finds an image by its `file_name`: at that path below any folder, or at least with the same base name.

    Of several, one next to the annotation file comes first, then one in a folder of its split.
    """
    above, split = posixpath.dirname(annotation), split_of_file(annotation)
    by_base: dict[str, list[str]] = {}
    for name in filter(is_image_name, files.names()):
        by_base.setdefault(posixpath.basename(name), []).append(name)

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


def _index_images(
    entries: dict[str, Entry],
    file: str,
    split: str | None,
    content: Mapping[str, Any],
    find: Callable[[str], str | None],
    report: DataReport,
) -> dict[Any, Entry | None]:
    """Add the images of one file; returns them by id, `None` for those that are left out."""
    images: dict[Any, Entry | None] = {}
    for row, entry in enumerate(content["images"]):
        location = Location(file, row=row, field="images")
        valid = isinstance(entry, dict) and isinstance(entry.get("file_name"), str)
        if not valid or not isinstance(entry.get("id"), int | str):
            report.add(IMAGE_INVALID, _shown(entry), location)
        elif entry["id"] in images:
            report.add(IMAGE_INVALID, f"another image has the id {entry['id']!r}", location)
        elif (image := find(entry["file_name"])) is None:
            images[entry["id"]] = None
            report.add(detection.IMAGE_MISSING, entry["file_name"][:200], location)
        else:
            width, height = entry.get("width"), entry.get("height")
            has_size = isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0
            size = (width, height) if has_size else None
            images[entry["id"]] = entries.setdefault(image, Entry(image, split, file, size))
    return images


@dataclass(slots=True)
class _Annotation:
    """One annotation, as far as it is needed; the segmentation as JSON, which takes less memory than lists."""

    row: int
    box: tuple[float, ...] | None
    category: Any
    segmentation: bytes = b""


def _index_objects(
    images: Mapping[Any, Entry | None],
    file: str,
    content: Mapping[str, Any],
    report: DataReport,
    *,
    crowd: bool,
    masks: bool,
) -> None:
    """Add the annotations of one file to its images."""
    crowds = 0
    for row, entry in enumerate(content.get("annotations", ())):
        identity = entry.get("image_id") if isinstance(entry, dict) else None
        if not isinstance(identity, int | str) or identity not in images:
            message = f"there is no image {str(identity)[:60]}" if identity is not None else _shown(entry)
            report.add(ANNOTATION_ORPHAN, message, Location(file, row=row, field="annotations"))
        elif entry.get("iscrowd") in (1, True) and not crowd:
            crowds += 1
        elif (image := images[identity]) is not None:
            category = entry.get("category_id")
            category_id = category if isinstance(category, int | str) else None
            image.objects.append(
                _Annotation(
                    row, _numbers(entry.get("bbox")), category_id, _dumped(entry.get("segmentation") if masks else None)
                )
            )
    if crowds:
        report.add(CROWD_SKIPPED, plural(crowds, "region"), Location(file))


def _shown(entry: Any) -> str:
    """An entry by its keys; its complete text could be very long or nested without end."""
    return f"keys {', '.join(list(map(str, entry))[:6])}"[:200] if isinstance(entry, dict) else type(entry).__name__


def _numbers(box: Any) -> tuple[float, ...] | None:
    if not isinstance(box, list) or len(box) != 4 or not _all_numbers(box):
        return None
    return tuple(map(float, box))


def _all_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values)


def _dumped(segmentation: Any) -> bytes:
    try:
        return orjson.dumps(segmentation) if segmentation else b""
    except TypeError:  # integers of more than 64 bits, lists nested too deeply
        return b"null"


class CocoSource(DetectionSource):
    """Images with the annotations of COCO files."""

    def __init__(
        self, files: Files, entries: Sequence[Entry], task: str, categories: Mapping[Any, str], on_error: OnError
    ):
        super().__init__(files, entries, {"task": task, "classes": list(categories.values()) or None}, on_error)
        self._class_indices = {identity: index for index, identity in enumerate(categories)}

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The annotations of an image."""
        entry = self.entries[index]
        claimed = self.claimed_size(index, size, issue)
        objects = []
        for annotation in entry.objects if claimed else ():
            location = Location(entry.annotation, row=annotation.row, field="annotations")
            if claimed and (instance := self._object(annotation, claimed, location, issue)):
                objects.append(instance)
        return Annotation(objects, annotated=bool(entry.objects))

    def _object(self, entry: _Annotation, size: Size, location: Location, issue: ReportIssue) -> Object | None:
        class_index = self._class_indices.get(entry.category)
        if class_index is None and self._class_indices:
            issue(detection.CLASS_BEYOND, f"category {str(entry.category)[:60]}", location)
            return None
        if entry.box is None:
            issue(detection.BOX_INVALID, "the box is not four numbers", location)
            return None
        x, y, width, height = (value / size[axis % 2] for axis, value in enumerate(entry.box))
        box = detection.fit_box(shapes.box_from_top_left(x, y, width, height), location, issue)
        if box is None:
            return None
        instance = Object(class_index or 0, box)
        return self._segmented(instance, entry.segmentation, size, location, issue) if entry.segmentation else instance

    def _segmented(
        self, instance: Object, content: bytes, size: Size, location: Location, issue: ReportIssue
    ) -> Object | None:
        """The object with its outline or its runs."""
        segmentation = orjson.loads(content)
        try:
            if isinstance(segmentation, dict):
                instance.mask = _rle(segmentation, size)
                return instance
            polygons = list(_polygons(segmentation, size))
        except ValueError as error:
            issue(SEGMENTATION_INVALID, str(error), location)
            return None
        fitted = [detection.fit_polygon(points, location, issue) for points in polygons]
        instance.polygons = tuple(points for points in fitted if points is not None)
        return instance if instance.polygons else None


def _rle(segmentation: Mapping[str, Any], size: Size) -> Callable[[], shapes.Mask]:
    width, height = size
    counts = segmentation.get("counts")
    if segmentation.get("size") != [height, width] or not isinstance(counts, str | list):
        raise ValueError(f"the RLE has no counts, or not the size [{height}, {width}]")
    return functools.partial(shapes.rle_mask, shapes.rle_runs(counts, height, width), height, width)


def _polygons(segmentation: Any, size: Size) -> Iterator[shapes.Points]:
    if not isinstance(segmentation, list) or not segmentation:
        raise ValueError("not a list of polygons")
    for polygon in segmentation:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or not _all_numbers(polygon):
            raise ValueError("a polygon is a list of six or more numbers, x and y in turn")
        yield np.array(polygon, np.float64).reshape(-1, 2) / size


def example(folder: Path) -> Path:
    """Five images in two splits with boxes, a polygon and a mask of runs."""
    from PIL import Image

    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    for split, count in (("train2017", 3), ("val2017", 2)):
        (folder / split).mkdir(exist_ok=True)
        images, annotations = [], []
        for number in range(count):
            name = f"{split[0]}{number}.png"
            pixels = np.random.default_rng([count, number]).integers(0, 255, (24, 32, 3), np.uint8)
            Image.fromarray(pixels).save(folder / split / name)
            images.append({"id": number, "file_name": name, "width": 32, "height": 24})
            polygon = [[8, 6, 24, 6, 24, 18, 8, 18]]
            annotations.append(_annotation(2 * number, number, 3, [8, 6, 16, 12], polygon))
            runs = {"size": [24, 32], "counts": [24 * 4, 24 * 2, 24 * 26]}
            annotations.append(_annotation(2 * number + 1, number, 7, [4, 0, 2, 24], runs))
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_bytes(orjson.dumps(content))
    return folder


def _annotation(identity: int, image: int, category: int, box: list[int], segmentation: Any) -> dict[str, Any]:
    entry = {"id": identity, "image_id": image, "category_id": category, "bbox": box, "iscrowd": 0}
    return {**entry, "segmentation": segmentation, "area": box[2] * box[3]}


FORMAT = Format(
    "coco", "COCO", "annotations/instances_{split}.json and images anywhere below", ISSUES, detect, scan, example,
    (FormatOption("crowd", "crowd regions are objects", bool, False),), unit="image",
)  # fmt: skip
