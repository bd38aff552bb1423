# SPDX-License-Identifier: Apache-2.0
"""Columns that hold or name image and audio files, and columns of boxes: find the file, decode it, scale the boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewbit.data.files import Folder
from fewbit.data.rows.shards import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from fewbit.data.rows.table import Row, Table, nested
from fewbit.data.rows.text import row_error
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, Sample, SampleError, Severity
from fewbit.errors import plural

MOST_BYTES = 1 << 30
OBJECTS, BOXES = "objects", "bbox"
CATEGORIES = ("category", "category_id", "label", "labels")
SUFFIXES = {"image": IMAGE_SUFFIXES, "audio": AUDIO_SUFFIXES}
_TOLERANCE = 1
"""Pixels a box may reach beyond the image: annotations count edges differently."""
_SINGLE_CHANNEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "LA")

MEDIA_MISSING = row_error(
    "media-missing", "row that names a file that is not there", "put the files next to the table, or correct the names"
)
MEDIA_UNLISTED = IssueType(
    "file-unlisted", Severity.WARNING, "image or audio file that no row names", "add a row for it, or remove the file"
)
LABELS_CONFLICT = IssueType(
    "labels-conflict", Severity.WARNING, "file that rows give different labels", "keep the row with the true label"
)
BAD_OBJECTS = row_error(
    "bad-objects", "objects that are not boxes inside the image with one class each",
    "write x, y, width, height in pixels and a class for each object",
)  # fmt: skip
ISSUES = (MEDIA_MISSING, MEDIA_UNLISTED, LABELS_CONFLICT, BAD_OBJECTS)


class Media:
    """The files a table names or holds.

    Args:
        kind: `image` or `audio`.
        columns: which hold them; the first becomes `image`, a second one with a single channel `mask`.
        files: of the dataset; those of the folder of a table that was opened alone.
        local_paths: files may be anywhere on this machine: the user's object gives their paths.
    """

    def __init__(self, kind: str, columns: Sequence[str], files: Files | None, *, local_paths: bool = False):
        self.kind, self.columns, self.local_paths = kind, tuple(columns), local_paths
        if files is not None and len(names := files.names()) == 1 and (path := files.path(names[0])) is not None:
            files = Folder(Path(path).parent)
        self.files = files

    @cached_property
    def names(self) -> frozenset[str]:
        """Every media file."""
        names: Iterable[str] = self.files.names() if self.files is not None else ()
        return frozenset(name for name in names if name.lower().endswith(SUFFIXES[self.kind]))

    @cached_property
    def stems(self) -> dict[str, list[str]]:
        """Media files by base name, with and without suffix."""
        stems: dict[str, list[str]] = {}
        for name in sorted(self.names):
            base = name.rpartition("/")[2]
            for key in {base, base.rpartition(".")[0]}:
                stems.setdefault(key, []).append(name)
        return stems

    def find(self, value: Any, table_file: str) -> str | None:
        """The file a value means: relative to the table or the dataset; a bare name in whichever folder it is."""
        if not isinstance(value, str) or not value:
            return None
        name = value.replace("\\", "/").removeprefix("./")
        folder, _, base = table_file.rpartition("/")
        for candidate in (f"{folder}/{name}" if folder else name, name):
            if candidate in self.names:
                return candidate
        matches = self.stems.get(name, [])
        if len(matches) > 1:  # train.csv means train/1.png
            matches = [match for match in matches if base.partition(".")[0] in match.split("/")]
        return matches[0] if len(matches) == 1 else None

    def load(self, column: str, value: Any, location: Location, report: DataReport | None = None) -> Sample:
        """The keys a value of the first column gives a sample: `image`, or `audio` and `sampling_rate`.

        Raises:
            SampleError: the file is not there or is damaged.
        """
        if isinstance(value, np.ndarray):
            return {self.kind: value}
        content, name = self._content(value, location)
        place = Location(name or location.file, location.line, location.row, index=location.index, field=location.field)
        if self.kind == "image":
            from fewbit.data.images.decode import decode_image

            return {"image": decode_image(content, place, report=report)}
        from fewbit.data.audio import decode_audio

        samples, rate = decode_audio(content, place)
        return {"audio": samples, "sampling_rate": rate}

    def load_other(self, column: str, value: Any, location: Location, report: DataReport | None = None) -> Sample:
        """What a further column of images gives a sample: a mask if it is the second and has a single channel."""
        from fewbit.data.images.decode import decode_image, open_image
        from fewbit.data.images.masks import decode_mask

        if isinstance(value, list):
            return {column: [decode_image(self._content(item, location)[0], location) for item in value]}
        content, _ = self._content(value, location)
        with open_image(content, location, header_only=True) as (image, _):
            is_mask = image.mode in _SINGLE_CHANNEL_MODES
        if not is_mask:
            return {column: decode_image(content, location)}
        return {"mask" if column == self.columns[1] else column: decode_mask(content, location)}

    def _content(self, value: Any, location: Location) -> tuple[bytes, str]:
        """The bytes of a file and its name, from the row or from the file it names."""
        held = value.get("bytes") if isinstance(value, Mapping) else value
        if isinstance(held, bytes):
            return held, ""
        path = value.get("path") if isinstance(value, Mapping) else value
        name = self.find(path, location.file)
        if name is not None and self.files is not None:
            return self.files.read(name, MOST_BYTES), name
        if self.local_paths and isinstance(path, str) and Path(path).is_file():
            return Path(path).read_bytes(), path
        raise SampleError(Issue(MEDIA_MISSING, f"there is no file {str(path)[:200]!r}", location))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("names", "stems")}

    def unlisted(self, listed: set[str]) -> list[str]:
        """Files that no row names, in folders of which rows name others: a folder of test images has no labels."""
        folders = {name.rpartition("/")[0] for name in listed}
        return sorted(name for name in self.names - listed if name.rpartition("/")[0] in folders)


def names_files(values: Sequence[Any], kind: str) -> bool:
    """Whether values are names of files, by their suffixes.

    >>> names_files(["a/1.jpg", "b.PNG"], "image"), names_files(["see a.jpg", "b"], "image")
    (True, False)
    """
    return bool(values) and all(isinstance(value, str) and value.lower().endswith(SUFFIXES[kind]) for value in values)


def is_objects(value: Any) -> bool:
    """Whether a value holds boxes; an image without objects has empty lists.

    >>> is_objects({"bbox": [], "category": []}), is_objects([{"bbox": [0, 0, 1, 1]}]), is_objects({"id": [1]})
    (True, True, False)
    """
    if isinstance(value, list):
        return all(isinstance(item, Mapping) and BOXES in item for item in value)
    return isinstance(value, Mapping) and BOXES in value


def boxes_and_classes(objects: Any, width: int, height: int, location: Location) -> dict[str, np.ndarray]:
    """`boxes` float32 [n, 4], centre and size in 0..1, and `classes` int64 [n].

    The objects have `bbox` (x, y, width, height in pixels, as COCO has them) and a category under one of four names, as
    a list of dicts or as a dict of lists. Boxes outside the image or without area raise a `SampleError`.

    >>> sample = boxes_and_classes({"bbox": [[0, 0, 4, 2]], "category": [1]}, 8, 4, Location())
    >>> sample["boxes"].tolist(), sample["classes"].tolist()
    ([[0.25, 0.25, 0.5, 0.5]], [1])
    """
    if isinstance(objects, list):
        names = {name for item in objects for name in item}
        objects = {name: [item.get(name) for item in objects] for name in names}
    category = next((name for name in CATEGORIES if name in objects), CATEGORIES[0])
    try:
        corners = np.asarray(objects.get(BOXES) or [], np.float64).reshape(-1, 4)
        numbers = np.asarray(objects.get(category) or [], np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise SampleError(Issue(BAD_OBJECTS, str(error)[:200], location)) from error
    size = np.array([width, height], np.float64)
    low, high = corners[:, :2], corners[:, :2] + corners[:, 2:]
    inside = (low >= -_TOLERANCE).all() and (high <= size + _TOLERANCE).all() and (corners[:, 2:] > 0).all()
    valid_classes = bool((numbers == np.floor(numbers)).all() and (numbers >= 0).all())
    if len(corners) != len(numbers) or not inside or not valid_classes:
        counts = f"{plural(len(corners), 'box')}, {plural(len(numbers), 'class')}"
        extent = f" from {corners.min():g} to {corners.max():g}" if len(corners) else ""
        raise SampleError(Issue(BAD_OBJECTS, f"{counts}{extent} in an image of {width} x {height} pixels", location))
    low, high = np.clip(low, 0, size) / size, np.clip(high, 0, size) / size
    boxes = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
    return {"boxes": boxes, "classes": numbers.astype(np.int64)}


class _Box(NamedTuple):
    """A box of a table."""

    name: str  # of its class
    corners: list[float]  # left, top, width, height in pixels
    row: int


def _parsed_box(values: Sequence[Any], name: Any, row: int) -> _Box | str:
    """The box of a row, or what is wrong with it."""
    try:
        left, top, right, bottom = map(float, values)
    except (TypeError, ValueError):
        return f"corners {values}"
    shown = f"box from {left:g}, {top:g} to {right:g}, {bottom:g}"
    if not (right > left and bottom > top):  # NaN too
        return f"{shown} has no area"
    if name is None or not str(name).strip():
        return f"{shown} has no class"
    return _Box(str(name), [left, top, right - left, bottom - top], row)


def _is_inside(box: _Box, width: int, height: int) -> bool:
    left, top, box_width, box_height = box.corners
    beyond = (-left, -top, left + box_width - width, top + box_height - height)
    return max(beyond) <= _TOLERANCE


def _beyond(box: _Box, width: int, height: int) -> str:
    left, top, box_width, box_height = box.corners
    corners = f"{left:g}, {top:g} to {left + box_width:g}, {top + box_height:g}"
    return f"box from {corners} in an image of {width} x {height} pixels"


class BoxTable(Table):
    """A table of boxes, one per row, as a table of images with `objects`.

    The corners are left, top, right and bottom in pixels; a row without them is an image without a box. Without a
    column of labels every box is an `object`. A row whose box is wrong is left out; its image stays if another row
    has a box in it.
    """

    columns = ("image", OBJECTS)

    def __init__(self, table: Table, image: str, label: str | None, corners: Sequence[str], report: DataReport):
        self.table = table
        self.dropped: set[int] = set()  # rows whose box is wrong
        self._images: dict[tuple[str | None, str], list[_Box]] = {}
        self._rows: dict[tuple[str | None, str], list[int]] = {}
        for first, rows in table.blocks():
            for position, row in enumerate(rows, first):
                key = table.split(position), str(nested(row, image))
                self._rows.setdefault(key, []).append(position)
                boxes = self._images.setdefault(key, [])
                values = [row.get(corner) for corner in corners]
                if values == [""] * 4 or values == [None] * 4:
                    continue
                box = _parsed_box(values, "object" if label is None else row.get(label), position)
                if isinstance(box, _Box):
                    boxes.append(box)
                else:
                    report.add(BAD_OBJECTS, box, table.location(position))
                    self.dropped.add(position)
        self._keys = [key for key, boxes in self._images.items() if boxes or self.dropped.isdisjoint(self._rows[key])]
        self.classes = sorted({box.name for boxes in self._images.values() for box in boxes})

    @property
    def files(self) -> Any:
        """Where the rows are."""
        return self.table.shards[0].reader.text.files  # type: ignore[attr-defined]

    @property
    def images(self) -> set[str]:
        """What the rows name, also those that are left out."""
        return {image for _, image in self._rows}

    def rows_of(self, index: int) -> list[int]:
        """The rows of an image."""
        return self._rows[self._keys[index]]

    def check(self, index: int, width: int, height: int, report: DataReport) -> bool:
        """Report boxes that reach beyond their image, and leave their rows out; whether the image can be used."""
        boxes = self._images[self._keys[index]]
        good = []
        for box in boxes:
            if _is_inside(box, width, height):
                good.append(box)
            else:
                report.add(BAD_OBJECTS, _beyond(box, width, height), self.table.location(box.row))
                self.dropped.add(box.row)
        self._images[self._keys[index]] = good
        return bool(good) or not boxes

    def box_location(self, index: int, width: int, height: int) -> Location:
        """The row of the first box that reaches beyond an image, else that of the image."""
        boxes = self._images[self._keys[index]]
        row = next((box.row for box in boxes if not _is_inside(box, width, height)), self.rows_of(index)[0])
        location = self.table.location(row)
        return Location(location.file, location.line, location.row, location.byte, index)

    def __len__(self) -> int:
        return len(self._keys)

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        rows = []
        for key in (self._keys[index] for index in indices):
            boxes = self._images[key]
            objects = {BOXES: [box.corners for box in boxes], CATEGORIES[0]: [numbers[box.name] for box in boxes]}
            rows.append({"image": key[1], OBJECTS: objects})
        return rows

    def location(self, index: int) -> Location:
        location = self.table.location(self.rows_of(index)[0])
        return Location(location.file, location.line, location.row, location.byte, index)

    def split(self, index: int) -> str | None:
        return self._keys[index][0]
