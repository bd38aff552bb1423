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
from fewbit.data.formats._class_folder_source import copy_file
from fewbit.data.formats._class_folders import TASK_MISMATCH, as_flag, as_names, as_split, task_name, wrong_option
from fewbit.data.formats.image_folder import IMAGES
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image
from fewbit.data.images.inspect import inspect_images, try_each
from fewbit.data.images.masks import MASK_COLORS, decode_mask
from fewbit.data.images.pixels import Color
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

TASK = "segmentation"
IGNORE = 255
"""The common value of pixels without a class."""
MASK_MISSING = IssueType(
    "mask-missing", Severity.ERROR, "image without a mask", "add the mask or remove the image", "raise", ("drop",),
    "leaves the image out",
)  # fmt: skip
MASK_ORPHAN = IssueType(
    "mask-orphan", Severity.WARNING, "mask without an image", "restore the image or remove the mask"
)
STEM_TWICE = IssueType(
    "stem-twice", Severity.ERROR, "images that differ only in their suffix and share a mask", "rename or remove one",
    "raise", ("drop",), "keeps the first",
)  # fmt: skip
MASK_SIZE = IssueType(
    "mask-size", Severity.ERROR, "mask of another size than its image", "export the mask again", "raise", ("drop",),
    "leaves the image out",
)  # fmt: skip
MASK_VALUE = IssueType(
    "mask-value", Severity.ERROR, "mask with values beyond the classes",
    "correct the mask, or add names to {data_option=classes=a,b,c}", "raise", ("drop",), "leaves the image out",
)  # fmt: skip
MASK_BINARY = IssueType(
    "mask-binary", Severity.WARNING, "masks of 0 and 255 only, where 255 usually means: ignore",
    "{data_option=binary=true} makes 255 class 1",
)  # fmt: skip
ISSUES = (
    IMAGES.none, MASK_MISSING, MASK_ORPHAN, STEM_TWICE, MASK_SIZE, MASK_VALUE, MASK_COLORS, MASK_BINARY,
    TASK_MISMATCH, *IMAGE_ISSUES, FILE_UNREADABLE,
)  # fmt: skip

_IMAGE_FOLDER = re.compile(r"(?:([a-z]+)[_-])?(?:images?|imgs?)")
_MASK_FOLDER = re.compile(r"(?:([a-z]+)[_-])?(?:masks?|labels?|annotations?|gt|ground_?truth|segmentations?)")
_MASK_STEM = re.compile(r"(.+?)[_-](?:masks?|labels?|gt|seg|segmentation)", re.IGNORECASE)
_MOST_SHOWN = 5


class _Pair(NamedTuple):
    image: str
    mask: str
    split: str | None


_Problem = tuple[IssueType, str, str, str | None]
"""Type, message, file and split of an issue."""


def detect(files: Files) -> Detection | None:
    """Images of which at least half have a mask by name."""
    pairs, problems = _pair(name for name in files.names() if is_image_name(name))
    if not pairs:
        return None
    images = len(pairs) + sum(kind is MASK_MISSING for kind, *_ in problems)
    reason = f"{len(pairs):,} of {plural(images, 'image')} have a mask by name"
    return Detection(0.9 if 2 * len(pairs) >= images else 0.45, reason)


def _pair(names: Iterable[str]) -> tuple[list[_Pair], list[_Problem]]:
    """Match images and masks: same folder apart from the words `images` and `masks`, same stem."""
    images: dict[tuple[str, str], list[str]] = defaultdict(list)
    masks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        path, _, file = name.rpartition("/")
        folder, is_mask = _role(path)
        (masks if is_mask else images)[folder, file[: file.rfind(".")]].append(name)
    if not masks:  # 1.jpg and 1_mask.png in one folder
        for key in [key for key in images if (match := _MASK_STEM.fullmatch(key[1])) and (key[0], match[1]) in images]:
            masks[key] = images.pop(key)
    key_of = {(folder, _MASK_STEM.sub(r"\1", stem)): (folder, stem) for folder, stem in masks}
    pairs: list[_Pair] = []
    problems: list[_Problem] = []
    for key, (name, *others) in images.items():
        split = _split(key[0])
        mask_key = key if key in masks else key_of.get(key)
        if mask_key not in masks:
            problems += [(MASK_MISSING, "no mask of this name", image, split) for image in (name, *others)]
            continue
        pairs.append(_Pair(name, masks[mask_key].pop(0), split))
        problems += [(STEM_TWICE, f"same name as {name}", duplicate, split) for duplicate in others]
    for (folder, _), orphans in masks.items():
        problems += [(MASK_ORPHAN, "no image of this name", name, _split(folder)) for name in orphans]
    order: tuple[str | None, ...] = (None, *SPLITS)
    return sorted(pairs, key=lambda pair: order.index(pair.split)), problems


def _role(folder: str) -> tuple[str, bool]:
    """The folder without the word that says what it holds, and whether that is masks."""
    segments = folder.split("/")
    for position, segment in enumerate(segments):
        for pattern, is_mask in ((_MASK_FOLDER, True), (_IMAGE_FOLDER, False)):
            match = pattern.fullmatch(segment.lower())
            if match and (match[1] is None or split_of_folder(match[1])):
                remaining = [*segments[:position], *filter(None, match.groups()), *segments[position + 1 :]]
                return "/".join(remaining), is_mask
    return folder, False


