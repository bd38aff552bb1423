# SPDX-License-Identifier: Apache-2.0
"""Rules of YOLO label files, and defects of other readers, asked through the public verbs alone."""

import numpy as np
import pytest
from PIL import Image

import fewbit
from yolo_sets import BOX, fill, flat, tree


def found(path, code):
    return [str(finding.place) for finding in fewbit.check_dataset(path).findings if finding.code == code]


def test_rule_parts_of_one_object_are_rows_of_their_own(tmp_path):
    parts = "1 0 0 0.4 0 0.4 0.4\n1 0.6 0.6 1 0.6 1 1\n"
    sample = fewbit.open_dataset(flat(tmp_path, a=parts))[0]
    assert sample["classes"].tolist() == [1, 1] and len(sample["polygons"]) == len(sample["masks"]) == 2
    assert not (sample["masks"][0] & sample["masks"][1]).any()


def test_rule_the_box_of_a_polygon_is_its_extent_and_both_are_kept(tmp_path):
    sample = fewbit.open_dataset(flat(tmp_path, a="0 0.2 0.5 0.6 0.1 0.8 0.9\n"))[0]
    corners = sample["polygons"][0]
    low, high = corners.min(0), corners.max(0)
    assert sample["boxes"][0] == pytest.approx([*(low + high) / 2, *(high - low)])


def test_rule_a_polygon_closes_by_itself(tmp_path):
    ring = "0 0.2 0.2 0.8 0.2 0.8 0.8 0.2 0.8"
    dataset = fewbit.open_dataset(flat(tmp_path, a=f"{ring}\n", b=f"{ring} 0.2 0.2\n"), task="segmentation")
    assert np.array_equal(dataset[0]["masks"], dataset[1]["masks"]) and dataset[0]["masks"].any()


def test_defect_yolov5_256_a_file_name_with_images_in_it(tmp_path):
    fill(tmp_path, {"images/my_images_1.png": None, "labels/my_images_1.txt": BOX})
    assert len(fewbit.open_dataset(tmp_path)[0]["boxes"]) == 1


def test_defect_yolov5_145_commas_are_named_and_the_row_is_shown_as_it_should_be(tmp_path):
    report = fewbit.check_dataset(flat(tmp_path, a="0,0.5,0.5,0.2,0.2\n"))
    assert [str(finding.place) for finding in report.errors] == ["labels/a.txt:1"]
    assert "0 0.5 0.5 0.2 0.2" in report.errors[0].fix


def test_defect_yolov5_9718_one_polygon_does_not_make_points_of_the_boxes(tmp_path):
    sample = fewbit.open_dataset(flat(tmp_path, a="1 0.1 0.1 0.9 0.1 0.9 0.9\n0 0.5 0.5 0.2 0.4\n"))[0]
    assert sample["polygons"][1] is None and sample["boxes"][1] == pytest.approx([0.5, 0.5, 0.2, 0.4])


def test_defect_yolov5_5373_images_without_objects_are_listed_by_name(tmp_path):
    path = flat(tmp_path, a=BOX, empty=" \n", missing=None)
    assert found(path, "label-empty") == ["images/empty.png"]
    assert found(path, "label-missing") == ["images/missing.png"]


@pytest.mark.parametrize("bad", ["0 0.95 0.5 0.2 0.2", "0 0.5 0.5 -0.1 0.2", "0 nan 0.5 0.2 0.2", "0 0.5 0.5 0 0.2"])
def test_defect_yolov5_10058_and_2785_one_bad_box_does_not_cost_the_image(tmp_path, bad):
    dataset = fewbit.open_dataset(flat(tmp_path, a=f"{bad}\n{BOX}"))
    assert len(dataset) == 1 and dataset[0]["boxes"][-1] == pytest.approx([0.5, 0.5, 0.2, 0.2])


