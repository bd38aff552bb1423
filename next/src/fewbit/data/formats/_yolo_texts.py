# SPDX-License-Identifier: Apache-2.0
"""The texts of a YOLO dataset: its data.yaml and its label files.

A data.yaml is composed into nodes of text and nothing is constructed from them: a class called `no` stays "no", `007`
stays "007", a `download:` key or a `!!python/…` tag is reported and never followed.

A row of a label file is a class and then a box or a polygon, relative to the image:

    class x y width height        five values: a box by its centre and size
    class x1 y1 x2 y2 x3 y3 …     seven or more, an odd number: a polygon

Every row decides for itself, so boxes and polygons may be in one file, and a bad row costs nothing but itself.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fewbit.data.formats._detection import CLASS_BEYOND, Annotation, Object, ReportIssue, Size, fit_box, fit_polygon
from fewbit.data.images.shapes import Box, box_from_edges, box_from_top_left, polygon_edges
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import Action, Issue, IssueType, Location, Severity
from fewbit.errors import plural

YAML_INVALID = IssueType(
    "yaml-invalid", Severity.ERROR, "data.yaml that cannot be read",
    "it is a short YAML file in UTF-8 with `train:`, `val:` and `names:`", "raise", ("keep",), "writes a new data.yaml",
)  # fmt: skip
YAML_COUNT = IssueType(
    "yaml-nc", Severity.ERROR, "`nc` that is not the number of names", "correct or delete `nc`", "raise", ("keep",),
    "writes a data.yaml without `nc`",
)  # fmt: skip
YAML_DOWNLOAD = IssueType(
    "yaml-download", Severity.NOTE, "data.yaml that asks to download or run something", "nothing: it is never done",
    fix="writes a data.yaml without it",
)  # fmt: skip
YAML_TAG = IssueType(
    "yaml-tag", Severity.WARNING, "data.yaml with a tag that asks to construct an object",
    "delete the tag: the value is read as text", "keep", ("raise",), "writes a data.yaml without it",
)  # fmt: skip
YAML_KEYPOINTS = IssueType(
    "yaml-keypoints", Severity.ERROR, "keypoint dataset", "only boxes and polygons are read", "raise", ("keep",)
)
NAMES_INVALID = IssueType(
    "names-invalid", Severity.ERROR, "class names that are not a list or have gaps",
    "write `names` as a list, or as 0: first, 1: second, …; in a classes.txt one name per line", "raise", ("keep",),
    "calls classes without a name class_N",
)  # fmt: skip
LABEL_UTF16 = IssueType(
    "label-utf16", Severity.WARNING, "label file in UTF-16", "save it as UTF-8", "repair", ("raise",),
    "writes it as UTF-8",
)  # fmt: skip


def _row_issue(code: str, meaning: str, hint: str, repair: str = "") -> IssueType:
    actions: tuple[Action, ...] = ("repair", "drop") if repair else ("drop",)
    return IssueType(code, Severity.ERROR, meaning, hint, "raise", actions, repair or "leaves the row out")


ROW_COUNT = _row_issue(
    "row-count", "label row that is neither a box nor a polygon",
    "5 values are a box (class x y width height), 7, 9, … a polygon (class x1 y1 x2 y2 …)",
)  # fmt: skip
ROW_CONFIDENCE = _row_issue(
    "row-confidence", "label row with a sixth value that looks like a confidence", "delete the sixth value",
    "leaves the sixth value out",
)  # fmt: skip
ROW_COMMAS = _row_issue(
    "row-commas", "label row with commas", "separate the values by spaces", "separates the values by spaces"
)
ROW_NUMBER = _row_issue("row-number", "label value that is not a number", "correct or delete the row")
ROW_CLASS = _row_issue(
    "row-class", "class that is not an integer from 0", "write the position of the class in `names`",
    "writes the number of a class given by its name, leaves other rows out",
)  # fmt: skip
PIXEL_COORDINATES = _row_issue(
    "pixel-coordinates", "label row in pixels", "divide x and width by the image's width, y and height by its height",
    "divides by the size of the image",
)  # fmt: skip
ROW_NOT_FINITE = IssueType(
    "row-not-finite", Severity.WARNING, "label row with NaN, infinity or an absurd value", "correct or delete the row",
    "drop", ("raise",), "leaves the row out",
)  # fmt: skip
PIXELS_UNFIT = IssueType(
    "pixels-unfit", Severity.WARNING, "label row in pixels that does not fit on its image",
    "say how boxes are written: {data_option=pixels=corners} or {data_option=pixels=top-left}", "drop", ("raise",),
    "leaves the row out",
)  # fmt: skip
ROW_DUPLICATE = IssueType(
    "row-duplicate", Severity.WARNING, "label row given twice", "delete one", "drop", ("raise", "keep"),
    "leaves the second row out",
)  # fmt: skip
TEXT_ISSUES = (
    YAML_INVALID, YAML_COUNT, YAML_DOWNLOAD, YAML_TAG, YAML_KEYPOINTS, NAMES_INVALID, LABEL_UTF16, ROW_COUNT,
    ROW_CONFIDENCE, ROW_COMMAS, ROW_NUMBER, ROW_CLASS, PIXEL_COORDINATES, ROW_NOT_FINITE, PIXELS_UNFIT, ROW_DUPLICATE,
)  # fmt: skip

YAML_BYTES = 1 << 20
PIXEL_CONVENTIONS: dict[str, Callable[[float, float, float, float], Box]] = {
    "centre": lambda x, y, width, height: (x, y, width, height),
    "corners": box_from_edges,
    "top-left": box_from_top_left,
}
"""How tools write boxes in pixels: YOLO's, Pascal VOC's, COCO's order."""

