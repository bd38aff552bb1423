# SPDX-License-Identifier: Apache-2.0
"""Pascal VOC: an XML file per image.

    VOCdevkit/VOC2012/Annotations/2007_000027.xml     JPEGImages/2007_000027.jpg
                      ImageSets/Main/{train,val}.txt  SegmentationClass/2007_000032.png
    Annotations/a.xml  JPEGImages/a.jpg               without splits
    a.xml  a.jpg                                      side by side

A sample has `image`, `boxes` (relative centre and size), `classes`, and the flag `difficult` of each object.
Boxes are pixels counted from 1, both ends included: xmin 1, xmax 10 are the ten pixels from 0 to 10.
For segmentation it has `image` and `mask`, the class of each pixel: 0 is background, 255 is not annotated.
"""

from __future__ import annotations

import math
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from fewbit.data.formats import _detection as detection
from fewbit.data.formats._class_folders import as_names, as_split
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
from fewbit.data.formats.image_masks import MASK_MISSING, MASK_SIZE, MASK_VALUE
from fewbit.data.images import shapes
from fewbit.data.images.masks import MASK_COLORS, decode_mask
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
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
)
from fewbit.errors import plural

ANNOTATION_MISSING = IssueType(
    "annotation-missing", Severity.WARNING, "image without an annotation file, which is not read",
    "annotate it, or {on_error=keep} to read it as background", "drop", ("keep", "raise"),
)  # fmt: skip
NOT_LISTED = IssueType(
    "annotation-not-listed", Severity.NOTE, "annotated images in no list of ImageSets, which are not read",
    "add them to a list of ImageSets/Main",
)  # fmt: skip
ISSUES = (
    *detection.DETECTION_ISSUES, detection.IMAGE_SIZE, detection.BOX_INVALID, ANNOTATION_MISSING, NOT_LISTED,
    MASK_MISSING, MASK_SIZE, MASK_VALUE, MASK_COLORS,
)  # fmt: skip

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_NOT_ANNOTATED = 255
_XML_BYTES = 4 << 20
_LIST_BYTES = 64 << 20
_DEEPEST = 32
_HEAD = 1024
_MOST_SEEN = 8
_LARGEST = 1e9
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*encoding\s*=\s*["']([^"']+)""")
_ENCODINGS = (b"utf-8", b"utf8", b"ascii", b"us-ascii", b"iso-8859-1", b"latin-1", b"windows-1252")


def detect(files: Files) -> Detection | None:
    """XML files that begin with an annotation, next to images."""
    names = _annotation_names(files)[:_MOST_SEEN]
    if not any(b"<annotation" in _head(files, name) for name in names):
        return None
    if any(is_image_name(name) for name in files.names()):
        return Detection(0.95, f"annotations such as {names[0]}")
    return Detection(0.75, f"annotations such as {names[0]}, but no images")


def _annotation_names(files: Files) -> list[str]:
    """XML files in folders called Annotations; all of them if there are none."""
    names = [name for name in files.names() if name.lower().endswith(".xml")]
    return [name for name in names if _folder(name) == "annotations"] or names


def _folder(name: str) -> str:
    return posixpath.basename(posixpath.dirname(name)).lower()


def _head(files: Files, name: str) -> bytes:
    try:
        return files.read(name, _HEAD)
    except SampleError:
        return b""


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> VocSource:
    """Read the annotation files and pair them with images; with `full` depth also decode the images."""
    task = detection.detection_task(options) or DETECTION
    layout = _Layout(files)
    listed = list(_listed(layout, "segmentation" if task == SEGMENTATION else "main", report))
    splits = {split for split, _ in listed}
    selected = as_split(options.get("split"), {split: 0 for split in SPLITS if split in splits})
    bases = sorted(listed, key=lambda pair: SPLITS.index(pair[0])) if listed else _unlisted(layout, task)
    entries: dict[str, Entry] = {}
    for split, base in bases:
        if selected in (None, split) and base not in entries:
            entry = _entry(layout, base, split, task, report)
            entries |= {base: entry} if entry is not None else {}
    if task == DETECTION and listed and (skipped := set(layout.annotations) - {base for _, base in listed}):
        message = f"{plural(len(skipped), 'image')} such as {min(skipped)}"
        report.add(NOT_LISTED, message, Location("."), samples=len(skipped))
    classes = _classes(options, entries.values(), task)
    source = VocSource(files, list(entries.values()), classes, task, report.on_error)
    if not entries:
        report.add(detection.NO_IMAGES, "no annotation file has an image", Location("."))
    if depth == "full":
        source.check(report)
    report.facts.update({key: value for key, value in source.facts.items() if value})
    return source


class _Layout:
    """Annotation files, images and masks by their base: folder and stem, as in `VOC2012/2007_000027`."""

    def __init__(self, files: Files):
        self.files = files
        self.annotations = {_base(name): name for name in _annotation_names(files)}
        self.images: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        for name in filter(is_image_name, files.names()):
            if _folder(name) == "segmentationclass":
                self.masks[_base(name)] = name
            elif _folder(name) != "segmentationobject":
                self.images.setdefault(_base(name), name)
        self.by_file: dict[str, str] = {posixpath.basename(name): name for name in reversed(self.images.values())}


def _base(name: str) -> str:
    """The folder above VOC's own folders and the stem."""
    folder, file = posixpath.split(unicodedata.normalize("NFC", name))
    if _folder(name) in ("annotations", "jpegimages", "images", "segmentationclass", "segmentationobject"):
        folder = posixpath.dirname(folder)
    return posixpath.join(folder, posixpath.splitext(file)[0])


def _listed(layout: _Layout, kind: str, report: DataReport) -> Iterator[tuple[Any, str]]:
    """Splits and bases of the lists in ImageSets."""
    for name in layout.files.names():
        folder, file = posixpath.split(name)
        stem, suffix = posixpath.splitext(file.lower())
        split = split_of_folder(stem)
        if split is None or suffix != ".txt" or not f"/{folder.lower()}".endswith(f"/imagesets/{kind}"):
            continue
        root = folder[: -len(f"imagesets/{kind}")]
        try:
            lines = layout.files.read(name, _LIST_BYTES).decode("utf-8-sig", errors="replace").split("\n")
        except SampleError as error:
            report.add(detection.LABEL_UNREADABLE, error.issue.message, Location(name))
            continue
        for number, line in enumerate(lines, start=1):
            if words := unicodedata.normalize("NFC", line).split():
                base = posixpath.join(root, words[0])
                if base in layout.annotations or base in layout.images:
                    yield split, base
                else:
                    message = f"{words[0][:200]} is neither an image nor annotated"
                    report.add(detection.IMAGE_MISSING, message, Location(name, line=number))


def _unlisted(layout: _Layout, task: str) -> list[tuple[Any, str]]:
    """Everything, for a dataset without lists: masks, or annotations and images without one."""
    if task == SEGMENTATION:
        return [(None, base) for base in layout.masks]
    return [(None, base) for base in dict.fromkeys((*layout.annotations, *layout.images))]


@dataclass(slots=True)
class _Box:
    """One object as written: its class by name, its edges in pixels if they are numbers."""

    name: str
    edges: tuple[float, ...] | None
    difficult: bool


def _entry(layout: _Layout, base: str, split: str | None, task: str, report: DataReport) -> Entry | None:
    annotation, image, mask = layout.annotations.get(base), layout.images.get(base), layout.masks.get(base, "")
    if task == SEGMENTATION and not mask:
        message = f"there is no SegmentationClass/{posixpath.basename(base)}.png"
        report.add(MASK_MISSING, message, Location(image or base))
        return None
    if annotation is None:
        if image is None or (
            task == DETECTION and report.add(ANNOTATION_MISSING, "there is no XML file", Location(image)) != "keep"
        ):
            return None
        return Entry(image, split, mask=mask)
    try:
        root = read_xml(layout.files.read(annotation, _XML_BYTES + 1), annotation)
    except SampleError as error:
        report.add(detection.LABEL_UNREADABLE, error.issue.message, Location(annotation))
        return None
    image = image or layout.by_file.get(posixpath.basename((root.findtext("filename") or "").replace("\\", "/")))
    if image is None:
        report.add(detection.IMAGE_MISSING, f"no image is called {posixpath.basename(base)}", Location(annotation))
        return None
    width, height = (int(_number(root.findtext(f"size/{side}")) or 0) for side in ("width", "height"))
    size = (width, height) if width > 0 and height > 0 else None  # some tools write 0
    return Entry(image, split, annotation, size, [_box(node) for node in root.findall("object")], mask)


def read_xml(content: bytes, name: str) -> ElementTree.Element:
    """Parse an annotation file without entities and within limits.

    Raises:
        SampleError: not such a file.
    """
    message = ""
    encoding = _ENCODING.search(content[:_HEAD])
    if len(content) > _XML_BYTES:
        message = f"more than {_XML_BYTES:,} bytes"
    elif b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        message = "it has a DOCTYPE or entities, which are not read"
    elif b"\0" in content or (encoding and encoding[1].lower() not in _ENCODINGS):
        message = "it is not UTF-8"  # in another encoding a DOCTYPE would not have been seen
    if message:
        raise SampleError(Issue(detection.LABEL_UNREADABLE, message, Location(name)))
    parser = ElementTree.XMLParser(target=_Bounded())
    try:
        parser.feed(content)
        root = parser.close()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise SampleError(Issue(detection.LABEL_UNREADABLE, str(error), Location(name))) from error
    if not isinstance(root, ElementTree.Element) or root.tag != "annotation":
        raise SampleError(Issue(detection.LABEL_UNREADABLE, "its root is not <annotation>", Location(name)))
    return root


class _Bounded(ElementTree.TreeBuilder):
    """A tree that is not deeper than annotations are."""

    _depth = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _box(node: ElementTree.Element) -> _Box:
    values = [_number(node.findtext(f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")]
    edges = tuple(value for value in values if value is not None)
    difficult = (node.findtext("difficult") or "").strip() == "1"
    return _Box((node.findtext("name") or "").strip(), edges if len(edges) == 4 else None, difficult)


def _number(text: str | None) -> float | None:
    """A number as programs write it; NaN and infinity are none."""
    try:
        value = float(text or "") if text and text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if abs(value) < _LARGEST else None


def _classes(options: Mapping[str, Any], entries: Iterable[Entry], task: str) -> list[str]:
    """The classes that were given, or all that occur, sorted."""
    names = as_names(options.get("classes")) or ()
    if not names:
        names = tuple(sorted({box.name for entry in entries for box in entry.objects if box.name}))
        if task == SEGMENTATION and set(names) <= set(VOC_CLASSES):
            names = VOC_CLASSES  # the numbers in masks are VOC's, also if not every class occurs
    return ["background", *(name for name in names if name != "background")] if task == SEGMENTATION else list(names)


class VocSource(DetectionSource):
    """Images with the objects of their annotation files, or with their masks."""

    def __init__(self, files: Files, entries: Sequence[Entry], classes: list[str], task: str, on_error: OnError):
        super().__init__(files, entries, {"task": task, "classes": classes or None}, on_error)
        self._class_indices = {name: index for index, name in enumerate(classes)}

    def __getitem__(self, index: int) -> Sample:
        if self.facts["task"] == DETECTION:
            return super().__getitem__(index)
        image = self.image(index)
        return {"image": image, "mask": self._mask(index, (image.shape[1], image.shape[0]))}

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The boxes of an image; for segmentation its mask is checked instead."""
        entry = self.entries[index]
        if self.facts["task"] == SEGMENTATION:
            self._mask(index, size)
            return Annotation()
        claimed = self.claimed_size(index, size, issue)
        objects = []
        for number, box in enumerate(entry.objects):
            location = Location(entry.annotation, row=number, field="object")
            if claimed and (instance := self._object(box, claimed, location, issue)):
                objects.append(instance)
        return Annotation(objects, annotated=bool(entry.objects))

    def _object(self, box: _Box, size: Size, location: Location, issue: ReportIssue) -> Object | None:
        class_index = self._class_indices.get(box.name)
        if class_index is None:
            issue(detection.CLASS_BEYOND, repr(box.name[:60]), location)
            return None
        if box.edges is None:
            issue(detection.BOX_INVALID, "xmin, ymin, xmax and ymax are not all numbers", location)
            return None
        x_min, y_min, x_max, y_max = box.edges
        # Some tools count from 0 all the same: a box that begins at 0 is not beyond the border.
        x_min, y_min = (max(edge - 1, 0) if edge >= 0 else edge - 1 for edge in (x_min, y_min))
        width, height = size
        relative = shapes.box_from_edges(x_min / width, y_min / height, x_max / width, y_max / height)
        fitted = detection.fit_box(relative, location, issue)
        return None if fitted is None else Object(class_index, fitted, difficult=box.difficult)

    def sample(self, index: int, image: np.ndarray, objects: list[Object]) -> Sample:
        """Boxes with their flags."""
        difficult = np.array([instance.difficult for instance in objects], np.bool_)
        return {**super().sample(index, image, objects), "difficult": difficult}

    def _mask(self, index: int, size: Size | None) -> np.ndarray:
        """The class of each pixel.

        Raises:
            SampleError: the mask is damaged, or does not belong to the image or the classes.
        """
        name = self.entries[index].mask
        with self.files.open(name) as stream:
            mask = decode_mask(stream, Location(name))
        if size is not None and mask.shape != size[::-1]:
            message = f"{mask.shape[1]} x {mask.shape[0]} pixels; the image has {size[0]} x {size[1]}"
            raise SampleError(Issue(MASK_SIZE, message, Location(name)))
        beyond = sorted(set(np.unique(mask).tolist()) - set(range(len(self._class_indices))) - {_NOT_ANNOTATED})
        if beyond:
            message = f"class {beyond[0]}, but there are {plural(len(self._class_indices), 'class')}"
            raise SampleError(Issue(MASK_VALUE, message, Location(name)))
        return mask


def example(folder: Path) -> Path:
    """Five images in two splits, two of them with masks."""
    from PIL import Image

    base = folder / "VOCdevkit" / "VOC2012"
    for inner in ("Annotations", "JPEGImages", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (base / inner).mkdir(parents=True, exist_ok=True)
    for number in range(5):
        stem = f"2012_{number:06}"
        pixels = np.random.default_rng(number).integers(0, 255, (24, 32, 3), np.uint8)
        Image.fromarray(pixels).save(base / "JPEGImages" / f"{stem}.jpg", quality=95)
        instance = f"<object><name>{('cat', 'dog')[number % 2]}</name><difficult>{number % 2}</difficult><bndbox>"
        instance += "<xmin>9</xmin><ymin>7</ymin><xmax>24</xmax><ymax>18</ymax></bndbox></object>"
        size = "<size><width>32</width><height>24</height><depth>3</depth></size>"
        text = f"<annotation><filename>{stem}.jpg</filename>{size}{instance}</annotation>"
        (base / "Annotations" / f"{stem}.xml").write_text(text)
        mask = np.zeros((24, 32), np.uint8)
        mask[6:18, 8:24] = VOC_CLASSES.index(("cat", "dog")[number % 2]) + 1
        mask[5, 8:24] = _NOT_ANNOTATED
        if number in (0, 3):
            Image.fromarray(mask).save(base / "SegmentationClass" / f"{stem}.png")
    lists = {"Main/train": (0, 1, 2), "Main/val": (3, 4), "Segmentation/train": (0,), "Segmentation/val": (3,)}
    for name, numbers in lists.items():
        text = "".join(f"2012_{number:06}\n" for number in numbers)
        (base / "ImageSets" / f"{name}.txt").write_text(text)
    return folder


FORMAT = Format(
    "voc", "Pascal VOC", "Annotations/*.xml and JPEGImages/*.jpg, with or without ImageSets", ISSUES, detect, scan,
    example,
    (FormatOption("classes", "names of the classes in the model's order, separated by commas", (str, list)),),
    unit="image",
)  # fmt: skip
