# SPDX-License-Identifier: Apache-2.0
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.boxes import labels, pixels, shapes
from fewbit.data.boxes.fault import remedy
from fewbit.data.boxes.labels import read_labels
from fewbit.data.boxes.rows import Rules, parse
from fewbit.data.walk import Entry


def going_on(fault):
    return remedy(labels.CODES[fault.code])


def read(tmp_path, content, size=None, **rules):
    """The shapes of a label file, and the (code, line) of every fault met."""
    path = tmp_path / "a.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    met = []

    def decide(fault):
        met.append(fault)
        return going_on(fault)

    found = read_labels(Entry("labels/a.txt", str(path)), Rules(**rules), decide, lambda: size)
    return found, met


def codes(met):
    return [(fault.code, fault.place.line) for fault in met]


def test_row_is_whitespace_separated_and_tabs_are_fine(tmp_path):
    found, met = read(tmp_path, "0\t0.5  0.5\t0.2 0.2 \r\n\r\n1 .25 .25 1e-1 0.1", nc=2)
    assert [(s.cls, s.box) for s in found.shapes] == [(0, (0.5, 0.5, 0.2, 0.2)), (1, (0.25, 0.25, 0.1, 0.1))]
    assert not met and not found.changed


def test_class_accepts_a_whole_float(tmp_path):
    found, met = read(tmp_path, "3.0 0.5 0.5 0.2 0.2\n", nc=4)
    assert found.shapes[0].cls == 3 and not met


@pytest.mark.parametrize("word", ["0.5", "-1", "cat", "nan", "inf", "1e300", "1_0", "٣", "0x1"])
def test_class_that_is_not_a_whole_number_is_named(tmp_path, word):
    found, met = read(tmp_path, f"{word} 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.2\n")
    assert codes(met) == [("row-class", 1)] and len(found.shapes) == 1


def test_class_written_as_a_known_name_is_repaired(tmp_path):
    found, met = read(tmp_path, "dog 0.5 0.5 0.2 0.2\n", names=("cat", "dog"), nc=2)
    assert codes(met) == [("class-by-name", 1)] and found.text() == "1 0.5 0.5 0.2 0.2\n"


def test_class_id_beyond_nc_names_file_and_line(tmp_path):
    _, met = read(tmp_path, "0 .5 .5 .2 .2\n2 .5 .5 .3 .3\n", nc=2)
    assert codes(met) == [("class-beyond", 2)] and met[0].place.path == "labels/a.txt"


@pytest.mark.parametrize(
    "written", ["0,0.5,0.5,0.2,0.2", "0, 0.5, 0.5, 0.2, 0.2", "0;0.5;0.5;0.2;0.2", "0 0,5 0,5 0,2 0,2"]
)
def test_comma_separated_row_is_a_named_error_with_its_fix(tmp_path, written):
    found, met = read(tmp_path, written)
    assert codes(met) == [("row-commas", 1)] and "0 0.5 0.5 0.2 0.2" in met[0].fix
    assert found.text() == "0 0.5 0.5 0.2 0.2\n" and found.changed


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 10, 12])
def test_too_few_or_an_even_count_of_values_is_an_error(tmp_path, count):
    found, met = read(tmp_path, " ".join(["0", *["0.5"] * (count - 1)]))
    assert codes(met) == [("row-count", 1)] and not found.shapes


@pytest.mark.parametrize("sixth", ["0", "0.87", "1", "9.1e-1"])
def test_a_sixth_value_like_a_confidence_is_an_error_whose_repair_keeps_the_box(tmp_path, sixth):
    found, met = read(tmp_path, f"0 0.5 0.5 0.2 0.2 {sixth}\n")
    assert codes(met) == [("row-confidence", 1)] and "'0 0.5 0.5 0.2 0.2'" in met[0].fix
    assert found.text() == "0 0.5 0.5 0.2 0.2\n" and found.changed


@pytest.mark.parametrize("sixth", ["1.5", "-0.1", "nan", "cat", "0_1"])
def test_any_other_sixth_value_is_an_error_that_costs_the_row(tmp_path, sixth):
    found, met = read(tmp_path, f"0 0.5 0.5 0.2 0.2 {sixth}\n")
    assert codes(met) == [("row-count", 1)] and not found.shapes


