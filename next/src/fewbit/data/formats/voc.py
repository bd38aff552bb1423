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

import posixpath
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.detection import issues
from fewbit.data.detection.objects import Object, ReportIssue, Size, fit_box, without_duplicates
from fewbit.data.detection.source import (
    DETECTION,
    SEGMENTATION,
    Annotation,
    DetectionSource,
    Entry,
    RepairedImage,
    change_line,
    copy_others,
    detection_task,
    repaired_images,
)
from fewbit.data.detection.voc_xml import XML_BYTES, VocObject, edit_objects, read_objects, read_size, read_xml
from fewbit.data.images import shapes
from fewbit.data.images.file_source import example_image, read_head
from fewbit.data.images.format_options import classes_option, split_option
from fewbit.data.images.masks import IGNORE, MASK_MISSING, check_mask, decode_mask
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
)
from fewbit.errors import plural

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_LIST_BYTES = 64 << 20
_HEAD = 1024
_MOST_SEEN = 8


def detect(files: Files) -> Detection | None:
    """XML files that begin with an annotation, next to images."""
    names = _annotation_names(files)[:_MOST_SEEN]
    if not any(b"<annotation" in read_head(files, name, _HEAD) for name in names):
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


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> VocSource:
    """Read the annotation files and pair them with images; with `full` depth also decode the images."""
    task = detection_task(options) or DETECTION
    layout = _Layout(files, report)
    names = layout.listed("segmentation" if task == SEGMENTATION else "main")
    listed: list[tuple[Any, str]] = sorted(names, key=lambda pair: SPLITS.index(pair[0]))
    selected = split_option(options.get("split"), [name for name in SPLITS if name in {split for split, _ in listed}])
    everything = layout.masks if task == SEGMENTATION else dict.fromkeys((*layout.annotations, *layout.images))
    entries: dict[str, Entry | None] = {}
    for split, base in listed or [(None, base) for base in everything]:
        if selected in (None, split) and base not in entries:
            entries[base] = layout.entry(base, split, task)
    if task == DETECTION and listed and (skipped := set(layout.annotations) - {base for _, base in listed}):
        message = f"{plural(len(skipped), 'image')} such as {min(skipped)}"
        report.add(issues.NOT_LISTED, message, Location("."), samples=len(skipped))
    source = VocSource(layout, [entry for entry in entries.values() if entry is not None], task, options)
    source.check(report, depth)
    return source


class _Layout:
    """Annotation files, images and masks by their base: folder and stem, as in `VOC2012/2007_000027`."""

    def __init__(self, files: Files, report: DataReport):
        self.files, self.report = files, report
        self.issues: list[Issue] = []  # of files and lines that a repaired copy leaves out
        self.missing: set[str] = set()  # that a list names
        self.annotations = {_base(name): name for name in _annotation_names(files)}
        self.images: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        for name in filter(is_image_name, files.names()):
            if _folder(name) == "segmentationclass":
                self.masks[_base(name)] = name
            elif _folder(name) != "segmentationobject":
                self.images.setdefault(_base(name), name)
        self._by_file = {posixpath.basename(name): name for name in reversed(self.images.values())}

    def listed(self, kind: str) -> Iterator[tuple[Any, str]]:
        """Splits and bases in the lists of ImageSets."""
        for name in self.files.names():
            folder, file = posixpath.split(name)
            stem, suffix = posixpath.splitext(file.lower())
            split = split_of_folder(stem)
            if split is None or suffix != ".txt" or not f"/{folder.lower()}".endswith(f"/imagesets/{kind}"):
                continue
            root = folder[: -len(f"imagesets/{kind}")]
            for number, line in enumerate(self._lines(name), start=1):
                if words := unicodedata.normalize("NFC", line).split():
                    base = posixpath.join(root, words[0])
                    if base in self.annotations or base in self.images:
                        yield split, base
                    else:
                        message = f"{words[0][:200]} is neither an image nor annotated"
                        self._reject(issues.IMAGE_MISSING, message, Location(name, line=number))
                        self.missing.add(base)

    def _lines(self, name: str) -> list[str]:
        try:
            return self.files.read(name, _LIST_BYTES).decode("utf-8-sig", errors="replace").split("\n")
        except SampleError as error:
            self._reject(issues.LABEL_UNREADABLE, error.issue.message, Location(name))
            return []

    def entry(self, base: str, split: str | None, task: str) -> Entry | None:
        """The entry of one image, or `None` after reporting what is missing."""
        annotation, image, mask = self.annotations.get(base), self.images.get(base), self.masks.get(base, "")
        if task == SEGMENTATION and not mask:
            message = f"there is no SegmentationClass/{posixpath.basename(base)}.png"
            self._reject(MASK_MISSING, message, Location(image or base))
            return None
        if annotation is None:
            if task == DETECTION:
                action = self.report.add(issues.ANNOTATION_MISSING, "there is no XML file", Location(image or base))
                image = image if action == "keep" else None
            return Entry(image, split, mask=mask) if image else None
        try:
            root = read_xml(self.files.read(annotation, XML_BYTES + 1))
        except (SampleError, ValueError) as error:
            message = error.issue.message if isinstance(error, SampleError) else str(error)
            self._reject(issues.LABEL_UNREADABLE, message, Location(annotation))
            return None
        file_name = posixpath.basename((root.findtext("filename") or "").strip().replace("\\", "/"))
        stem = posixpath.basename(base)
        if (
            image
            and file_name
            and stem not in (file_name, posixpath.splitext(unicodedata.normalize("NFC", file_name))[0])
        ):
            self.report.add(issues.FILENAME_DIFFERS, f"it says {file_name[:200]}", Location(annotation))
        image = image or self._by_file.get(file_name)
        if image is None:
            self._reject(issues.IMAGE_MISSING, f"no image is called {posixpath.basename(base)}", Location(annotation))
            return None
        return Entry(image, split, annotation, read_size(root), read_objects(root), mask)

    def _reject(self, kind: IssueType, message: str, location: Location) -> None:
        self.report.add(kind, message, location)
        self.issues.append(Issue(kind, message, location))


