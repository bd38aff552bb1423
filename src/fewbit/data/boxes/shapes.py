# SPDX-License-Identifier: Apache-2.0
"""The numbers of a label row as a box or a polygon that lies on its image.

A little beyond the border (up to a thousandth) is how labelling tools round; more than that is cut off and
told. What has no area, or no part on the image, is dropped. Values within a millionth of the border are the
six decimals that most tools write, and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fewbit.data.boxes import polygon
from fewbit.data.boxes.fault import Decide, Fault
from fewbit.data.boxes.pixels import Box
from fewbit.data.boxes.polygon import Points
from fewbit.data.boxes.rows import Values
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place

CODES = {
    "box-empty": Code(Severity.WARN, "a box has no area", "delete the row", "drop", ("raise",)),
    "out-of-range": Code(
        Severity.WARN,
        "a box or polygon reaches beyond the image",
        "cut it at the border; `--fix` does it",
        "repair",
        ("raise", "drop", "keep"),
    ),
    "out-of-range-slightly": Code(
        Severity.INFO,
        "a box or polygon reaches beyond the image by a thousandth or less",
        "nothing: readers cut it at the border",
        "repair",
        ("raise", "drop", "keep"),
    ),
    "outside-image": Code(
        Severity.WARN, "a box or polygon has no part on the image", "correct or delete the row", "drop", ("raise",)
    ),
    "polygon-repeats": Code(
        Severity.INFO,
        "a polygon names a point twice in a row",
        "nothing: readers leave the second out",
        "repair",
        ("raise", "keep"),
    ),
    "polygon-empty": Code(Severity.WARN, "a polygon has no area", "delete the row", "drop", ("raise",)),
    "polygon-crosses": Code(
        Severity.WARN,
        "the outline of a polygon crosses itself",
        "draw it again; what lies inside twice counts as outside",
        "keep",
        ("raise", "drop"),
    ),
    "polygon-tangled": Code(
        Severity.INFO, "a polygon is too tangled to tell whether it crosses itself", "draw it with fewer points"
    ),
    "polygon-too-long": Code(
        Severity.ERROR, "a polygon has too many points", "draw it with fewer points", "raise", ("drop",)
    ),
}

MOST_POINTS = 1 << 16
ROUNDING, SLIGHT = 1e-6, 1e-3
_NO_AREA = 1e-12


@dataclass(slots=True)
class Shape:
    """One object: its class, its box (centre and size, normalised), its outline if it has one.

    `text` is the row as it should stand in a file; `changed` says that it differs from what was written.
    """

    place: Place
    cls: int
    box: Box
    polygon: Points | None
    text: str
    changed: bool


def shape(values: Values, decide: Decide) -> Shape | None:
    """A box or polygon cut to its image, or `None` when the row had to be dropped."""
    make = _box if len(values.numbers) == 4 else _polygon
    made = make(values.numbers, values.place, decide)
    if made is None:
        return None
    box, points, changed = made
    changed |= values.changed
    text = format_row(values.cls, box if points is None else points.ravel()) if changed else values.text
    return Shape(values.place, values.cls, box, points, text, changed)


def format_row(cls: int, numbers: Iterable[float]) -> str:
    """A row as text, nine decimals at most.

    >>> format_row(2, (0.5, 0.25, 1 / 3, 1.0))
    '2 0.5 0.25 0.333333333 1'
    """
    return " ".join([str(cls), *(f"{number:.9f}".rstrip("0").rstrip(".") for number in numbers)])


def _box(numbers: tuple[float, ...], place: Place, decide: Decide) -> tuple[Box, None, bool] | None:
    x, y, width, height = numbers
    if width <= 0 or height <= 0:
        decide(Fault("box-empty", f"the box is {width:g} wide and {height:g} high", place))
        return None
    edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    box: Box = (x, y, width, height)
    beyond = _beyond(edges)
    if beyond <= ROUNDING:
        return box, None, False
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in edges)
    if min(right - left, bottom - top) <= ROUNDING:
        decide(Fault("outside-image", "the box lies outside the image", place))
        return None
    action = decide(_out_of_range("box", edges, beyond, place))
    if action == "repair":
        return _centred((left, top, right, bottom)), None, True
    return (box, None, False) if action == "keep" else None


def _polygon(numbers: tuple[float, ...], place: Place, decide: Decide) -> tuple[Box, Points, bool] | None:
    if len(numbers) > 2 * MOST_POINTS:
        decide(Fault("polygon-too-long", f"{len(numbers) // 2} points; at most {MOST_POINTS}", place))
        return None
    points: Points = np.array(numbers, np.float64).reshape(-1, 2)
    tidied, changed = _without_repeats(points, place, decide)
    if not _has_area(tidied):
        decide(Fault("polygon-empty", f"the polygon of {len(points)} points encloses nothing", place))
        return None
    edges = polygon.bounds(tidied)
    beyond = _beyond(edges)
    if beyond > ROUNDING:
        inside = np.clip(tidied, 0, 1) if beyond <= SLIGHT else polygon.clip(tidied)
        if not _has_area(inside):
            decide(Fault("outside-image", "the polygon lies outside the image", place))
            return None
        action = decide(_out_of_range("polygon", edges, beyond, place))
        if action == "drop":
            return None
        if action == "repair":
            tidied, changed = inside, True
    if not _may_cross(tidied, place, decide):
        return None
    return _centred(polygon.bounds(tidied)), tidied, changed


def _without_repeats(points: Points, place: Place, decide: Decide) -> tuple[Points, bool]:
    closed = bool(np.all(points[0] == points[-1]))
    tidied = polygon.tidy(points)
    repeats = len(points) - len(tidied) - closed
    if repeats <= 0 or len(tidied) < 3:
        return tidied, False
    message = f"{repeats} of the polygon's {len(points)} points repeat the one before"
    if decide(Fault("polygon-repeats", message, place)) == "keep":
        return points, False
    return tidied, True


def _has_area(points: Points) -> bool:
    # Halves that turn opposite ways cancel in the formula though both are there: they cross, so they have area.
    return polygon.area(points) > _NO_AREA or (len(points) > 3 and polygon.crosses(points) is not False)


def _may_cross(points: Points, place: Place, decide: Decide) -> bool:
    crossing = polygon.crosses(points)
    if crossing is None:
        decide(Fault("polygon-tangled", f"the polygon's {len(points)} edges overlap too much to compare", place))
    elif crossing:
        message = f"the outline of {len(points)} points crosses itself"
        return decide(Fault("polygon-crosses", message, place)) != "drop"
    return True


def _beyond(edges: Box) -> float:
    return max(-edges[0], -edges[1], edges[2] - 1, edges[3] - 1)


def _centred(edges: Box) -> Box:
    left, top, right, bottom = edges
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _out_of_range(kind: str, edges: Box, beyond: float, place: Place) -> Fault:
    code = "out-of-range-slightly" if beyond <= SLIGHT else "out-of-range"
    spans = f"x {edges[0]:.4g} to {edges[2]:.4g}, y {edges[1]:.4g} to {edges[3]:.4g}"
    return Fault(code, f"the {kind} spans {spans}, beyond the image's 0 to 1", place)
