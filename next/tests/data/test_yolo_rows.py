# SPDX-License-Identifier: Apache-2.0
"""Label rows: what each may say, and that a bad one costs nothing but itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.detection import issues as issue_types
from fewbit.data.detection.yolo_labels import PIXEL_CONVENTIONS, RowOptions, format_row, read_labels
from fewbit.data.images import shapes
from fewbit.data.types import Issue


def read(content, size=None, **options):
    """Objects and issues, with every repair that is possible."""
    issues = []

    def issue(kind, message, location):
        issues.append(Issue(kind, message, location))
        allowed = (kind.on_error, *kind.actions)
        return "repair" if "repair" in allowed else "drop" if kind.on_error != "keep" else "keep"

    content = content if isinstance(content, bytes) else content.encode()
    return read_labels(content, "labels/a.txt", RowOptions(**options), size, issue), issues


def lines(issues):
    return [(issue.code, issue.location.line) for issue in issues]


def text(labels):
    return "".join(f"{format_row(instance)}\n" for instance in labels.objects)


BOX = "0 0.5 0.5 0.2 0.2\n"


@pytest.mark.parametrize(
    ("content", "result"),
    [
        ("0\t0.5  0.5\t0.2 0.2 \r\n\r\n1 .25 .25 1e-1 0.1", "0 0.5 0.5 0.2 0.2\n1 0.25 0.25 0.1 0.1\n"),
        ("3.0 0.5 0.5 0.2 0.2", "3 0.5 0.5 0.2 0.2\n"),  # spreadsheets
        ("0 0.916667 0.5 0.166667 0.2", "0 0.916667 0.5 0.166667 0.2\n"),  # six decimals at the border
        (b"\xef\xbb\xbf0 .5 .5 .2 .2", BOX),
        ("0 .1 .1 .3 .1 .3 .1 .3 .3 .1 .1", "0 0.1 0.1 0.3 0.1 0.3 0.3\n"),  # repeated and closing corners
    ],
)
def test_rows_that_are_right(content, result):
    labels, issues = read(content, class_count=4)
    assert text(labels) == result and not issues


def row_with(word):
    return f"0 0.5 {word} 0.2 0.2"


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        ("row-class", [f"{word} .5 .5 .2 .2" for word in ("0.5", "-1", "cat", "nan", "inf", "1e300", "1_0", "٣")]),
        ("row-count", [" ".join(["0", *["0.5"] * (count - 1)]) for count in (1, 2, 3, 4, 8, 10, 12)]),
        ("row-count", [f"0 0.5 0.5 0.2 0.2 {sixth}" for sixth in ("1.5", "-0.1", "nan", "cat", "0_1")]),
        ("row-not-finite", [row_with(value) for value in ("nan", "inf", "-inf", "1e999", "1e300")]),
        ("row-number", [row_with(word) for word in ("x", "1_000", "٣", "--1")]),
        ("class-beyond", ["2 .5 .5 .3 .3"]),
        ("box-empty", [f"0 0.5 0.5 {size}" for size in ("0 0.2", "0.2 0", "-0.2 0.2")]),
        ("outside-image", ["0 1.5 0.5 0.2 0.2", "0 1.5 .5 1.6 .5 1.5 .9"]),
        ("polygon-empty", ["0 .1 .1 .2 .2 .3 .3", "0 .1 .1 .1 .1 .1 .1", "0 .1 .1 .2 .1 .1 .1 .2 .1"]),
        ("row-duplicate", ["0 .2 .2 .3 .10 ", "0 .1 .1 .2 .1 .2 .2"]),
    ],
)  # fmt: skip
def test_a_bad_row_is_located_and_costs_nothing_but_itself(code, rows):
    twice = [BOX, "0 .2 .2 .3 .1\n", "0 .1 .1 .2 .1 .2 .2\n"]
    for row in rows:
        labels, issues = read("".join([*twice, row]), class_count=2)
        assert lines(issues) == [(code, 4)] and len(labels.objects) == 3, row
        assert issues[-1].location.file == "labels/a.txt"


@pytest.mark.parametrize(
    ("row", "code", "repaired"),
    [
        ("0,0.5,0.5,0.2,0.2", "row-commas", BOX),
        ("0, 0.5, 0.5, 0.2, 0.2", "row-commas", BOX),
        ("0;0.5;0.5;0.2;0.2", "row-commas", BOX),
        ("0 0,5 0,5 0,2 0,2", "row-commas", BOX),
        ("0 0.5 0.5 0.2 0.2 0", "row-confidence", BOX),
        ("0 0.5 0.5 0.2 0.2 9.1e-1", "row-confidence", BOX),
        ("dog 0.5 0.5 0.2 0.2", "row-class", "1 0.5 0.5 0.2 0.2\n"),
        ("0 0.5 0.5 1.001 0.2", "out-of-range-slightly", "0 0.5 0.5 1 0.2\n"),
        ("0 0.9 0.5 0.4 0.2", "out-of-range", "0 0.85 0.5 0.3 0.2\n"),
        ("0 .5 .5 1.5 .5 .5 1", "out-of-range", "0 0.5 0.5 1 0.5 1 0.75 0.5 1\n"),
        ("0 .1 .1 .3 .3 .3 .1 .1 .3", "polygon-crosses", "0 0.1 0.1 0.3 0.3 0.3 0.1 0.1 0.3\n"),
    ],
)
def test_repairs_are_said_and_done(row, code, repaired):
    labels, issues = read(row, names=("cat", "dog"), class_count=2)
    assert lines(issues) == [(code, 1)] and text(labels) == repaired
    if code in ("row-commas", "row-confidence"):
        assert "'0 0.5 0.5 0.2 0.2'" in issues[0].message


def test_commas_are_repaired_as_separators_or_decimal_commas():
    for row in ("0,0.5,0.5,0.2,0.2", "0 0,5 0,5 0,2 0,2"):
        assert text(read(row)[0]) == BOX


def test_rows_that_were_all_lost_are_not_an_empty_file():
    labels, _ = read("0 0.5 0.5 0.2\n0 nan 1 1 1\n")
    assert labels.annotated and not labels.objects
    for nothing in ("", " \n", "\u00a0\n", "\ufeff\n"):
        labels, issues = read(nothing)
        assert not labels.annotated and not issues


def test_boxes_and_polygons_may_be_in_one_file():
    """YOLOv5 reads the box as two points as soon as one row has more than six columns (#9718)."""
    labels, issues = read("0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.3 0.1 0.3 0.5\n")
    box, polygon = labels.objects
    assert not issues and not box.polygons and box.box == (0.5, 0.5, 0.2, 0.4)
    assert polygon.polygons[0].tolist() == [[0.1, 0.1], [0.3, 0.1], [0.3, 0.5]]
    assert polygon.box == pytest.approx((0.2, 0.3, 0.2, 0.4))


def test_pixels_are_recognized_and_divided_by_the_size():
    labels, issues = read("0 320 240 64 48\n0 100 4 64 0.8\n", size=(640, 480), pixels="centre")
    assert [issue.code for issue in issues] == ["pixel-coordinates"] * 2
    assert "640 x 480" in issues[0].message
    assert labels.objects[0].box == pytest.approx((0.5, 0.5, 0.1, 0.1))


def test_pixels_that_fit_only_as_corners_say_so():
    conventions = set(PIXEL_CONVENTIONS)
    labels, issues = read("0 300 200 620 470\n", size=(640, 480), conventions=conventions, pixels="centre")
    assert conventions == {"corners"} and "corners" in issues[0].message
    assert [issue.code for issue in issues] == ["pixel-coordinates", "pixels-unfit"] and not labels.objects
    for pixels in ("corners", "", None):
        labels, _ = read("0 300 200 620 470\n", size=(640, 480), pixels=pixels)
        assert labels.objects[0].box == pytest.approx((460 / 640, 335 / 480, 320 / 640, 270 / 480))
    read("0 620 460 20 10\n", size=(640, 480), conventions=conventions)
    assert conventions == set(), "no convention fits both"


def test_a_box_or_polygon_in_pixels_may_begin_in_the_corner():
    """Read as relative it would be clipped to the whole image."""
    labels, issues = read("0 0 0 64 48\n0 0 0 64 0 64 48\n", size=(640, 480), pixels="corners")
    assert lines(issues) == [("pixel-coordinates", 1), ("pixel-coordinates", 2)]
    assert labels.objects[0].box == pytest.approx((0.05, 0.05, 0.1, 0.1))
    assert labels.objects[1].polygons[0].tolist() == pytest.approx(np.array([[0, 0], [0.1, 0], [0.1, 0.1]]))


def test_pixels_on_an_image_that_cannot_be_read_are_reported_all_the_same():
    labels, issues = read("0 320 240 64 48\n", size=None)
    assert issues[0].code == "pixel-coordinates" and not labels.objects


def test_a_polygon_with_too_many_corners_is_refused(monkeypatch):
    monkeypatch.setattr(shapes, "MOST_POINTS", 3)
    assert lines(read("0 .1 .1 .2 .1 .2 .2 .1 .2")[1]) == [("polygon-too-long", 1)]


def test_classes_that_count_from_one():
    labels, issues = read("1 .5 .5 .2 .2\n0 .5 .5 .3 .3\n", one_based=True)
    assert text(labels) == BOX and lines(issues) == [("row-class", 2)]


def test_utf16():
    labels, issues = read("0 .5 .5 .2 .2\r\n".encode("utf-16"))
    assert lines(issues) == [("label-utf16", None)] and text(labels) == BOX


CODES = {kind.code for kind in issue_types.YOLO}
values = st.one_of(st.floats(0, 1), st.floats(), st.integers(-3, 2000), st.sampled_from(["", ",", "x", "0,5", "1_0"]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(values, max_size=12), max_size=6), st.sampled_from([" ", "\t", ", ", ";"]))
def test_any_table_ends_in_objects_on_the_image_or_declared_issues(table, separator):
    labels, issues = read("\n".join(separator.join(map(str, row)) for row in table), size=(640, 480), class_count=3)
    assert {issue.code for issue in issues} <= CODES
    for instance in labels.objects:
        assert 0 <= instance.class_index < 3 and all(np.isfinite(instance.box)) and min(instance.box[2:]) > 0
        assert shapes.overshoot(shapes.box_edges(instance.box)) <= 2e-6


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_objects_or_declared_issues(content):
    assert {issue.code for issue in read(content, size=(64, 48), class_count=3)[1]} <= CODES


thousandths = st.integers(-200, 1200).map(lambda number: number / 1000)
tables = st.lists(st.lists(thousandths, min_size=4, max_size=8).filter(lambda row: len(row) % 2 == 0), max_size=5)


@settings(deadline=None, max_examples=100)
@given(tables)
def test_repaired_text_needs_no_further_repair(table):
    once, _ = read("\n".join(" ".join(["0", *map(repr, row)]) for row in table))
    twice, issues = read(text(once))
    # Nine decimals can make two corners or rows one, once; nothing else is left.
    assert {issue.code for issue in issues} <= {"polygon-crosses", "row-duplicate", "polygon-empty"}
    if not issues:
        assert text(read(text(twice))[0]) == text(twice)
