# SPDX-License-Identifier: Apache-2.0
"""Folders of images: one folder per class, with or without splits, or images without classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.images.class_folders import CLASS_FOLDER_ISSUES, CLASS_FOLDER_OPTIONS, Media, read_class_folders
from fewbit.data.images.decode import IMAGE_ISSUES, WHITE, decode_image
from fewbit.data.images.file_source import IMAGE_SKIPPED, NO_IMAGES, check_first_bytes, example_image
from fewbit.data.images.format_options import wrong_option
from fewbit.data.images.inspect import DUPLICATE_ISSUES, inspect_images, leaks_to_drop, report_duplicates
from fewbit.data.images.labeled_files import ClassFolderSource
from fewbit.data.images.pixels import Color
from fewbit.data.images.signatures import SKIPPED_SUFFIXES, SUFFIXES, SUFFIXES_BY_FORMAT, is_image_name, suffix_of
from fewbit.data.splits import split_of_folder
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    IssueType,
    Location,
    Sample,
    Severity,
)
from fewbit.errors import plural

IMAGE_OUTSIDE = IssueType(
    "image-outside-class", Severity.WARNING, "image in no class folder, which is not read", "move it into its class",
    "drop",
)  # fmt: skip
IMAGES = Media("image", "image-classification", SUFFIXES, SKIPPED_SUFFIXES, NO_IMAGES, IMAGE_SKIPPED, IMAGE_OUTSIDE)
_OTHER_LAYOUTS = frozenset(
    ("annotations", "jpegimages", "imagesets", "segmentationclass", "segmentationobject", "masks", "labels", "images")
)
"""Folders of YOLO, COCO, VOC and mask datasets, which are not classes."""
_MAYBE_CLASSES = frozenset(("annotation", "mask", "label", "image", "imgs", "img", "gt", "groundtruth", "ground_truth"))
"""The same, if there are no other folders: {mask, no_mask} are classes."""
_OTHER_FORMATS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "dataset_dict.json", "state.json")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "_annotations.coco.json")
_TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".npz", ".npy", ".xml", ".tfrecord")


def detect(files: Files) -> Detection | None:
    """Images in folders or alone, unless names speak of another layout."""
    names = files.names()
    images = [name for name in names if is_image_name(name)]
    if not images:
        skipped = [name for name in names if suffix_of(name) in SKIPPED_SUFFIXES]
        return Detection(0.55, f"{plural(len(skipped), 'image')} of formats that are not read") if skipped else None
    if (reason := _other_layout(names, images)) is not None:
        return Detection(0.3, reason)
    # A table next to images may well hold their labels.
    table = any("/" not in name and name.lower().endswith(_TABLES) for name in names)
    mostly_others = len(images) * 2 < len(names)
    folders = sorted(_class_folders(images))
    if not folders:
        confidence = 0.9 if len(names) == 1 else 0.35 if table else 0.6
        reason = f"{plural(len(images), 'image')} without class folders"
        return None if mostly_others else Detection(confidence, reason)
    tops = sorted({name.partition("/")[0] for name in images if "/" in name})
    if all(split_of_folder(top) for top in tops):
        return Detection(0.75 if table else 0.9, f"images below {' and '.join(tops[:3])}")
    doubt = table or mostly_others or len(folders) == 1
    examples = f"{', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''}"
    return Detection(0.6 if doubt else 0.85, f"images in folders named {examples}")


def _other_layout(names: Sequence[str], images: Sequence[str]) -> str | None:
    """What speaks of another format that holds images."""
    for name in names:
        if name.lower() in _OTHER_FORMATS or name.rpartition("/")[2].lower() in _METADATA:
            return f"images next to {name}"
    folders = {folder.lower() for folder in _class_folders(names)}
    reserved = [name for name in folders if name in _OTHER_LAYOUTS or name.endswith(("_masks", "_labels"))]
    if reserved or (folders and folders <= _MAYBE_CLASSES):
        return f"images in folders named {', '.join(sorted(reserved or folders)[:3])}, as in other formats"
    stems = [name[: name.rfind(".")].lower() for name in images]
    if 3 * sum(stem.endswith(("_mask", "-mask")) for stem in stems) >= len(images):
        return "images with masks by name"
    return None


def _class_folders(names: Iterable[str]) -> set[str]:
    """Names of the folders that would be classes: at the top, or below a split."""
    folders = {tuple(name.split("/", 2)[:-1]) for name in names if "/" in name}
    return {segments[-1] if split_of_folder(segments[0]) else segments[0] for segments in folders}


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> ClassFolderSource:
    """Find splits and classes by names; with `full` depth also decode every image and look for duplicates."""
    decode = partial(_decode, background=_color(options.get("background")))
    layout = read_class_folders(files, report, IMAGES, options)
    source = ClassFolderSource(files, layout, IMAGES.task, decode)
    names = [entry.name for entry in layout.selected]
    if depth == "index":
        source.leave_out(check_first_bytes(files, names, report))
        return source
    inspection = inspect_images(files, names, report)
    entries = [(entry.split or "", entry.label or "", entry.name) for entry in layout.selected]
    leaks = report_duplicates(files, entries, inspection.sizes, report)
    suffixes_by_name = {name: SUFFIXES_BY_FORMAT[header.format] for name, header in inspection.headers.items()}
    wrong = {name: suffixes[0] for name, suffixes in suffixes_by_name.items() if suffix_of(name) not in suffixes}
    source.repair(inspection.damaged, leaks, wrong)
    source.leave_out({*inspection.dropped, *leaks_to_drop(leaks, report)})
    return source


def _decode(stream: BinaryIO, location: Location, background: Color) -> Sample:
    return {"image": decode_image(stream, location, background=background)}


def _color(value: Any) -> Color:
    if value is None:
        return WHITE
    try:
        red, green, blue = (int(channel) for channel in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        red = green = blue = -1
    if min(red, green, blue) < 0 or max(red, green, blue) > 255:
        raise wrong_option("background", value, "three numbers from 0 to 255: 255,255,255")
    return red, green, blue


def example(folder: Path) -> Path:
    """Two splits of two classes, in four image formats."""
    suffixes = {"train": (".png", ".jpg", ".webp", ".bmp"), "val": (".png", ".jpg")}
    names = [
        f"{split}/{label}/{suffix[1:]}{suffix}"
        for split in suffixes
        for label in ("cat", "dog")
        for suffix in suffixes[split]
    ]
    for number, name in enumerate(names):
        example_image(folder / name, number)
    return folder


FORMAT = Format(
    "image_folder", "image folder", "cat/1.jpg, train/cat/1.jpg, or images without classes",
    (
        NO_IMAGES, IMAGE_OUTSIDE, IMAGE_SKIPPED, *CLASS_FOLDER_ISSUES, *IMAGE_ISSUES, *DUPLICATE_ISSUES,
        FILE_UNREADABLE,
    ),
    detect, scan, example,
    options=(
        *CLASS_FOLDER_OPTIONS,
        FormatOption("background", "color behind transparent pixels: 255,255,255", (str, list, tuple)),
    ),
    write=ClassFolderSource.write,
    unit="image",
)  # fmt: skip
