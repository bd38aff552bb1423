# SPDX-License-Identifier: Apache-2.0
"""Features of Hugging Face datasets, from a saved folder or Arrow and Parquet metadata: class names, images.

Only names of a `ClassLabel` explain numbers. Images are in the rows as `{"bytes": …, "path": …}`, or as plain bytes; a
sample has the first as `image`, and a second one with a single channel as `mask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from fewbit.data.formats._objects import BAD_OBJECTS, CATEGORIES, OBJECTS, boxes_and_classes, is_objects
from fewbit.data.images.signatures import image_format
from fewbit.data.rows.meaning import row_source
from fewbit.data.rows.media import MEDIA_MISSING
from fewbit.data.rows.table import Table
from fewbit.data.types import (
    DataReport,
    Depth,
    Files,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
    Source,
)

CLASSES_DIFFER = IssueType(
    "classes-differ", Severity.ERROR, "number that is one class in one split and another in the next",
    "cast the splits to the same features", "raise", ("keep",),
)  # fmt: skip
ISSUES = (CLASSES_DIFFER, BAD_OBJECTS)

_LABELS = ("label", "labels", "class", "category", "target")
_TAGS = ("tags", "ner_tags", "pos_tags", "labels")
_MOST_BYTES = 1 << 30
_SINGLE_CHANNEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "LA")


@dataclass
class Features:
    """Columns with class names, images and boxes.

    Args:
        classes: class names by column.
        tags: the same of columns of lists.
        images: columns of image files.
        others: columns of bytes that hold something else, such as audio.
        objects: class names of the boxes in the column `objects`.
    """

    classes: dict[str, list[str]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    objects: list[str] | None = None

    @classmethod
    def of(cls, described: Any) -> Features:
        """From the JSON of `datasets.Features`.

        >>> label = {"_type": "ClassLabel", "names": ["cat", "dog"]}
        >>> features = Features.of({"image": {"_type": "Image"}, "label": label, "tags": [label]})
        >>> features.classes, features.tags, features.images
        ({'label': ['cat', 'dog']}, {'tags': ['cat', 'dog']}, ['image'])
        """
        features = cls()
        for name, kind in described.items() if isinstance(described, Mapping) else ():
            if not isinstance(name, str):
                continue
            if (names := _class_names(kind)) is not None:
                features.classes[name] = names
            elif (names := _class_names(_element(kind))) is not None:
                features.tags[name] = names
            elif isinstance(kind, Mapping) and kind.get("_type") in ("Image", "Audio", "Video", "Pdf"):
                (features.images if kind["_type"] == "Image" else features.others).append(name)
            elif name == OBJECTS:
                features.objects = _object_names(kind)
        return features


class _ImageTable(Table, Protocol):
    """A table that can leave the bytes of images out of its blocks."""

    embedded: tuple[str, ...]


def feature_rows(
    table: _ImageTable,
    features: Sequence[Features],
    files: Files | None,
    report: DataReport,
    *,
    depth: Depth,
    options: Mapping[str, Any],
    local_paths: bool = False,
) -> Source:
    """The samples of a table whose features are known.

    Args:
        table: the rows.
        features: of each split or file.
        files: the dataset, which may contain images without bytes.
        report: takes issues.
        depth: `full` also decodes the images.
        options: those of rows.
        local_paths: images may be anywhere on this machine: the user's object gives their paths.
    """
    named: dict[str, list[str]] = {}
    for feature in features:
        for column, names in (feature.classes | feature.tags).items():
            if named.setdefault(column, names) != names:
                report.add(
                    CLASSES_DIFFER, f"the splits name the classes of {column!r} differently", Location(field=column)
                )
    if report.raising() and not len(table):  # do not also report that there are no rows
        return row_source(table, None, DataReport(), depth="index", options={})
    settings = dict(options)
    label = _label_column(table, features, settings.get("label_column"))
    if label is not None and "classes" not in settings and settings.get("label_type") != "number":
        settings["classes"] = named[label]
        if any(label in feature.classes for feature in features):
            settings["label_column"] = label
    images = _image_columns(table, features)
    table.embedded = images
    if images and "label_column" not in settings:
        label_name = next((name for name in _LABELS if name in table.columns and name not in images), None)
        settings |= {"label_column": label_name} if label_name is not None else {}
    rows = row_source(table, files, report, depth=depth, options=settings)
    if not images:
        return rows
    object_names = next((feature.objects for feature in features if feature.objects), None)
    source = EmbeddedImages(rows, images, files, local_paths, object_names)
    if depth == "full":
        source.check(report)
    return source


def schema_features(schemas: Sequence[Any]) -> list[Features]:
    """Features of Arrow schemas, from what `datasets` wrote into them."""
    features = []
    for schema in schemas:
        described = (schema.metadata or {}).get(b"huggingface", b"null")
        try:
            info = orjson.loads(described).get("info", {})
            features.append(Features.of(info.get("features")))
        except (orjson.JSONDecodeError, AttributeError):
            features.append(Features())
    return features


class EmbeddedImages:
    """Samples whose image columns are decoded.

    Args:
        rows: the samples, with images as bytes.
        columns: of images; the first becomes `image`.
        files: the dataset that contains images without bytes.
        local_paths: whether they may be elsewhere on this machine.
        object_names: classes of the boxes in `objects`.
    """

    def __init__(
        self,
        rows: Source,
        columns: Sequence[str],
        files: Files | None,
        local_paths: bool,
        object_names: Sequence[str] | None = None,
    ):
        self._object_names = object_names
        self._rows, self._columns, self._files, self._local_paths = rows, tuple(columns), files, local_paths
        self._positions: list[int] | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Those of the rows; the task if there is one image and one label."""
        facts = dict(self._rows.facts)
        if OBJECTS in facts.get("columns", ()):
            facts |= {"task": "object-detection"}
            facts |= {"classes": list(self._object_names)} if self._object_names else {}
        if facts.get("classes"):
            facts.setdefault("task", "image-classification")
        return facts

    def __len__(self) -> int:
        return len(self._rows) if self._positions is None else len(self._positions)

    def __getitem__(self, index: int) -> Sample:
        row_location = self._rows.location(self._row(index))
        sample = {}
        for name, value in self._rows[self._row(index)].items():
            if name not in self._columns:
                sample[name] = value
            elif value is not None:
                location = Location(row_location.file, row_location.line, row_location.row, index=index, field=name)
                key, pixels = self._decode(name, value, location)
                sample[key] = pixels
        if "image" in sample and is_objects(sample.get(OBJECTS)):
            height, width = sample["image"].shape[:2]
            location = Location(row_location.file, row_location.line, row_location.row, index=index, field=OBJECTS)
            sample |= boxes_and_classes(sample.pop(OBJECTS), width, height, location)
        return sample

    def location(self, index: int) -> Location:
        """Of the row."""
        return self._rows.location(self._row(index))

    def strata(self) -> Sequence[Any] | None:
        """Those of the rows."""
        strata = self._rows.strata()
        if strata is None or self._positions is None:
            return strata
        return [strata[position] for position in self._positions]

    def check(self, report: DataReport) -> None:
        """Decode every image; samples whose issue says `drop` are left out."""
        positions = []
        for index in range(len(self._rows)):
            try:
                self[index]
                positions.append(index)
            except SampleError as error:
                if report.add(error.issue.type, error.issue.message, error.issue.location) != "drop":
                    positions.append(index)
        self._positions = positions if len(positions) < len(self._rows) else None

    def _row(self, index: int) -> int:
        return index if self._positions is None else self._positions[index]

    def _decode(self, name: str, value: Any, location: Location) -> tuple[str, Any]:
        from fewbit.data.images.decode import decode_image, open_image
        from fewbit.data.images.masks import decode_mask

        if isinstance(value, list):
            return name, [decode_image(self._content(item, location), location) for item in value]
        content = self._content(value, location)
        if name == self._columns[0]:
            return "image", decode_image(content, location)
        with open_image(content, location, header_only=True) as (image, _):
            single_channel = image.mode in _SINGLE_CHANNEL_MODES
        if not single_channel:
            return name, decode_image(content, location)
        return "mask" if name == self._columns[1] else name, decode_mask(content, location)

    def _content(self, value: Any, location: Location) -> bytes:
        """The bytes of an image file, from the row or from the file it names."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
            content: bytes = value["bytes"]
            return content
        path = value.get("path") if isinstance(value, Mapping) else None
        if isinstance(path, str):
            if self._files is not None and path in self._files.names():
                return self._files.read(path, _MOST_BYTES)
            if self._local_paths and Path(path).is_file():
                return Path(path).read_bytes()
        raise SampleError(
            Issue(MEDIA_MISSING, f"neither bytes nor a file of the dataset: {str(path)[:200]!r}", location)
        )


def _class_names(kind: Any) -> list[str] | None:
    if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list):
        return [str(name) for name in kind["names"]] or None
    return None


def _object_names(kind: Any) -> list[str] | None:
    """Class names of the boxes, whether they are a list of dicts or a dict of lists."""
    fields = _element(kind) or kind
    for name in CATEGORIES if isinstance(fields, Mapping) else ():
        names = _class_names(fields.get(name)) or _class_names(_element(fields.get(name)))
        if names is not None:
            return names
    return None


def _element(kind: Any) -> Any:
    """What a list holds, in any of the ways `datasets` wrote it."""
    if isinstance(kind, list):
        return kind[0] if kind else None
    if isinstance(kind, Mapping) and kind.get("_type") in ("Sequence", "List", "LargeList"):
        return kind.get("feature")
    return None


def _label_column(table: Table, features: Sequence[Features], label_column: Any) -> str | None:
    """The column whose class names are used."""
    classes = {column for feature in features for column in feature.classes}
    tags = {column for feature in features for column in feature.tags}
    if label_column is not None:
        return str(label_column) if label_column in classes | tags else None
    label_name = next((name for name in _LABELS if name in table.columns), None)
    if label_name is not None and label_name in classes:
        return label_name
    if label_name is not None and label_name not in tags:
        return None  # numbers or names without an explanation
    return next((name for name in _TAGS if name in tags), None) or next(
        (name for name in table.columns if name in classes), None
    )


def _image_columns(table: Table, features: Sequence[Features]) -> tuple[str, ...]:
    """Columns of images: those that say so, and those whose first value begins like one."""
    images = [name for name in table.columns if any(name in feature.images for feature in features)]
    others = {name for feature in features for name in feature.others}
    _, rows = next(iter(table.blocks()), (0, [{}]))
    for name, value in rows[0].items():
        content = value.get("bytes") if isinstance(value, dict) else value
        if name not in images and name not in others and isinstance(content, bytes) and image_format(content[:64]):
            images.append(name)
    return tuple(sorted(images, key=lambda name: name != "image"))