def test_defect_yolov5_never_checks_edges_of_a_box_whose_centre_is_inside(tmp_path):
    x, y, width, height = fewbit.open_dataset(flat(tmp_path, a="0 0.9 0.5 0.4 0.2\n"))[0]["boxes"][0]
    assert (x - width / 2, x + width / 2, y, height) == pytest.approx((0.7, 1, 0.5, 0.2))


def test_defect_yolov5_4370_and_7692_a_class_beyond_nc_names_file_and_line(tmp_path):
    path = flat(tmp_path, a=BOX, b=f"{BOX}7 0.5 0.5 0.1 0.1\n")
    assert found(path, "class-beyond") == ["labels/b.txt:2"]


def test_defect_old_yolov5_crashes_on_duplicate_polygons(tmp_path):
    row = "0 0.1 0.1 0.9 0.1 0.9 0.9\n"
    assert len(fewbit.open_dataset(flat(tmp_path, a=row * 3))[0]["polygons"]) == 1


def test_defect_yolov5_joins_a_relative_path_to_its_own_folder(tmp_path, monkeypatch):
    fill(tmp_path / "set", {"images/a.png": None, "labels/a.txt": BOX})
    fill(tmp_path / "conf", {"data.yaml": "path: ../set\ntrain: images\nnames: [cat]\n"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(fewbit.open_dataset("../conf/data.yaml")) == 1


def test_defect_yolov5_rewrites_a_jpeg_without_its_end(tmp_path):
    path = flat(tmp_path, a=BOX)
    Image.new("RGB", (32, 32), (9, 99, 199)).save(path / "images/b.jpg")
    (path / "images/b.jpg").write_bytes((path / "images/b.jpg").read_bytes()[:-2])
    (path / "labels/b.txt").write_text(BOX)
    before = tree(path)
    fewbit.check_dataset(path)
    assert len(list(fewbit.open_dataset(path, policy={"image-truncated": "drop"}))) == 1
    assert tree(path) == before


def test_defect_yolov5_overwrites_nc(tmp_path):
    path = fill(
        tmp_path, {"images/a.png": None, "labels/a.txt": BOX, "data.yaml": "train: images\nnc: 3\nnames: [a]\n"}
    )
    assert found(path, "yaml-nc") == ["data.yaml:2"]


def test_defect_yolov5_loses_bad_bytes_from_class_names(tmp_path):
    path = fill(tmp_path, {"images/a.png": None, "labels/a.txt": BOX})
    (path / "data.yaml").write_bytes(b"train: images\nnames: [caf\xe9]\n")
    assert not fewbit.check_dataset(path).ok


def test_defect_yolov5_runs_what_download_says(tmp_path):
    mark = tmp_path / "was_run"
    for command in (f"touch {mark}", f"import pathlib; pathlib.Path({str(mark)!r}).touch()"):
        yaml = f'train: images\nnames: [cat]\ndownload: "{command}"\n'
        path = fill(tmp_path / "set", {"images/a.png": None, "labels/a.txt": BOX, "data.yaml": yaml})
        assert found(path, "yaml-download") == ["data.yaml:3"] and len(fewbit.open_dataset(path)) == 1
        assert not mark.exists()


def test_rule_zero_labels_found_is_an_error_with_the_path_tried(tmp_path):
    path = fill(tmp_path, {"images/a.png": None, "images/b.png": None})
    (error,) = fewbit.check_dataset(path).errors
    assert error.code == "labels-none" and str(tmp_path / "labels" / "a.txt") in error.message
    with pytest.raises(fewbit.errors.DataError, match=r"labels/a\.txt"):
        fewbit.open_dataset(path)


def test_rule_label_files_that_are_all_empty_are_a_warning(tmp_path):
    report = fewbit.check_dataset(flat(tmp_path, a="", b=" \n", c=None))
    assert report.ok and [finding.code for finding in report.warnings] == ["labels-all-empty"]
    assert "every label file is empty, 2 of 2" in report.warnings[0].message
    assert len(fewbit.open_dataset(tmp_path)) == 3