def _split(folder: str) -> str | None:
    return next((split for segment in folder.split("/") if (split := split_of_folder(segment))), None)


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> ImageMasksSource:
    """Match images and masks by name; with `full` depth also decode both."""
    pairs, problems = _pair(name for name in files.names() if is_image_name(name))
    splits = Counter(pair.split for pair in pairs if pair.split)
    split = as_split(options.get("split"), splits)
    pairs = [pair for pair in pairs if split in (None, pair.split)]
    for kind, message, name, its_split in problems:
        if split in (None, its_split):
            report.add(kind, message, Location(name), samples=0 if kind is MASK_ORPHAN else 1)
    if (task := task_name(options.get("task"))) not in (None, TASK, "arrays"):
        report.add(TASK_MISMATCH, f"images with masks are no data for {task}")
    if not pairs:
        report.add(IMAGES.none, "no image has a mask by name", samples=0)
    classes, binary = list(as_names(options.get("classes")) or ()), bool(as_flag("binary", options.get("binary")))
    source = ImageMasksSource(files, pairs, classes, _colors(options.get("colors")), binary)
    report.facts |= source.facts
    if depth == "full":
        source.inspect(report)
    return source


def _colors(value: Any) -> tuple[Color, ...] | None:
    if value is None:
        return None
    texts = [str(text).strip() for text in (value.split(",") if isinstance(value, str) else value)]
    if not texts or not all(re.fullmatch("#[0-9a-fA-F]{6}", text) for text in texts):
        raise wrong_option("colors", value, "one color per class: #000000,#ff0000")
    return tuple((int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)) for text in texts)


class ImageMasksSource:
    """One sample per image: `image`, and `mask` int32 [H, W]; without names of classes any value is right."""

    def __init__(
        self, files: Files, pairs: list[_Pair], classes: list[str], colors: tuple[Color, ...] | None, binary: bool
    ):
        self._files, self._pairs, self._classes, self._colors, self._binary = files, pairs, classes, colors, binary
        self._damaged: dict[str, Issue] = {}
        self.facts: dict[str, Any] = {"task": TASK} | ({"classes": classes} if classes else {})
        if counts := Counter(pair.split for pair in pairs if pair.split):
            self.facts["splits"] = dict(counts)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Sample:
        pair = self._pairs[index]
        with self._files.open(pair.image) as stream:
            image = decode_image(stream, self.location(index))
        return {"image": image, "mask": self._mask(pair, image.shape[:2])}

    def _mask(self, pair: _Pair, size: tuple[int, ...] | None) -> np.ndarray:
        """Read a mask, and compare it with the height and width of its image."""
        location, classes = Location(pair.mask), self._classes
        with self._files.open(pair.mask) as stream:
            mask = decode_mask(stream, location, colors=self._colors)
        if size not in (None, mask.shape):
            message = f"{mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}"
            raise SampleError(Issue(MASK_SIZE, message, location))
        if self._binary:
            mask = (mask > 0).astype(np.int32)
        if classes and len(wrong := np.setdiff1d(mask, [*range(len(classes)), IGNORE])):
            values = ", ".join(map(str, wrong[:_MOST_SHOWN])) + (", ..." if len(wrong) > _MOST_SHOWN else "")
            raise SampleError(Issue(MASK_VALUE, f"{values}; there are {plural(len(classes), 'class')}", location))
        return mask

    def location(self, index: int) -> Location:
        """The image file."""
        return Location(self._pairs[index].image, index=index)

    def strata(self) -> list[str | None] | None:
        """The split of each image."""
        return [pair.split for pair in self._pairs] if "splits" in self.facts else None

    def inspect(self, report: DataReport) -> None:
        """Decode every image and mask, report what is wrong, and leave out what is to be dropped."""
        pairs = {pair.image: pair for pair in self._pairs}
        images = inspect_images(self._files, list(pairs), report)

        def mask_values(name: str) -> set[int]:
            header = images.headers.get(name)
            size = (header.height, header.width) if header else None
            return set(np.unique(self._mask(pairs[name], size)).tolist())

        values, damaged, dropped = try_each(mask_values, list(pairs), report)
        self._damaged = damaged | images.damaged
        used = set().union(*values.values())
        if 255 in used and used <= {0, 255} and not self._binary:
            report.add(MASK_BINARY, f"in {plural(len(pairs), 'mask')}", samples=len(pairs))
        self._pairs = [pair for pair in self._pairs if pair.image not in dropped | images.dropped]

    def write(self, folder: Path) -> list[str]:
        """Copy every usable pair, and the files that are neither image nor mask."""
        changes = [f"left out {name}: {issue.type.meaning}" for name, issue in sorted(self._damaged.items())]
        usable = {name for pair in self._pairs if pair.image not in self._damaged for name in pair[:2]}
        explained = {*self._damaged, *(pair.mask for pair in self._pairs)}
        for name in self._files.names():
            if name in usable or not is_image_name(name):
                changes += copy_file(self._files, name, folder)
            elif name not in explained:
                changes.append(f"left out {name}: no pair of image and mask")
        return changes


def example(folder: Path) -> Path:
    """Two splits of images with palette masks of three classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            pixels = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{index}.jpg")
            mask = Image.fromarray(random.integers(0, 3, (12, 16), dtype=np.uint8))
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
