# SPDX-License-Identifier: Apache-2.0
"""Label rows: what each may say, and that a bad one costs nothing but itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.formats._detection import DETECTION_ISSUES
from fewbit.data.formats._yolo_texts import TEXT_ISSUES, RowOptions, format_row, read_labels
from fewbit.data.images import shapes
from fewbit.data.types import Issue


def remedy(kind):
    """What a repair does: whatever keeps most of the row."""
    allowed = (kind.on_error, *kind.actions)
    return "repair" if "repair" in allowed else "drop" if kind.on_error != "keep" else "keep"


def read(content, size=None, **options):
    issues = []

    def issue(kind, message, location):
        issues.append(Issue(kind, message, location))
        return remedy(kind)

    content = content if isinstance(content, bytes) else content.encode()
    return read_labels(content, "labels/a.txt", RowOptions(**options), size, issue), issues


def lines(issues):
    return [(issue.code, issue.location.line) for issue in issues]


def text(labels):
    return "".join(f"{format_row(thing)}\n" for thing in labels.objects)


def test_values_are_separated_by_any_white_space():
    labels, issues = read("0\t0.5  0.5\t0.2 0.2 \r\n\r\n1 .25 .25 1e-1 0.1", class_count=2)
    assert [(thing.class_index, thing.box) for thing in labels.objects] == [
        (0, (0.5, 0.5, 0.2, 0.2)),
        (1, (0.25, 0.25, 0.1, 0.1)),
    ]
    assert not issues


def test_a_class_may_be_a_whole_float():
    labels, issues = read("3.0 0.5 0.5 0.2 0.2\n", class_count=4)
    assert labels.objects[0].class_index == 3 and not issues


@pytest.mark.parametrize("word", ["0.5", "-1", "cat", "nan", "inf", "1e300", "1_0", "٣", "0x1"])
def test_a_class_that_is_no_whole_number_is_an_issue(word):
    labels, issues = read(f"{word} 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.2\n")
    assert lines(issues) == [("row-class", 1)] and len(labels.objects) == 1


def test_a_class_given_by_its_name_is_repaired():
    labels, issues = read("dog 0.5 0.5 0.2 0.2\n", names=("cat", "dog"), class_count=2)
    assert lines(issues) == [("row-class", 1)] and text(labels) == "1 0.5 0.5 0.2 0.2\n"


def test_a_class_beyond_the_names_is_located():
    _, issues = read("0 .5 .5 .2 .2\n2 .5 .5 .3 .3\n", class_count=2)
    assert lines(issues) == [("class-beyond", 2)] and issues[0].location.file == "labels/a.txt"


@pytest.mark.parametrize(
    "written", ["0,0.5,0.5,0.2,0.2", "0, 0.5, 0.5, 0.2, 0.2", "0;0.5;0.5;0.2;0.2", "0 0,5 0,5 0,2 0,2"]
)
def test_commas_are_repaired_as_separators_or_decimal_commas(written):
    labels, issues = read(written)
    assert lines(issues) == [("row-commas", 1)] and "'0 0.5 0.5 0.2 0.2'" in issues[0].message
    assert text(labels) == "0 0.5 0.5 0.2 0.2\n"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 10, 12])
def test_too_few_or_an_even_number_of_values_is_an_issue(count):
    labels, issues = read(" ".join(["0", *["0.5"] * (count - 1)]))
    assert lines(issues) == [("row-count", 1)] and not labels.objects


@pytest.mark.parametrize("sixth", ["0", "0.87", "1", "9.1e-1"])
def test_a_confidence_is_taken_off(sixth):
    labels, issues = read(f"0 0.5 0.5 0.2 0.2 {sixth}\n")
    assert lines(issues) == [("row-confidence", 1)] and "'0 0.5 0.5 0.2 0.2'" in issues[0].message
    assert text(labels) == "0 0.5 0.5 0.2 0.2\n"


@pytest.mark.parametrize("sixth", ["1.5", "-0.1", "nan", "cat", "0_1"])
def test_any_other_sixth_value_costs_the_row(sixth):
    labels, issues = read(f"0 0.5 0.5 0.2 0.2 {sixth}\n")
    assert lines(issues) == [("row-count", 1)] and not labels.objects


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


def test_a_bad_row_costs_nothing_but_itself():
    content = b"0 .5 .5 .2 .2\nrubbish\n0 nan .5 .2 .2\n\xff\xfe bad\n0 .5 .5 -1 .2\n0 1 2\n0 .3 .3 .2 .2\n"
    labels, issues = read(content)
    assert text(labels) == "0 0.5 0.5 0.2 0.2\n0 0.3 0.3 0.2 0.2\n"
    assert sorted(lines(issues), key=lambda line: line[1]) == [
        ("row-count", 2),
        ("row-not-finite", 3),
        ("row-count", 4),
        ("box-empty", 5),
        ("row-count", 6),
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "1e300"])
def test_values_that_are_not_finite_are_an_issue(value):
    labels, issues = read(f"0 0.5 {value} 0.2 0.2")
    assert lines(issues) == [("row-not-finite", 1)] and not labels.objects


@pytest.mark.parametrize("word", ["x", "1_000", "٣", "--1"])
def test_a_value_that_is_no_number_is_an_issue(word):
    assert lines(read(f"0 0.5 {word} 0.2 0.2")[1]) == [("row-number", 1)]


@pytest.mark.parametrize("size", ["0 0.2", "0.2 0", "-0.2 0.2"])
def test_a_box_without_area_is_dropped(size):
    labels, issues = read(f"0 0.5 0.5 {size}")
    assert lines(issues) == [("box-empty", 1)] and not labels.objects


def test_slightly_beyond_the_border_is_clipped_with_a_note():
    labels, issues = read("0 0.5 0.5 1.001 0.2")
    assert lines(issues) == [("out-of-range-slightly", 1)]
    assert labels.objects[0].box == pytest.approx((0.5, 0.5, 1, 0.2))


def test_beyond_the_border_is_clipped_with_a_warning():
    labels, issues = read("0 0.9 0.5 0.4 0.2")
    assert lines(issues) == [("out-of-range", 1)] and text(labels) == "0 0.85 0.5 0.3 0.2\n"


def test_six_decimals_at_the_border_are_left_alone():
    assert not read("0 0.916667 0.5 0.166667 0.2")[1]


def test_a_box_outside_the_image_is_dropped():
    labels, issues = read("0 1.5 0.5 0.2 0.2")
    assert lines(issues) == [("outside-image", 1)] and not labels.objects


def test_pixels_are_recognized_and_divided_by_the_size():
    labels, issues = read("0 320 240 64 48\n0 100 4 64 0.8\n", size=(640, 480))
    assert [issue.code for issue in issues] == ["pixel-coordinates"] * 2
    assert "640 x 480" in issues[0].message
    assert labels.objects[0].box == pytest.approx((0.5, 0.5, 0.1, 0.1))


def test_pixels_that_fit_only_as_corners_say_so():
    labels, issues = read("0 300 200 620 470\n", size=(640, 480))
    assert labels.conventions == {"corners"} and "corners" in issues[0].message
    assert [issue.code for issue in issues] == ["pixel-coordinates", "pixels-unfit"] and not labels.objects
    for pixels in ("corners", None):
        labels, _ = read("0 300 200 620 470\n", size=(640, 480), pixels=pixels)
        assert labels.objects[0].box == pytest.approx((460 / 640, 335 / 480, 320 / 640, 270 / 480))


def test_conventions_that_exclude_each_other_leave_none():
    labels, _ = read("0 300 200 620 470\n0 20 15 38 28\n0 620 460 20 10\n", size=(640, 480))
    assert labels.conventions == set()


def test_a_box_in_pixels_may_begin_in_the_corner():
    """Read as relative it would be clipped to the whole image."""
    labels, issues = read("0 0 0 64 48\n", size=(640, 480), pixels="corners")
    assert lines(issues) == [("pixel-coordinates", 1)]
    assert labels.objects[0].box == pytest.approx((0.05, 0.05, 0.1, 0.1))


def test_a_polygon_in_pixels_is_recognized():
    labels, issues = read("0 0 0 64 0 64 48\n", size=(640, 480))
    assert lines(issues) == [("pixel-coordinates", 1)]
    assert labels.objects[0].polygons[0].tolist() == pytest.approx(np.array([[0, 0], [0.1, 0], [0.1, 0.1]]))


def test_pixels_on_an_image_that_cannot_be_read_are_reported_all_the_same():
    labels, issues = read("0 320 240 64 48\n", size=None)
    assert issues[0].code == "pixel-coordinates" and not labels.objects


def test_duplicate_rows_are_dropped():
    labels, issues = read("0 .5 .5 .2 .2\n1 .5 .5 .2 .2\n0 0.50 0.5 0.2 0.2\n")
    assert lines(issues) == [("row-duplicate", 3)] and [thing.class_index for thing in labels.objects] == [0, 1]


def test_duplicate_polygons_are_dropped():
    labels, issues = read("0 .1 .1 .2 .1 .2 .2\n0 .5 .5 .2 .2\n0 .1 .1 .2 .1 .2 .2\n")
    assert lines(issues) == [("row-duplicate", 3)] and len(labels.objects) == 2


def test_repeated_and_closing_corners_go():
    labels, issues = read("0 .1 .1 .3 .1 .3 .1 .3 .3 .1 .1")
    assert not issues and labels.objects[0].polygons[0].tolist() == [[0.1, 0.1], [0.3, 0.1], [0.3, 0.3]]


def test_a_polygon_that_crosses_itself_is_kept_with_a_warning():
    labels, issues = read("0 .1 .1 .3 .3 .3 .1 .1 .3")
    assert lines(issues) == [("polygon-crosses", 1)] and len(labels.objects) == 1


@pytest.mark.parametrize("row", ["0 .1 .1 .2 .2 .3 .3", "0 .1 .1 .1 .1 .1 .1", "0 .1 .1 .2 .1 .1 .1 .2 .1"])
def test_a_polygon_without_area_is_dropped(row):
    labels, issues = read(row)
    assert lines(issues) == [("polygon-empty", 1)] and not labels.objects


def test_a_polygon_partly_outside_is_clipped():
    labels, issues = read("0 .5 .5 1.5 .5 .5 1")
    assert lines(issues) == [("out-of-range", 1)]
    assert labels.objects[0].polygons[0].tolist() == [[0.5, 0.5], [1, 0.5], [1, 0.75], [0.5, 1]]
    assert read("0 1.5 .5 1.6 .5 1.5 .9")[1][0].code == "outside-image"


def test_a_polygon_with_too_many_corners_is_refused(monkeypatch):
    monkeypatch.setattr(shapes, "MOST_POINTS", 3)
    assert lines(read("0 .1 .1 .2 .1 .2 .2 .1 .2")[1]) == [("polygon-too-long", 1)]


def test_classes_that_count_from_one():
    labels, issues = read("1 .5 .5 .2 .2\n0 .5 .5 .3 .3\n", one_based=True)
    assert text(labels) == "0 0.5 0.5 0.2 0.2\n" and lines(issues) == [("row-class", 2)]


def test_byte_order_marks_and_utf16():
    assert len(read(b"\xef\xbb\xbf0 .5 .5 .2 .2")[0].objects) == 1
    labels, issues = read("0 .5 .5 .2 .2\r\n".encode("utf-16"))
    assert lines(issues) == [("label-utf16", None)] and len(labels.objects) == 1


CODES = {kind.code for kind in (*TEXT_ISSUES, *DETECTION_ISSUES)}
values = st.one_of(st.floats(0, 1), st.floats(), st.integers(-3, 2000), st.sampled_from(["", ",", "x", "0,5", "1_0"]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(values, max_size=12), max_size=6), st.sampled_from([" ", "\t", ", ", ";"]))
def test_any_table_ends_in_objects_on_the_image_or_declared_issues(table, separator):
    labels, issues = read("\n".join(separator.join(map(str, row)) for row in table), size=(640, 480), class_count=3)
    assert {issue.code for issue in issues} <= CODES
    for thing in labels.objects:
        assert 0 <= thing.class_index < 3 and all(np.isfinite(thing.box)) and min(thing.box[2:]) > 0
        assert shapes.overshoot(shapes.box_edges(thing.box)) <= 2e-6


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_objects_or_declared_issues(content):
    assert {issue.code for issue in read(content, size=(64, 48), class_count=3)[1]} <= CODES


thousandths = st.integers(-200, 1200).map(lambda number: number / 1000)
rows = st.lists(thousandths, min_size=4, max_size=8).filter(lambda row: len(row) % 2 == 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(rows, max_size=5))
def test_repaired_text_needs_no_further_repair(table):
    once, _ = read("\n".join(" ".join(["0", *map(repr, row)]) for row in table))
    twice, issues = read(text(once))
    # Nine decimals can make two corners or rows one, once; nothing else is left.
    assert {issue.code for issue in issues} <= {"polygon-crosses", "row-duplicate", "polygon-empty"}
    if not issues:
        assert text(read(text(twice))[0]) == text(twice)