def test_rows_that_are_all_dropped_are_not_an_empty_file(tmp_path):
    assert read(tmp_path, "0 0.5 0.5 0.2\n0 nan 1 1 1\n")[0].lost
    for nothing in ("", " \n", "\u00a0\n", "\ufeff\n"):
        found, met = read(tmp_path, nothing)
        assert found.empty and not found.lost and not met


def test_box_and_polygon_rows_may_stand_in_one_file(tmp_path):
    """YOLOv5 reads the box as two points of a polygon as soon as one row has more than six columns (#9718)."""
    found, met = read(tmp_path, "0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.3 0.1 0.3 0.5\n")
    box, outline = found.shapes
    assert not met
    assert box.polygon is None and box.box == (0.5, 0.5, 0.2, 0.4)
    assert outline.polygon.tolist() == [[0.1, 0.1], [0.3, 0.1], [0.3, 0.5]]
    assert outline.box == pytest.approx((0.2, 0.3, 0.2, 0.4))


def test_one_bad_row_never_throws_away_the_others(tmp_path):
    content = b"0 .5 .5 .2 .2\nrubbish\n0 nan .5 .2 .2\n\xff\xfe bad\n0 .5 .5 -1 .2\n0 1 2\n0 .3 .3 .2 .2\n"
    found, met = read(tmp_path, content)
    assert [s.place.line for s in found.shapes] == [1, 7]
    expected = ["row-count", "row-not-finite", "row-encoding", "row-count", "box-empty"]
    assert [fault.code for fault in met] == expected
    assert met[2].place.offset == content.index(b"\xff")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "1e300"])
def test_nan_and_inf_drop_the_row_with_a_warning(tmp_path, value):
    found, met = read(tmp_path, f"0 0.5 {value} 0.2 0.2")
    assert codes(met) == [("row-not-finite", 1)] and not found.shapes


@pytest.mark.parametrize("size", ["0 0.2", "0.2 0", "-0.2 0.2"])
def test_negative_or_zero_size_drops_the_row_with_a_warning(tmp_path, size):
    found, met = read(tmp_path, f"0 0.5 0.5 {size}")
    assert codes(met) == [("box-empty", 1)] and not found.shapes


def test_slightly_out_of_range_is_clipped_as_information(tmp_path):
    found, met = read(tmp_path, "0 0.5 0.5 1.001 0.2")
    assert codes(met) == [("out-of-range-slightly", 1)] and found.shapes[0].box == pytest.approx((0.5, 0.5, 1, 0.2))


def test_centre_inside_but_edges_out_is_clipped(tmp_path):
    found, met = read(tmp_path, "0 0.9 0.5 0.4 0.2")
    assert codes(met) == [("out-of-range", 1)] and found.shapes[0].box == pytest.approx((0.85, 0.5, 0.3, 0.2))
    assert found.text() == "0 0.85 0.5 0.3 0.2\n"


def test_six_decimals_at_the_border_are_left_alone(tmp_path):
    found, met = read(tmp_path, "0 0.916667 0.5 0.166667 0.2")
    assert not met and not found.changed


def test_box_wholly_outside_is_dropped(tmp_path):
    found, met = read(tmp_path, "0 1.5 0.5 0.2 0.2")
    assert codes(met) == [("outside-image", 1)] and not found.shapes


@settings(deadline=None, max_examples=200)
@given(*[st.floats(-3, 3) for _ in range(2)], *[st.floats(0.01, 3) for _ in range(2)])
def test_clip_of_a_box_is_interval_arithmetic(x, y, width, height):
    if pixels.look_like_pixels((x, y, width, height)):
        return
    (values,) = parse(f"0 {x!r} {y!r} {width!r} {height!r}".encode(), "a.txt", Rules(), going_on)
    made = shapes.shape(values, going_on)
    spans = [(max(0, c - s / 2), min(1, c + s / 2)) for c, s in ((x, width), (y, height))]
    if any(high - low <= shapes.ROUNDING for low, high in spans):
        assert made is None
        return
    for axis, (low, high) in enumerate(spans):
        assert math.isclose(made.box[axis] - made.box[axis + 2] / 2, low, abs_tol=2e-6)
        assert math.isclose(made.box[axis] + made.box[axis + 2] / 2, high, abs_tol=2e-6)


