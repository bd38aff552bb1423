# SPDX-License-Identifier: Apache-2.0
"""Objects on images: boxes, polygons and masks, what can be wrong with them, and how they are fitted to the image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fewbit.data.detection import issues
from fewbit.data.images import shapes
from fewbit.data.images.shapes import Box, Edges, Points
from fewbit.data.types import Action, Issue, IssueType, Location, SampleError
from fewbit.errors import plural

Size = tuple[int, int]
"""Width and height in pixels."""
ReportIssue = Callable[[IssueType, str, Location], Action]
"""Takes an issue and says what to do about it, as `DataReport.add` does."""


class Rle(NamedTuple):
    """A mask by its runs, and its size, which the image should have, too."""

    runs: np.ndarray
    height: int
    width: int


@dataclass(slots=True)
class Object:
    """One object on an image, in relative coordinates, and where it is written."""

    class_index: int
    box: Box
    location: Location
    polygons: tuple[Points, ...] = ()  # the outlines of its parts
    rle: Rle | None = None  # instead of outlines
    difficult: bool = False  # a flag of Pascal VOC


def fit_box(box: Box, location: Location, issue: ReportIssue, size: Size | None = None) -> Box | None:
    """A box on its image: clipped if it reaches beyond, `None` if nothing is left of it.

    Messages are in pixels of the given `size`, for files that have pixels.
    """
    if not (box[2] > 0 and box[3] > 0):
        width, height = (box[2], box[3]) if size is None else (box[2] * size[0], box[3] * size[1])
        unit = "" if size is None else " pixels"
        issue(issues.BOX_EMPTY, f"{width:.6g}{unit} wide, {height:.6g}{unit} high", location)
        return None
    edges = shapes.box_edges(box)
    if shapes.overshoot(edges) <= shapes.ROUNDING:
        return box
    clipped = shapes.clip_box(box)
    action = _report_overshoot("box", edges, clipped is None, location, issue, size)
    return {"repair": clipped, "keep": box}.get(action)


def fit_polygon(points: Points, location: Location, issue: ReportIssue, size: Size | None = None) -> Points | None:
    """A polygon on its image: cleaned, clipped if it reaches beyond, `None` if nothing is left of it."""
    if len(points) > shapes.MOST_POINTS:
        issue(issues.POLYGON_TOO_LONG, plural(len(points), "corner"), location)
        return None
    polygon = shapes.without_repeats(points)
    if not shapes.has_area(polygon):
        issue(issues.POLYGON_EMPTY, f"its {plural(len(points), 'corner')} enclose nothing", location)
        return None
    edges = shapes.polygon_edges(polygon)
    if (overshoot := shapes.overshoot(edges)) > shapes.ROUNDING:
        clipped = np.clip(polygon, 0, 1) if overshoot <= shapes.SLIGHT else shapes.clip_polygon(polygon)
        action = _report_overshoot("polygon", edges, not shapes.has_area(clipped), location, issue, size)
        if action not in ("repair", "keep"):
            return None
        polygon = clipped if action == "repair" else polygon
    if shapes.crosses_itself(polygon):
        message = f"the outline of {plural(len(polygon), 'corner')} crosses itself"
        return polygon if issue(issues.POLYGON_CROSSES, message, location) == "keep" else None
    return polygon


def _report_overshoot(
    shape: str, edges: Edges, outside: bool, location: Location, issue: ReportIssue, size: Size | None
) -> Action:
    width, height = size or (1, 1)
    left, top, right, bottom = edges[0] * width, edges[1] * height, edges[2] * width, edges[3] * height
    limits = "of 0 to 1" if size is None else f"pixels; the image is {width} x {height}"
    message = f"the {shape} spans x {left:.4g} to {right:.4g}, y {top:.4g} to {bottom:.4g} {limits}"
    if outside:
        issue(issues.OUTSIDE_IMAGE, message, location)
        return "drop"
    slight = shapes.overshoot(edges) <= shapes.SLIGHT
    return issue(issues.OUT_OF_RANGE_SLIGHTLY if slight else issues.OUT_OF_RANGE, message, location)


def without_duplicates(objects: Iterable[Object], issue: ReportIssue) -> Iterator[Object]:
    """Objects that do not repeat an earlier one of the same image."""
    first: dict[tuple[object, ...], Object] = {}
    for instance in objects:
        outlines = (*instance.polygons, instance.rle.runs) if instance.rle else instance.polygons
        shape = b"".join(outline.tobytes() for outline in outlines)
        original = first.setdefault((instance.class_index, instance.box, shape), instance)
        if original is not instance:
            line, row = original.location.line, original.location.row
            message = f"the same as {f'row {row}' if line is None else f'line {line}'}"
            if issue(issues.OBJECT_DUPLICATE, message, instance.location) != "keep":
                continue
        yield instance


def check_mask_size(objects: Sequence[Object], size: Size, location: Location) -> None:
    """Raise a `SampleError` if the masks of these objects would take too much memory or time."""
    width, height = size
    needed = len(objects) * height * width
    if needed > shapes.MOST_MASK_BYTES:
        message = f"{plural(len(objects), 'mask')} of {width} x {height} pixels need {needed:,} bytes"
        raise SampleError(Issue(issues.MASKS_TOO_LARGE, message, location))
    crossings = sum(shapes.crossing_count(outline, height) for instance in objects for outline in _outlines(instance))
    if crossings > shapes.MOST_CROSSINGS:
        raise SampleError(
            Issue(issues.MASKS_TOO_LARGE, f"the outlines cross pixel rows {crossings:,.0f} times", location)
        )


def object_masks(objects: Sequence[Object], size: Size) -> np.ndarray:
    """One mask per object, bool [n, height, width]; an object without an outline is a filled rectangle."""
    width, height = size
    masks = np.zeros((len(objects), height, width), np.bool_)
    for mask, instance in zip(masks, objects):
        if instance.rle is not None:
            decoded = shapes.rle_mask(*instance.rle)[:height, :width]
            mask[: decoded.shape[0], : decoded.shape[1]] = decoded
        for outline in _outlines(instance):
            mask |= shapes.rasterize(outline, height, width)
    return masks


def _outlines(instance: Object) -> Sequence[Points]:
    if instance.rle is not None:
        return ()
    return instance.polygons or (shapes.box_outline(instance.box),)
