# SPDX-License-Identifier: Apache-2.0
"""One label file: its rows as shapes, without repeats. One bad row never costs the others."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fewbit.data.boxes import pixels, rows, shapes
from fewbit.data.boxes.fault import Decide, Fault
from fewbit.data.boxes.rows import Rules, Values
from fewbit.data.boxes.shapes import Shape
from fewbit.data.boxes.small_text import Unreadable, read_small
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place
from fewbit.data.walk import Entry

CODES = {
    **rows.CODES,
    **shapes.CODES,
    "pixel-coordinates": Code(
        Severity.ERROR,
        "the values of a label row look like pixels",
        "divide x and width by the image's width, y and height by its height; `--fix` does it",
        "raise",
        ("repair", "drop"),
    ),
    "pixels-unfit": Code(
        Severity.WARN,
        "a row in pixels does not lie on its image as it was read",
        "open with another pixels=, or draw it again",
        "drop",
        ("raise",),
    ),
    "row-duplicate": Code(
        Severity.WARN, "a label row says the same as one before", "delete it", "drop", ("raise", "keep")
    ),
    "label-utf16": Code(
        Severity.WARN, "a label file is UTF-16", "save it as UTF-8; `--fix` does it", "repair", ("raise",)
    ),
    "label-unreadable": Code(
        Severity.ERROR, "a label file cannot be read", "check what it is; a label file is a short text", "raise"
    ),
}

LABEL_BYTES, LABEL_ROWS = 4 << 20, 1 << 15
"""No image has more on it: a larger file is something else, and reading it would take long."""

SizeOf = Callable[[], pixels.Size | None]
"""Gives the (width, height) of the image a label file belongs to, or `None`; asked only when it matters."""


@dataclass(slots=True)
class Labels:
    """What one label file says.

    Args:
        shapes: the objects, in the order of the rows.
        empty: the file holds nothing but white space.
        unreadable: nothing could be read; nobody knows what is on the image.
        outlines: how many rows are polygons.
        nine: how many polygons have four points.
        slanted: how many of those are no upright rectangle.
        changed: a row was repaired or dropped, so a repaired copy differs from the file.
        readings: the ways to read pixels under which every such row fits its image; `None`: no row was in pixels.
    """

    shapes: list[Shape] = field(default_factory=list)
    empty: bool = False
    unreadable: bool = False
    outlines: int = 0
    nine: int = 0
    slanted: int = 0
    changed: bool = False
    readings: set[str] | None = None

    @property
    def lost(self) -> bool:
        """Rows were there and none of them can be used: nobody knows what is on the image."""
        return not self.shapes and not self.empty

    def text(self) -> str:
        """The file as it should stand."""
        return "".join(f"{shape.text}\n" for shape in self.shapes)


def read_labels(entry: Entry, rules: Rules, decide: Decide, size_of: SizeOf = lambda: None) -> Labels:
    """Read one label file.

    Args:
        entry: the file.
        rules: what its rows are held against.
        decide: told about every fault.
        size_of: asked for the image's size when a row looks like pixels.
    """
    labels = Labels()

    def deciding(fault: Fault) -> str:
        action = decide(fault)
        labels.changed |= action in ("repair", "drop")
        return action

    try:
        content = read_small(entry.path, LABEL_BYTES)
        if max(content.count(b"\n"), content.count(b"\r")) > LABEL_ROWS:
            raise Unreadable(f"has more than {LABEL_ROWS:,} rows")
    except Unreadable as error:
        deciding(Fault("label-unreadable", f"the label file {error}", Place(entry.name)))
        labels.unreadable = True
        return labels
    content = _as_utf8(content, Place(entry.name), deciding)
    labels.empty = not content.decode(errors="replace").strip()
    values = list(rows.parse(content, entry.name, rules, deciding))
    labels.outlines = sum(len(row.numbers) > 4 for row in values)
    quads = [row.numbers for row in values if len(row.numbers) == 8]
    labels.nine, labels.slanted = len(quads), sum(len({*quad[::2]}) > 2 or len({*quad[1::2]}) > 2 for quad in quads)
    values = _without_pixels(values, rules, deciding, size_of, labels)
    made = (shapes.shape(row, deciding) for row in values)
    labels.shapes = list(_distinct((shape for shape in made if shape is not None), rules, deciding))
    labels.changed |= any(shape.changed for shape in labels.shapes)
    return labels


def _as_utf8(content: bytes, place: Place, decide: Decide) -> bytes:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decide(Fault("label-utf16", "the label file is UTF-16, as Windows' Notepad writes it", place))
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _without_pixels(
    values: list[Values], rules: Rules, decide: Decide, size_of: SizeOf, labels: Labels
) -> list[Values]:
    if not any(pixels.look_like_pixels(row.numbers) for row in values):
        return values
    size = size_of()
    kept = []
    for row in values:
        # Beside a row that is surely in pixels, a value above 2 is enough: a box at the border has small ones.
        if not pixels.look_like_pixels(row.numbers) and max(row.numbers) <= 2:
            kept.append(row)
            continue
        readings = pixels.fitting(row.numbers, size) if size else []
        if len(row.numbers) == 4:  # an outline can be read in one way only and rules none of them out
            labels.readings = set(readings) if labels.readings is None else labels.readings & set(readings)
        if decide(_in_pixels(row, rules, size, readings)) != "repair":
            continue
        if size and rules.pixels in readings:
            numbers = pixels.normalised(row.numbers, size, rules.pixels)
            kept.append(replace(row, numbers=numbers, changed=True))
        else:
            fits = f"it fits as {' or '.join(readings)}" if readings else "it fits in no way, or the image is unknown"
            message = f"read as {rules.pixels}, the box leaves the image; {fits}"
            decide(Fault("pixels-unfit", message, row.place))
    return kept


def _in_pixels(row: Values, rules: Rules, size: pixels.Size | None, readings: list[str]) -> Fault:
    found = " ".join(f"{number:g}" for number in row.numbers[:4])
    message = f"{found}{' …' if len(row.numbers) > 4 else ''} looks like pixels"
    fix = None
    if size:
        message += f"; the image is {size[0]} wide and {size[1]} high"
        fix = "it fits on the image under none of the ways to write a box in pixels: delete or redraw it"
    if size and readings:
        reading = rules.pixels if rules.pixels in readings else readings[0]
        text = shapes.format_row(row.cls, pixels.normalised(row.numbers, size, reading)[:4])
        option = f" (values read as {reading}, option pixels={reading!r})" if len(row.numbers) == 4 else " …"
        fix = f"write it as {text!r}{option}; `--fix` does it"
    return Fault("pixel-coordinates", message, row.place, fix)


def _distinct(made: Iterable[Shape], rules: Rules, decide: Decide) -> Iterable[Shape]:
    seen: dict[tuple[object, ...], Shape] = {}
    for shape in made:
        numbers = shape.box if shape.polygon is None else tuple(shape.polygon.ravel().tolist())
        if rules.duplicate_digits is not None:
            numbers = tuple(round(number, rules.duplicate_digits) for number in numbers)
        first = seen.setdefault((shape.cls, shape.polygon is None, numbers), shape)
        if first is not shape:
            message = f"says the same as line {first.place.line}"
            if decide(Fault("row-duplicate", message, shape.place)) != "keep":
                continue
        yield shape