def test_values_all_above_one_look_like_pixels_and_the_fix_is_inferred(tmp_path):
    found, met = read(tmp_path, "0 320 240 64 48\n0 100 4 64 0.8\n", size=(640, 480))
    assert [fault.code for fault in met] == ["pixel-coordinates"] * 2
    assert "640 wide and 480 high" in met[0].message and "0 0.5 0.5 0.1 0.1" in met[0].fix
    assert found.shapes[0].box == pytest.approx((0.5, 0.5, 0.1, 0.1))


def test_pixels_that_only_fit_as_corners_say_so(tmp_path):
    found, met = read(tmp_path, "0 300 200 620 470\n", size=(640, 480))
    assert found.readings == {"corners"} and "corners" in met[0].fix
    assert [fault.code for fault in met] == ["pixel-coordinates", "pixels-unfit"] and not found.shapes
    found, _ = read(tmp_path, "0 300 200 620 470\n", size=(640, 480), pixels="corners")
    assert found.shapes[0].box == pytest.approx((460 / 640, 335 / 480, 320 / 640, 270 / 480))


def test_a_box_in_pixels_that_begins_in_the_corner_is_recognised(tmp_path):
    """Read as shares, it would be cut to the whole image."""
    found, met = read(tmp_path, "0 0 0 64 48\n", size=(640, 480), pixels="corners")
    assert codes(met) == [("pixel-coordinates", 1)]
    assert found.shapes[0].box == pytest.approx((0.05, 0.05, 0.1, 0.1))


def test_polygon_in_pixels_is_recognised(tmp_path):
    found, met = read(tmp_path, "0 0 0 64 0 64 48\n", size=(640, 480))
    assert codes(met) == [("pixel-coordinates", 1)]
    assert found.shapes[0].polygon.tolist() == pytest.approx(np.array([[0, 0], [0.1, 0], [0.1, 0.1]]))


def test_pixels_without_a_readable_image_are_reported_all_the_same(tmp_path):
    found, met = read(tmp_path, "0 320 240 64 48\n", size=None)
    assert met[0].code == "pixel-coordinates" and not found.shapes


def test_duplicate_rows_are_removed_with_a_warning(tmp_path):
    found, met = read(tmp_path, "0 .5 .5 .2 .2\n1 .5 .5 .2 .2\n0 0.50 0.5 0.2 0.2\n")
    assert codes(met) == [("row-duplicate", 3)] and [s.cls for s in found.shapes] == [0, 1]
    assert found.changed


def test_duplicate_polygons_do_not_crash(tmp_path):
    """Older YOLOv5 versions crash on the segments of duplicate rows."""
    found, met = read(tmp_path, "0 .1 .1 .2 .1 .2 .2\n0 .5 .5 .2 .2\n0 .1 .1 .2 .1 .2 .2\n")
    assert codes(met) == [("row-duplicate", 3)] and len(found.shapes) == 2


def test_duplicates_after_rounding_are_optional(tmp_path):
    content = "0 .5 .5 .2 .2\n0 .5001 .5 .2 .2\n"
    assert len(read(tmp_path, content)[0].shapes) == 2
    assert len(read(tmp_path, content, duplicate_digits=3)[0].shapes) == 1


def test_polygon_is_closed_and_repeats_are_dropped(tmp_path):
    found, met = read(tmp_path, "0 .1 .1 .3 .1 .3 .1 .3 .3 .1 .1")
    assert codes(met) == [("polygon-repeats", 1)]
    assert found.shapes[0].polygon.tolist() == [[0.1, 0.1], [0.3, 0.1], [0.3, 0.3]]
    _, met = read(tmp_path, "0 .1 .1 .3 .1 .3 .3 .1 .1")
    assert not met


def test_polygon_that_crosses_itself_is_a_warning_and_kept(tmp_path):
    found, met = read(tmp_path, "0 .1 .1 .3 .3 .3 .1 .1 .3")
    assert codes(met) == [("polygon-crosses", 1)] and len(found.shapes) == 1 and not found.changed


@pytest.mark.parametrize("row", ["0 .1 .1 .2 .2 .3 .3", "0 .1 .1 .1 .1 .1 .1", "0 .1 .1 .2 .1 .1 .1 .2 .1"])
def test_polygon_without_area_is_dropped(tmp_path, row):
    found, met = read(tmp_path, row)
    assert codes(met) == [("polygon-empty", 1)] and not found.shapes


