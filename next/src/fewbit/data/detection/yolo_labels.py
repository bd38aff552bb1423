# SPDX-License-Identifier: Apache-2.0
"""Label files of YOLO. A row is a class, then a box or a polygon, relative to the image:

    class x y width height        five values: a box by its centre and size
    class x1 y1 x2 y2 x3 y3 …     seven or more, an odd number: a polygon

Every row decides for itself, so boxes and polygons may be in one file, and a bad row costs nothing but itself.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fewbit.data.detection import issues
from fewbit.data.detection.objects import Object, ReportIssue, Size, fit_box, fit_polygon, without_duplicates
from fewbit.data.detection.source import Annotation
from fewbit.data.images.shapes import Box, box_edges, box_from_edges, polygon_edges
from fewbit.data.types import Location
from fewbit.errors import plural

PIXEL_CONVENTIONS: dict[str, Callable[[float, float, float, float], Box]] = {
    "centre": lambda x, y, width, height: (x, y, width, height),
    "corners": box_from_edges,
    "top-left": lambda x, y, width, height: (x + width / 2, y + height / 2, width, height),
}
"""How tools write boxes in pixels: in the order of YOLO, Pascal VOC and COCO."""
_LARGEST_CLASS = (1 << 31) - 1
_LARGEST_VALUE = 1e9  # no image is that wide
_PIXEL_SLACK = 1.0  # some tools count pixels from 1


@dataclass(frozen=True)
class RowOptions:
    """How rows are read; names and number of the classes as far as they are known."""

    names: tuple[str, ...] = ()
    class_count: int | None = None
    one_based: bool = False  # classes count from 1
    pixels: str | None = ""  # how boxes in pixels are written; empty: not known; `None` takes whatever fits the row
    conventions: set[str] = field(default_factory=lambda: set(PIXEL_CONVENTIONS))  # that fit every row so far
    pixel_boxes: list[Location] = field(default_factory=list)  # where those rows are, while all are read


@dataclass(slots=True)
class _Row:
    """One row as numbers: the class, then four values (a box) or an even number of six or more (a polygon)."""

    location: Location
    class_index: int
    values: tuple[float, ...]


def read_labels(content: bytes, name: str, options: RowOptions, size: Size | None, issue: ReportIssue) -> Annotation:
    """Parse a label file; only rows in pixels need the size of the image.

    >>> labels = read_labels(b"0 .5 .5 .2 .2", "a.txt", RowOptions(), None, lambda *issue: "drop")
    >>> labels.objects[0].box
    (0.5, 0.5, 0.2, 0.2)
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        issue(issues.LABEL_UTF16, "as Notepad on Windows saves it", Location(name))
        content = content.decode("utf-16", errors="replace").encode()
    lines = [line.decode("utf-8", errors="replace") for line in content.removeprefix(codecs.BOM_UTF8).splitlines()]
    texts = {number: line.strip() for number, line in enumerate(lines, start=1) if line.strip()}
    parsed = [_parse_row(text, Location(name, line=number), options, issue) for number, text in texts.items()]
    rows = _relative([row for row in parsed if row is not None], options, size, issue)
    objects = [instance for row in rows if (instance := _object(row, issue)) is not None]
    return Annotation(list(without_duplicates(objects, issue)), annotated=bool(texts))


def format_row(instance: Object) -> str:
    """An object as a row, with at most nine decimals.

    >>> format_row(Object(2, (0.5, 0.25, 1 / 3, 1.0), Location()))
    '2 0.5 0.25 0.333333333 1'
    """
    values = instance.polygons[0].ravel().tolist() if instance.polygons else instance.box
    return " ".join([str(instance.class_index), *(f"{value:.9f}".rstrip("0").rstrip(".") for value in values)])


def looks_like_labels(head: bytes) -> bool:
    """Whether a text begins like a label file and not like a caption.

    >>> looks_like_labels(b"0 .5 .5 .2 .2"), looks_like_labels(b"2 cats on 1 mat")
    (True, False)
    """
    words = re.split(rb"[\s,;]+", head.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0].strip())
    return len(words) >= 5 and all(re.fullmatch(rb"[-+.0-9eE]+", word) for word in words[1:])


def _parse_row(text: str, location: Location, options: RowOptions, issue: ReportIssue) -> _Row | None:
    if "," in text or ";" in text:
        written, text = text, _without_commas(text)
        if issue(issues.ROW_COMMAS, f"{_short(written)} should be {_short(text)}", location) != "repair":
            return None
    words = text.split()
    if len(words) == 6 and (values := _floats(words[1:])) and 0 <= values[-1] <= 1:
        if (
            issue(issues.ROW_CONFIDENCE, f"{_short(text)} should be {_short(' '.join(words[:5]))}", location)
            != "repair"
        ):
            return None
        words = words[:5]
    values = _floats(words[1:])
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        issue(issues.ROW_COUNT, f"{_short(text)} has {plural(len(words), 'value')}", location)
    elif values is None:
        issue(issues.ROW_NUMBER, f"a value of {_short(text)} is not a number", location)
    elif not sum(map(abs, values)) <= _LARGEST_VALUE:  # NaN is never below anything
        issue(issues.ROW_NOT_FINITE, _short(text), location)
    elif (class_index := _class_index(words[0], location, options, issue)) is not None:
        return _Row(location, class_index, values)
    return None