def _base(name: str) -> str:
    """The folder above VOC's own folders and the stem."""
    folder, file = posixpath.split(unicodedata.normalize("NFC", name))
    if _folder(name) in ("annotations", "jpegimages", "images", "segmentationclass", "segmentationobject"):
        folder = posixpath.dirname(folder)
    return posixpath.join(folder, posixpath.splitext(file)[0])


class VocSource(DetectionSource):
    """Images with the objects of their annotation files, or with their masks."""

    def __init__(self, layout: _Layout, entries: list[Entry], task: str, options: Mapping[str, Any]):
        classes = _classes(classes_option(options.get("classes")), entries, task)
        super().__init__(layout.files, entries, {"task": task, "classes": classes}, layout.report.on_error)
        self._class_indices = {name: index for index, name in enumerate(classes)}
        self.layout: _Layout | None = layout

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"layout": None}  # workers do not repair

    def __getitem__(self, index: int) -> Sample:
        if self.facts["task"] == DETECTION:
            return super().__getitem__(index)
        image = self.image(index)
        return {"image": image, "mask": self._mask(index, (image.shape[1], image.shape[0]))}

    def _mask(self, index: int, size: Size | None) -> np.ndarray:
        location = Location(self.entries[index].mask)
        with self.files.open(location.file) as stream:
            mask = decode_mask(stream, location)
        check_mask(mask, size, len(self._class_indices), location)
        return mask

    def annotation(self, index: int, size: Size | None, issue: ReportIssue) -> Annotation:
        """The boxes of an image; for segmentation its mask is checked instead."""
        entry = self.entries[index]
        if self.facts["task"] == SEGMENTATION:
            self._mask(index, size)
            return Annotation()
        claimed = self.claimed_size(index, size, issue)
        locations = [Location(entry.annotation, row=row, field="object") for row in range(len(entry.objects))]
        pairs = zip(entry.objects, locations) if claimed else ()
        objects = [self._object(item, claimed, location, issue) for item, location in pairs if claimed]
        usable = [instance for instance in objects if instance is not None]
        return Annotation(list(without_duplicates(usable, issue)), annotated=bool(entry.objects))

    def _object(self, item: VocObject, size: Size, location: Location, issue: ReportIssue) -> Object | None:
        class_index = self._class_indices.get(item.name)
        if class_index is None:
            issue(issues.CLASS_BEYOND, repr(item.name[:60]), location)
            return None
        if item.edges is None:
            issue(issues.BOX_INVALID, "xmin, ymin, xmax and ymax are not all numbers", location)
            return None
        x_min, y_min, x_max, y_max = item.edges
        # Some tools count from 0 all the same: a box that begins at 0 is not beyond the border.
        x_min, y_min = (max(edge - 1, 0) if edge >= 0 else edge - 1 for edge in (x_min, y_min))
        width, height = size
        relative = shapes.box_from_edges(x_min / width, y_min / height, x_max / width, y_max / height)
        box = fit_box(relative, location, issue, size)
        return None if box is None else Object(class_index, box, location, difficult=item.difficult)

    def sample(self, index: int, image: np.ndarray, objects: list[Object]) -> Sample:
        """Boxes with their flags."""
        difficult = np.array([instance.difficult for instance in objects], np.bool_)
        return {**super().sample(index, image, objects), "difficult": difficult}