_DEEPEST = 32
_STANDARD = "tag:yaml.org,2002:"
_PLAIN = ("str", "int", "float", "bool", "null", "seq", "map")
_PLAIN_TAGS = frozenset({"!", *(f"{_STANDARD}{kind}" for kind in _PLAIN)})
_MOST_GAPS = 1000
_LARGEST_CLASS = (1 << 31) - 1
_LARGEST_VALUE = 1e9  # no image is that wide
_PIXEL_SLACK = 1.0  # some tools count pixels from 1


# data.yaml


@dataclass
class DataYaml:
    """The content of a data.yaml: paths as written, by split; class names, of which gaps are `class_N`."""

    name: str
    path: str = ""
    splits: dict[str, list[str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    class_count: int | None = None
    issues: list[Issue] = field(default_factory=list)

    def add(self, kind: IssueType, message: str, mark: Any = None, byte: int | None = None) -> None:
        """Note an issue, at the line of a mark."""
        self.issues.append(Issue(kind, message, Location(self.name, line=mark and mark.line + 1, byte=byte)))


def read_data_yaml(content: bytes, name: str) -> DataYaml:
    """Parse a data.yaml of at most `YAML_BYTES`.

    >>> data = read_data_yaml(b"train: images/train\\nnames: [cat, no]", "data.yaml")
    >>> data.splits, data.names
    ({'train': ['images/train']}, ('cat', 'no'))
    """
    data = DataYaml(name)
    root = _compose(content, data)
    if root is None:
        return data
    keys = dict(_pairs(root, data))
    data.path = _text(keys.get("path"))
    for split in SPLITS:
        paths = [path for key, node in keys.items() if split_of_folder(key) == split for path in _paths(node, data)]
        data.splits |= {split: paths} if paths else {}
    data.names = _names(keys["names"], data) if "names" in keys else ()
    if count := _text(keys.get("nc")):
        data.class_count = len(data.names) or (int(count) if _is_number(count) else None)
        if count != str(data.class_count):
            data.add(YAML_COUNT, f"`nc` is {count[:60]!r}; {plural(len(data.names), 'name')}", keys["nc"].start_mark)
    if "download" in keys:
        data.add(YAML_DOWNLOAD, "`download` was not followed", keys["download"].start_mark)
    if "kpt_shape" in keys:
        data.add(YAML_KEYPOINTS, "`kpt_shape` says that rows hold keypoints", keys["kpt_shape"].start_mark)
    return data


def _compose(content: bytes, data: DataYaml) -> Any:
    """The mapping at the top of the file, or `None` after noting why not."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(content) > YAML_BYTES:
            raise ValueError(f"more than {YAML_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
        _check_events(yaml, yaml.parse(text, Loader=loader), data)
        root = yaml.compose(text, Loader=loader)
    except UnicodeDecodeError as error:
        data.add(YAML_INVALID, f"byte {content[error.start]:#04x} is not UTF-8", byte=error.start)
        return None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        message = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        data.add(YAML_INVALID, message, getattr(error, "problem_mark", None))
        return None
    if not isinstance(root, yaml.MappingNode):
        data.add(YAML_INVALID, "there are no keys such as `train:` and `names:`")
        return None
    return root


def _check_events(yaml: Any, events: Iterator[Any], data: DataYaml) -> None:
    # Before anything is composed: aliases of aliases stand for gigabytes, and composing nested nodes is recursive.
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"the alias *{event.anchor}, which a data.yaml never needs")
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _PLAIN_TAGS:
            data.add(YAML_TAG, f"{tag.replace(_STANDARD, '!!')[:80]!r} was not followed", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")


def _pairs(node: Any, data: DataYaml) -> Iterator[tuple[str, Any]]:
    keys = set()
    for key, value in node.value:
        if isinstance(key.value, str):
            if key.value in keys:
                data.add(YAML_INVALID, f"the key {key.value[:60]!r} is given twice", key.start_mark)
            keys.add(key.value)
            yield key.value, value


def _text(node: Any) -> str:
    """A scalar as written; nothing for `null`, lists and mappings."""
    if node is None or not isinstance(node.value, str) or node.tag.endswith(":null"):
        return ""
    return str(node.value).strip()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _paths(node: Any, data: DataYaml) -> list[str]:
    if isinstance(node.value, str):
        return [_text(node)] if _text(node) else []
    paths = ["" if isinstance(item, tuple) else _text(item) for item in node.value]
    if not all(paths):
        data.add(YAML_INVALID, "a split is a folder, a list file, or a list of those", node.start_mark)
    return [path for path in paths if path]


def _names(node: Any, data: DataYaml) -> tuple[str, ...]:
    if isinstance(node.value, str):
        if _text(node):
            data.add(NAMES_INVALID, f"`names` is the text {node.value[:60]!r}", node.start_mark)
        return ()
    if node.value and isinstance(node.value[0], tuple):
        pairs = dict(_pairs(node, data))
        names = {int(key): _text(value) for key, value in pairs.items() if _is_number(key)}
        if wrong := [key for key in pairs if not _is_number(key)]:
            data.add(NAMES_INVALID, f"the class number {wrong[0][:60]!r} is not an integer from 0", node.start_mark)
    else:
        names = dict(enumerate(map(_text, node.value)))
    count = max(names, default=-1) + 1
    if count > max(_MOST_GAPS, 10 * len(names)):  # a key of 10**9 must not make as many names
        data.add(NAMES_INVALID, f"{plural(len(names), 'name')} with numbers up to {count - 1}", node.start_mark)
        return tuple(names[number] for number in sorted(names))
    if gaps := [str(number) for number in range(count) if not names.get(number)]:
        message = f"no name for class {', '.join(gaps[:5])} of 0 to {count - 1}"
        data.add(NAMES_INVALID, message, node.start_mark)
    return tuple(names.get(number) or f"class_{number}" for number in range(count))


# Label files


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows are read; names and number of the classes only if they are known."""

    names: tuple[str, ...] = ()
    class_count: int | None = None
    one_based: bool = False
    pixels: str | None = "centre"  # a key of `PIXEL_CONVENTIONS`; `None` if it is still to be found out


@dataclass(slots=True)
class LabelFile(Annotation):
    """What a label file says, and the pixel conventions that fit all its rows; `None` if no row is in pixels."""

    conventions: set[str] | None = None


@dataclass(slots=True)
class _Row:
    """One row as numbers: the class, then four values (a box) or an even number of six or more (a polygon)."""

    location: Location
    class_index: int
    values: tuple[float, ...]


def read_labels(content: bytes, name: str, options: RowOptions, size: Size | None, issue: ReportIssue) -> LabelFile:
    """Parse a label file; only rows in pixels need the size of the image.

    >>> labels = read_labels(b"0 .5 .5 .2 .2", "a.txt", RowOptions(), None, lambda *issue: "drop")
    >>> labels.objects[0].box
    (0.5, 0.5, 0.2, 0.2)
    """
    labels = LabelFile()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        issue(LABEL_UTF16, "as Notepad on Windows saves it", Location(name))
        content = content.decode("utf-16", errors="replace").encode()
    lines = [line.decode("utf-8", errors="replace") for line in content.removeprefix(codecs.BOM_UTF8).splitlines()]
    labels.annotated = any(map(str.strip, lines))
    rows = [
        row
        for number, line in enumerate(lines, start=1)
        if line.strip() and (row := _parse_row(line.strip(), Location(name, line=number), options, issue))
    ]
    first: dict[tuple[object, ...], _Row] = {}
    for row in _relative(rows, options, size, labels, issue):
        instance = _object(row, issue)
        if instance is None:
            continue
        outline = instance.polygons[0].tobytes() if instance.polygons else b""
        original = first.setdefault((instance.class_index, instance.box, outline), row)
        if original is not row:
            message = f"the same as line {original.location.line}"
            if issue(ROW_DUPLICATE, message, row.location) != "keep":
                continue
        labels.objects.append(instance)
    return labels


def format_row(instance: Object) -> str:
    """An object as a row, with at most nine decimals.

    >>> format_row(Object(2, (0.5, 0.25, 1 / 3, 1.0)))
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
        if issue(ROW_COMMAS, f"{_short(written)} should be {_short(text)}", location) != "repair":
            return None
    words = text.split()
    if len(words) == 6 and (values := _floats(words[1:])) and 0 <= values[-1] <= 1:
        if issue(ROW_CONFIDENCE, f"{_short(text)} should be {_short(' '.join(words[:5]))}", location) != "repair":
            return None
        words = words[:5]
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        issue(ROW_COUNT, f"{_short(text)} has {plural(len(words), 'value')}", location)
        return None
    values = _floats(words[1:])
    if values is None:
        issue(ROW_NUMBER, f"a value of {_short(text)} is not a number", location)
        return None
    if not sum(map(abs, values)) <= _LARGEST_VALUE:  # NaN is never below anything
        issue(ROW_NOT_FINITE, _short(text), location)
        return None
    class_index = _class_index(words[0], location, options, issue)
    return None if class_index is None else _Row(location, class_index, values)


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
        action = issue(ROW_CLASS, f"the class is {_short(word)}", location)
        return options.names.index(word) if action == "repair" and word in options.names else None
    class_index = int(value) - options.one_based
    if options.class_count is not None and class_index >= options.class_count:
        message = f"class {class_index}, but there are {plural(options.class_count, 'class')}"
        if issue(CLASS_BEYOND, message, location) != "keep":
            return None
    return class_index


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _relative(
    rows: list[_Row], options: RowOptions, size: Size | None, labels: LabelFile, issue: ReportIssue
) -> Iterator[_Row]:
    in_pixels = any(looks_like_pixels(row.values) for row in rows)
    for row in rows:
        # Next to a row that is surely in pixels, one value above 2 is enough: boxes at the border have small values.
        if not in_pixels or (not looks_like_pixels(row.values) and max(row.values) <= 2):
            yield row
            continue
        fitting = _fitting_conventions(row.values, size) if size else []
        if len(row.values) == 4:  # a polygon is written in one way only and excludes none
            labels.conventions = set(fitting) if labels.conventions is None else labels.conventions & set(fitting)
        details = (
            f"; the image is {size[0]} x {size[1]}; it fits as {' or '.join(fitting) or 'nothing'}" if size else ""
        )
        if issue(PIXEL_COORDINATES, f"{row.values[:4]} looks like pixels{details}", row.location) != "repair":
            continue
        convention = options.pixels or next(iter(fitting), "")
        if size is None or convention not in fitting:
            issue(PIXELS_UNFIT, f"it does not fit as {convention or 'any'}{details}", row.location)
            continue
        values = PIXEL_CONVENTIONS[convention](*row.values) if len(row.values) == 4 else row.values
        yield replace(row, values=tuple(value / size[i % 2] for i, value in enumerate(values)))


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
    """The conventions under which a row in pixels fits on its image."""
    if len(values) != 4:
        fits = all(-_PIXEL_SLACK <= value <= size[i % 2] + _PIXEL_SLACK for i, value in enumerate(values))
        return list(PIXEL_CONVENTIONS) if fits else []
    fitting = []
    for convention, to_box in PIXEL_CONVENTIONS.items():
        x, y, width, height = to_box(*values)
        if all(
            length > 0 and middle - length / 2 >= -_PIXEL_SLACK and middle + length / 2 <= limit + _PIXEL_SLACK
            for middle, length, limit in ((x, width, size[0]), (y, height, size[1]))
        ):
            fitting.append(convention)
    return fitting


def _object(row: _Row, issue: ReportIssue) -> Object | None:
    if len(row.values) == 4:
        box = fit_box((row.values[0], row.values[1], row.values[2], row.values[3]), row.location, issue)
        return None if box is None else Object(row.class_index, box)
    polygon = fit_polygon(np.array(row.values).reshape(-1, 2), row.location, issue)
    return None if polygon is None else Object(row.class_index, box_from_edges(*polygon_edges(polygon)), (polygon,))