def test_polygon_partly_outside_is_cut_at_the_border(tmp_path):
    found, met = read(tmp_path, "0 .5 .5 1.5 .5 .5 1")
    assert codes(met) == [("out-of-range", 1)]
    assert found.shapes[0].polygon.tolist() == [[0.5, 0.5], [1, 0.5], [1, 0.75], [0.5, 1]]
    assert read(tmp_path, "0 1.5 .5 1.6 .5 1.5 .9")[1][0].code == "outside-image"


def test_polygon_with_too_many_points_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "MOST_POINTS", 3)
    assert codes(read(tmp_path, "0 .1 .1 .2 .1 .2 .2 .1 .2")[1]) == [("polygon-too-long", 1)]


def test_classes_said_to_count_from_one(tmp_path):
    found, met = read(tmp_path, "1 .5 .5 .2 .2\n0 .5 .5 .3 .3\n", one_based=True)
    assert found.text() == "0 0.5 0.5 0.2 0.2\n" and codes(met) == [("row-class", 2)]


def test_label_file_with_bom_and_in_utf16(tmp_path):
    assert len(read(tmp_path, b"\xef\xbb\xbf0 .5 .5 .2 .2")[0].shapes) == 1
    found, met = read(tmp_path, "0 .5 .5 .2 .2\r\n".encode("utf-16"))
    assert codes(met) == [("label-utf16", None)] and found.changed and len(found.shapes) == 1


def test_label_file_that_is_no_regular_file_is_not_read(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    found = read_labels(Entry("pipe", str(tmp_path / "pipe")), Rules(), lambda fault: "keep")
    assert found.unreadable


@pytest.mark.parametrize("row", ["0 0.5 0.5 0.2 0.2 " + 40 * " ", "a", "", "0 0 0 1 0 1 1"])
def test_label_file_beyond_any_real_one_is_a_finding_and_costs_nothing(tmp_path, row):
    content = f"{row}\n" * (labels.LABEL_BYTES // (len(row) + 1) + 1)
    tracemalloc.start()
    found, met = read(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        found.unreadable and codes(met) == [("label-unreadable", None)] and f"{labels.LABEL_BYTES:,}" in met[0].message
    )
    assert peak < 3 * labels.LABEL_BYTES
    found, met = read(tmp_path, f"{row[:1]}\n" * (labels.LABEL_ROWS + 1))
    assert found.unreadable and f"more than {labels.LABEL_ROWS:,} rows" in met[0].message


numbers = st.one_of(st.floats(0, 1), st.floats(), st.integers(-3, 2000), st.sampled_from(["", ",", "x", "0,5", "1_0"]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(numbers, max_size=12), max_size=6), st.sampled_from([" ", "\t", ", ", ";"]))
def test_parser_ends_in_shapes_on_the_image_or_in_declared_faults(tmp_path_factory, table, separator):
    content = "\n".join(separator.join(map(str, row)) for row in table)
    found, met = read(tmp_path_factory.mktemp("l"), content, size=(640, 480), nc=3)
    assert {fault.code for fault in met} <= set(labels.CODES)
    for made in found.shapes:
        assert 0 <= made.cls < 3 and all(np.isfinite(made.box)) and min(made.box[2:]) > 0
        left, top = made.box[0] - made.box[2] / 2, made.box[1] - made.box[3] / 2
        assert min(left, top) >= -2e-6 and max(left + made.box[2], top + made.box[3]) <= 1 + 2e-6


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_parser_takes_any_bytes(tmp_path_factory, content):
    found, met = read(tmp_path_factory.mktemp("b"), content, size=(64, 48), nc=3)
    assert {fault.code for fault in met} <= set(labels.CODES) and isinstance(found.shapes, list)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.floats(-0.2, 1.2), min_size=4, max_size=8).filter(lambda row: len(row) % 2 == 0), max_size=5)
)
def test_repaired_text_reads_back_without_anything_left_to_repair(tmp_path_factory, table):
    content = "\n".join(" ".join(["0", *map(repr, row)]) for row in table)
    folder = tmp_path_factory.mktemp("r")
    once, _ = read(folder, content)
    twice, met = read(folder, once.text())
    # Nine decimals can make two neighbouring points or rows one; nothing else is left.
    assert {fault.code for fault in met} <= {"polygon-crosses", "polygon-repeats", "row-duplicate", "polygon-empty"}
    if not met:
        assert [s.text for s in twice.shapes] == [s.text for s in once.shapes]