def _without_commas(text: str) -> str:
    # At least five words whose commas are all between digits: decimal commas, not separators.
    decimal = len(text.split()) >= 5 and not re.search(r"(?<!\d),|,(?!\d)|;", text)
    return text.replace(",", ".") if decimal else " ".join(re.split(r"[,;\s]+", text.strip(",; \t")))


def _floats(words: list[str]) -> tuple[float, ...] | None:
    joined = "".join(words)
    if "_" in joined or not joined.isascii():  # Python reads "1_000" and Arabic digits, too
        return None
    try:
        return tuple(map(float, words))
    except ValueError:
        return None


def _class_index(word: str, location: Location, options: RowOptions, issue: ReportIssue) -> int | None:
    value = (_floats([word]) or (-1.0,))[0]  # spreadsheets write "3.0"
    if not options.one_based <= value <= _LARGEST_CLASS or value != int(value):
        action = issue(issues.ROW_CLASS, f"the class is {_short(word)}", location)
        return options.names.index(word) if action == "repair" and word in options.names else None
    class_index = int(value) - options.one_based
    if options.class_count is not None and class_index >= options.class_count:
        message = f"class {class_index}, but there are {plural(options.class_count, 'class')}"
        if issue(issues.CLASS_BEYOND, message, location) != "keep":
            return None
    return class_index


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _relative(rows: list[_Row], options: RowOptions, size: Size | None, issue: ReportIssue) -> Iterator[_Row]:
    """Rows with values relative to the image; those in pixels are divided by its size if that is to be repaired."""
    in_pixels = any(looks_like_pixels(row.values) for row in rows)
    for row in rows:
        # Next to a row that is surely in pixels, one value above 2 is enough: boxes at the border have small values.
        if not in_pixels or (not looks_like_pixels(row.values) and max(row.values) <= 2):
            yield row
            continue
        fitting = _fitting_conventions(row.values, size) if size else []
        if size and len(row.values) == 4:
            options.conventions.intersection_update(fitting)
            if options.pixels is None:
                options.pixel_boxes.append(row.location)
        shown = f"; the image is {size[0]} x {size[1]}; it fits as {' or '.join(fitting) or 'nothing'}" if size else ""
        if issue(issues.PIXEL_COORDINATES, f"{row.values[:4]} looks like pixels{shown}", row.location) != "repair":
            continue
        certain = len(fitting) == 1 or len(row.values) != 4 or options.pixels is None
        if fitting and not options.pixels and not certain:
            issue(issues.PIXELS_AMBIGUOUS, f"it fits as {' or '.join(fitting)}", row.location)
            continue
        convention = options.pixels or next(iter(fitting), "")
        if size is None or convention not in fitting:
            issue(issues.PIXELS_UNFIT, f"it does not fit as {convention or 'any'}{shown}", row.location)
            continue
        values = PIXEL_CONVENTIONS[convention](*row.values) if len(row.values) == 4 else row.values
        yield _Row(row.location, row.class_index, tuple(value / size[i % 2] for i, value in enumerate(values)))


def looks_like_pixels(values: Sequence[float]) -> bool:
    """Whether values are pixels: all of a box at least 1 or two of them above 2; half of a polygon above 1.

    >>> looks_like_pixels((320, 240, 100, 80)), looks_like_pixels((0.5, 0.5, 1.2, 0.3))
    (True, False)
    """
    if max(values) <= 1:
        return False
    if len(values) == 4:
        return min(values) >= 1 or (min(values) >= 0 and sum(value > 2 for value in values) >= 2)
    return max(values) > 2 and 2 * sum(value > 1 for value in values) >= len(values)


def _fitting_conventions(values: Sequence[float], size: Size) -> list[str]:
    """The conventions under which a row in pixels fits on its image; polygons are written in one way only."""
    if len(values) != 4:
        fits = all(-_PIXEL_SLACK <= value <= size[i % 2] + _PIXEL_SLACK for i, value in enumerate(values))
        return list(PIXEL_CONVENTIONS) if fits else []
    fitting = []
    for convention, to_box in PIXEL_CONVENTIONS.items():
        box = to_box(*values)
        left, top, right, bottom = box_edges(box)
        inside = min(left, top, size[0] - right, size[1] - bottom) >= -_PIXEL_SLACK
        fitting += [convention] if inside and min(box[2:]) > 0 else []
    return fitting


def _object(row: _Row, issue: ReportIssue) -> Object | None:
    if len(row.values) == 4:
        x, y, width, height = row.values
        box = fit_box((x, y, width, height), row.location, issue)
        return None if box is None else Object(row.class_index, box, row.location)
    polygon = fit_polygon(np.array(row.values).reshape(-1, 2), row.location, issue)
    if polygon is None:
        return None
    return Object(row.class_index, box_from_edges(*polygon_edges(polygon)), row.location, (polygon,))