def _classes(names: tuple[str, ...], entries: Iterable[Entry], task: str) -> list[str]:
    """The classes that were given, or all that occur, sorted."""
    if not names:
        names = tuple(sorted({item.name for entry in entries for item in entry.objects if item.name}))
        if task == SEGMENTATION and set(names) <= set(VOC_CLASSES):
            names = VOC_CLASSES  # the numbers in masks are VOC's, also if not every class occurs
    return ["background", *(name for name in names if name != "background")] if task == SEGMENTATION else list(names)


def write(source: VocSource, folder: Path) -> list[str]:
    """Write a repaired copy: images byte for byte, annotation files and lists anew if something is wrong in them."""
    layout = source.layout
    assert layout is not None
    usable, changes = repaired_images(source)
    changes = [*map(change_line, layout.issues), *changes]
    lost = {_base(entry.name) for entry in source.entries if entry.name not in usable}
    lost |= {_base(name) for name in (*source.unusable, *(issue.location.file for issue in layout.issues))}
    lost |= layout.missing
    texts = {
        image.entry.annotation: _repaired_xml(source, image)
        for image in usable.values() if image.issues and image.entry.annotation
    }  # fmt: skip
    for name in source.files.names():
        above = f"/{name.lower()}".find("/imagesets/")
        if above >= 0 and name.lower().endswith(".txt"):
            lines = source.files.read(name, _LIST_BYTES).splitlines(keepends=True)
            texts[name] = b"".join(line for line in lines if not _names_one_of(lost, name[:above], line))
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    files = (*layout.annotations.values(), *layout.images.values(), *layout.masks.values())
    return changes + copy_others(source, folder, texts, [name for name in files if _base(name) in lost])


def _names_one_of(bases: set[str], root: str, line: bytes) -> bool:
    words = unicodedata.normalize("NFC", line.decode("utf-8-sig", errors="replace")).split()
    return bool(words) and posixpath.join(root.rstrip("/"), words[0]) in bases


def _repaired_xml(source: VocSource, image: RepairedImage) -> bytes:
    """An annotation file without its unusable objects, boxes clipped."""
    objects = {instance.location.row: instance for instance in image.objects}
    edges: dict[int, list[int] | None] = {row: None for row in range(len(image.entry.objects)) if row not in objects}
    for issue in image.issues:
        row = issue.location.row
        if row is not None and row in objects and issue.type in (issues.OUT_OF_RANGE, issues.OUT_OF_RANGE_SLIGHTLY):
            pixels = np.array(shapes.box_edges(objects[row].box)).reshape(2, 2) * image.size
            pixels[0] += 1  # counted from 1, both ends included
            edges[row] = np.round(pixels).astype(int).ravel().tolist()
    return edit_objects(source.files.read(image.entry.annotation, XML_BYTES), edges)


def example(folder: Path) -> Path:
    """Five images in two splits, two of them with masks."""
    from PIL import Image

    base = folder / "VOCdevkit" / "VOC2012"
    for inner in ("Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (base / inner).mkdir(parents=True, exist_ok=True)
    for number in range(5):
        stem, name = f"2012_{number:06}", ("cat", "dog")[number % 2]
        example_image(base / "JPEGImages" / f"{stem}.jpg", number, quality=95)
        box = "<bndbox><xmin>9</xmin><ymin>7</ymin><xmax>24</xmax><ymax>18</ymax></bndbox>"
        instance = f"<object><name>{name}</name><difficult>{number % 2}</difficult>{box}</object>"
        size = "<size><width>32</width><height>24</height><depth>3</depth></size>"
        text = f"<annotation><filename>{stem}.jpg</filename>{size}{instance}</annotation>"
        (base / "Annotations" / f"{stem}.xml").write_text(text)
        if number in (0, 3):
            mask = np.zeros((24, 32), np.uint8)
            mask[6:18, 8:24] = VOC_CLASSES.index(name) + 1
            mask[5, 8:24] = IGNORE
            Image.fromarray(mask).save(base / "SegmentationClass" / f"{stem}.png")
    lists = {"Main/train": (0, 1, 2), "Main/val": (3, 4), "Segmentation/train": (0,), "Segmentation/val": (3,)}
    for name, numbers in lists.items():
        text = "".join(f"2012_{number:06}\n" for number in numbers)
        (base / "ImageSets" / f"{name}.txt").write_text(text)
    return folder


FORMAT = Format(
    "voc", "Pascal VOC", "Annotations/*.xml and JPEGImages/*.jpg, with or without ImageSets", issues.VOC, detect, scan,
    example,
    (FormatOption("classes", "names of the classes in the model's order, separated by commas", (str, list)),),
    write, "image",
    suffixes=(".xml",),
)  # fmt: skip
