# SPDX-License-Identifier: Apache-2.0
"""Images with segmentation masks: `images/1.jpg` with `masks/1.png`, or `1.jpg` with `1_mask.png`.

The mask folder may also be called `labels`, `annotations` or `gt`, and splits may be inside (`images/train`) or outside
(`train/images`). Values of a mask are class numbers: palette indices and grey values as stored.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.images import masks
from fewbit.data.images.class_folders import TASK_MISMATCH
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image, open_image
from fewbit.data.images.file_source import NO_IMAGES, FileSource, check_first_bytes, copy_file, example_image
from fewbit.data.images.format_options import classes_option, flag_option, split_option, task_option, wrong_option
from fewbit.data.images.inspect import inspect_images, try_each
from fewbit.data.images.pixels import Color
from fewbit.data.images.signatures import is_image_name, suffix_of
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
    Severity,
)
from fewbit.errors import plural

TASK = "segmentation"
MASK_ORPHAN = IssueType(
    "mask-orphan", Severity.WARNING, "mask without an image", "restore the image or remove the mask"
)
MASK_BINARY = IssueType(
    "mask-binary", Severity.WARNING, "masks of 0 and 255 only, where 255 usually means: ignore",
    "{data_option=binary=true} makes 255 class 1",
)  # fmt: skip
MASK_LOSSY = IssueType(
    "mask-lossy", Severity.WARNING, "mask in JPEG, whose compression changes class numbers", "export the mask as PNG"
)
MASK_MODES = IssueType(
    "mask-modes", Severity.WARNING, "mask in RGB among masks of class numbers, whose grey values are taken for classes",
    "export it like the others",
)  # fmt: skip
MASK_VALUE_RARE = IssueType(
    "mask-value-rare", Severity.NOTE, "mask with values that no other mask has",
    "check the mask; {data_option=classes=a,b,c} makes values beyond the classes errors",
)  # fmt: skip
ISSUES = (
    NO_IMAGES, masks.MASK_MISSING, MASK_ORPHAN, masks.STEM_TWICE, masks.MASK_SIZE, masks.MASK_VALUE, masks.MASK_COLORS,
    MASK_BINARY, MASK_LOSSY, MASK_MODES, MASK_VALUE_RARE, TASK_MISMATCH, *IMAGE_ISSUES, FILE_UNREADABLE,
)  # fmt: skip

_FEWEST_COMPARED = 4  # masks; of fewer, each may well have a class of its own
_IMAGE_FOLDER = re.compile(r"(?:([a-z]+)[_-])?(?:images?|imgs?)")
_MASK_FOLDER = re.compile(r"(?:([a-z]+)[_-])?(?:masks?|labels?|annotations?|gt|ground_?truth|segmentations?)")
_MASK_STEM = re.compile(r"(.+?)[_-](?:masks?|labels?|gt|seg|segmentation)", re.IGNORECASE)


class _Pair(NamedTuple):
    name: str  # of the image
    mask: str
    split: str | None


class _Unpaired(NamedTuple):
    kind: IssueType
    message: str
    name: str
    split: str | None


def detect(files: Files) -> Detection | None:
    """Images of which at least half have a mask by name."""
    pairs, unpaired = _pair(name for name in files.names() if is_image_name(name))
    if not pairs:
        return None
    images = len(pairs) + sum(file.kind is masks.MASK_MISSING for file in unpaired)
    reason = f"{len(pairs):,} of {plural(images, 'image')} have a mask by name"
    return Detection(0.9 if 2 * len(pairs) >= images else 0.45, reason)


def _pair(names: Iterable[str]) -> tuple[list[_Pair], list[_Unpaired]]:
    """Match images and mask_files: same folder apart from the words `images` and `masks`, same stem."""
    images: dict[tuple[str, str], list[str]] = defaultdict(list)
    mask_files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        path, _, file = name.rpartition("/")
        folder, is_mask = _role(path)
        (mask_files if is_mask else images)[folder, file[: file.rfind(".")]].append(name)
    if not mask_files:  # 1.jpg and 1_mask.png in one folder
        for key in [key for key in images if (match := _MASK_STEM.fullmatch(key[1])) and (key[0], match[1]) in images]:
            mask_files[key] = images.pop(key)
    key_of = {(folder, _MASK_STEM.sub(r"\1", stem)): (folder, stem) for folder, stem in mask_files}
    pairs: list[_Pair] = []
    unpaired: list[_Unpaired] = []
    for key, (name, *others) in images.items():
        split = _split(key[0])
        mask_key = key if key in mask_files else key_of.get(key)
        if mask_key not in mask_files:
            missing = masks.MASK_MISSING
            unpaired += [_Unpaired(missing, "no mask of this name", image, split) for image in (name, *others)]
            continue
        pairs.append(_Pair(name, mask_files[mask_key].pop(0), split))
        unpaired += [_Unpaired(masks.STEM_TWICE, f"same name as {name}", image, split) for image in others]
    for (folder, _), orphans in mask_files.items():
        unpaired += [_Unpaired(MASK_ORPHAN, "no image of this name", name, _split(folder)) for name in orphans]
    return pairs, unpaired


def _role(folder: str) -> tuple[str, bool]:
    """The folder without the last word that says what it holds, and whether that is masks."""
    segments = folder.split("/")
    for position in reversed(range(len(segments))):  # the dataset itself may be in a folder called masks
        for pattern, is_mask in ((_MASK_FOLDER, True), (_IMAGE_FOLDER, False)):
            match = pattern.fullmatch(segments[position].lower())
            if match and (match[1] is None or split_of_folder(match[1])):
                remaining = [*segments[:position], *filter(None, match.groups()), *segments[position + 1 :]]
                return "/".join(remaining), is_mask
    return folder, False


def _split(folder: str) -> str | None:
    return next((split for segment in folder.split("/") if (split := split_of_folder(segment))), None)


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> ImageMasksSource:
    """Match images and masks by name; with `full` depth also decode both."""
    pairs, unpaired = _pair(name for name in files.names() if is_image_name(name))
    splits = {pair.split for pair in pairs}
    split = split_option(options.get("split"), [name for name in SPLITS if name in splits])
    pairs = [pair for pair in pairs if split in (None, pair.split)]
    for file in unpaired:
        if split in (None, file.split):
            report.add(file.kind, file.message, Location(file.name), samples=0 if file.kind is MASK_ORPHAN else 1)
    for pair in pairs:
        if suffix_of(pair.mask) in (".jpg", ".jpeg"):
            report.add(MASK_LOSSY, "a JPEG file", Location(pair.mask))
    if (task := task_option(options.get("task"))) not in (None, TASK, "arrays"):
        report.add(TASK_MISMATCH, f"images with masks are no data for {task}")
    source = ImageMasksSource(files, pairs, options)
    source.check(report, depth)
    return source


class ImageMasksSource(FileSource):
    """One sample per image: `image`, and `mask` int32 [H, W]; without names of classes any value is right."""

    def __init__(self, files: Files, pairs: Iterable[_Pair], options: Mapping[str, Any]):
        classes = list(classes_option(options.get("classes")))
        super().__init__(files, pairs, {"task": TASK, "classes": classes})
        self._class_count, self._colors = len(classes), _colors(options.get("colors"))
        self._binary = bool(flag_option("binary", options.get("binary")))
        self._damaged: dict[str, Issue] = {}

    def __getitem__(self, index: int) -> Sample:
        pair = self.entries[index]
        with self.files.open(pair.name) as stream:
            image = decode_image(stream, self.location(index))
        return {"image": image, "mask": self._mask(pair, (image.shape[1], image.shape[0]))}

    def _mask(self, pair: _Pair, size: tuple[int, int] | None) -> np.ndarray:
        with self.files.open(pair.mask) as stream:
            mask = masks.decode_mask(stream, Location(pair.mask), colors=self._colors)
        mask = (mask > 0).astype(np.int32) if self._binary else mask
        masks.check_mask(mask, size, self._class_count, Location(pair.mask))
        return mask

    def check(self, report: DataReport, depth: Depth) -> None:
        """Report what is wrong with images and masks, and leave out what is to be dropped."""
        pairs = {pair.name: pair for pair in self.entries}
        report.facts |= self.facts
        if not pairs:
            report.add(NO_IMAGES, "no image has a mask by name", samples=0)
        if depth == "index":
            dropped = check_first_bytes(self.files, [name for pair in self.entries for name in pair[:2]], report)
            self.leave_out({pair.name for pair in self.entries if dropped & set(pair[:2])})
            return
        images = inspect_images(self.files, list(pairs), report)

        def mask_values(name: str) -> set[int]:
            header = images.headers.get(name)
            size = (header.width, header.height) if header else None
            return set(np.unique(self._mask(pairs[name], size)).tolist())

        values, damaged, dropped = try_each(mask_values, list(pairs), report)
        self._damaged = damaged | images.damaged
        used = set().union(*values.values())
        report.facts["mask_values"] = sorted(used)
        self._compare_masks({pairs[name].mask: numbers for name, numbers in values.items()}, report)
        if masks.IGNORE in used and used <= {0, masks.IGNORE} and not self._binary:
            report.add(MASK_BINARY, f"in {plural(len(pairs), 'mask')}", samples=len(pairs))
        self.leave_out(dropped | images.dropped)

    def _compare_masks(self, values: Mapping[str, set[int]], report: DataReport) -> None:
        """Report masks that are unlike the others: by the way they are stored, or by their values."""
        modes = {name: self._mode(name) for name in values}
        colored = [name for name, mode in modes.items() if mode in ("RGB", "RGBA")]
        if not self._colors and 2 * len(colored) < len(modes):
            for name in colored:
                report.add(MASK_MODES, f"grey values {masks.shown_values(sorted(values[name]))}", Location(name))
        if self._class_count or len(values) < _FEWEST_COMPARED:
            return
        counts = Counter(value for numbers in values.values() for value in numbers)
        for name, numbers in values.items():
            if rare := sorted(value for value in numbers if counts[value] == 1 and value != masks.IGNORE):
                report.add(MASK_VALUE_RARE, masks.shown_values(rare), Location(name))

    def _mode(self, name: str) -> str:
        with self.files.open(name) as stream, open_image(stream, Location(name)) as (image, _):
            return str(image.mode)

    def write(self, folder: Path) -> list[str]:
        """Copy every usable pair, and the files that are neither image nor mask."""
        changes = [f"left out {name}: {issue.type.meaning}" for name, issue in sorted(self._damaged.items())]
        usable = {name for pair in self.entries if pair.name not in self._damaged for name in pair[:2]}
        explained = {*self._damaged, *(pair.mask for pair in self.entries)}
        for name in self.files.names():
            if name in usable or not is_image_name(name):
                changes += copy_file(self.files, name, folder)
            elif name not in explained:
                changes.append(f"left out {name}: no pair of image and mask")
        return changes


def _colors(value: Any) -> tuple[Color, ...] | None:
    if value is None:
        return None
    texts = [str(text).strip() for text in (value.split(",") if isinstance(value, str) else value)]
    if not texts or not all(re.fullmatch("#[0-9a-fA-F]{6}", text) for text in texts):
        raise wrong_option("colors", value, "one color per class: #000000,#ff0000")
    return tuple((int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)) for text in texts)


def example(folder: Path) -> Path:
    """Two splits of images with palette masks of three classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        (folder / "masks" / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            example_image(folder / "images" / split / f"{index}.jpg", 10 * count + index)
            mask = Image.fromarray(random.integers(0, 3, (24, 32), dtype=np.uint8))
            mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])  # the values become palette indices
            mask.save(folder / "masks" / split / f"{index}.png")
    return folder


FORMAT = Format(
    "image_masks", "images with masks", "images/1.jpg with masks/1.png, or 1.jpg with 1_mask.png", ISSUES, detect, scan,
    example,
    options=(
        FormatOption("classes", "class names in the order of the mask values", (str, list, tuple)),
        FormatOption("colors", "color of each class, for masks in RGB: #000000,#ff0000", (str, list, tuple)),
        FormatOption("binary", "whether every value above 0 is class 1", bool, False),
    ),
    write=ImageMasksSource.write,
    unit="image",
)  # fmt: skip
