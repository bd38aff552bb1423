# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from fewbit.data.formats import yolo
from fewbit.errors import DataError
from yolo_sets import BOX, check, fill, flat, places, read, split_set


@pytest.mark.parametrize("as_file", [True, False])
def test_data_yaml_path_is_relative_to_the_yaml_file(tmp_path, monkeypatch, as_file):
    """YOLOv5 joins a relative path to its own repository instead."""
    split_set(tmp_path / "set", None)
    yaml = fill(tmp_path, {"set/data.yaml": "path: .\ntrain: images/train\nval: images/val\nnames: [cat]\n"}) / "set"
    monkeypatch.chdir(tmp_path)
    source = read(yaml / "data.yaml" if as_file else yaml)
    assert source.facts["splits"] == {"train": 2, "val": 2} and source.facts["classes"] == ["cat"]
    assert source.facts["layout"] == "data.yaml" and len(source) == 4


def test_data_yaml_in_a_folder_of_its_own(tmp_path):
    split_set(tmp_path, None)
    fill(tmp_path, {"config/my.yaml": "path: ..\ntrain: images/train\nnames: [cat]\n"})
    report = check(tmp_path / "config" / "my.yaml")
    assert report.ok and "path-outside" in report.counts
    assert len(read(tmp_path / "config" / "my.yaml")) == 2


def test_splits_are_a_folder_a_list_file_or_a_list_of_those(tmp_path):
    split_set(tmp_path, "train: [images/train, more.txt]\nval: val.txt\nnames: {0: cat}\n")
    fill(tmp_path, {"images/pool/x.png": None, "labels/pool/x.txt": BOX})
    (tmp_path / "more.txt").write_bytes(b"\xef\xbb\xbf# more\r\n\r\n./images/pool/x.png\r\n")
    (tmp_path / "val.txt").write_text("images/val/val1.png\n  ./images/val/val0.png\n")
    source = read(tmp_path, split="val")
    assert [source.place(i).path for i in range(2)] == ["images/val/val1.png", "images/val/val0.png"]
    assert source.facts["splits"] == {"train": 3, "val": 2} and len(source.get(0)["boxes"]) == 1
    assert check(tmp_path).ok and not check(tmp_path).warnings


def test_list_file_faults_name_their_lines(tmp_path):
    split_set(tmp_path, "train: list.txt\nnames: [cat]\n")
    good = "images/train/train0.png"
    (tmp_path / "list.txt").write_bytes(
        f"{good}\nimages/gone.png\nlabels/train/train0.txt\n".encode() + b"\xff.png\n" + f"{good}\na\0.png\n".encode()
    )
    report = check(tmp_path)
    assert places(report, "image-missing") == ["list.txt:2", "list.txt:6"]
    assert places(report, "list-invalid") == ["list.txt:3", "list.txt:4"]
    assert places(report, "image-twice") == ["list.txt:5"]
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert "list.txt:2" in str(caught.value)
    assert len(read(tmp_path, {"image-missing": "drop", "list-invalid": "drop"})) == 1


def test_an_image_in_the_place_of_a_list_file_is_one_fault(tmp_path):
    split_set(tmp_path, "train: images/train/train0.png\nnames: [cat]\n")
    assert places(check(tmp_path), "list-invalid") == ["images/train/train0.png"]


def test_list_file_and_paths_out_of_the_folder_are_read_and_told(tmp_path):
    fill(tmp_path / "pool", {"images/a.png": None, "labels/a.txt": BOX})
    fill(tmp_path / "set", {"list.txt": f"{tmp_path}/pool/images/a.png\n", "data.yaml": "train: list.txt\nnames: [x]"})
    report = check(tmp_path / "set")
    assert report.ok and places(report, "path-outside") == ["list.txt"]
    assert len(read(tmp_path / "set").get(0)["boxes"]) == 1


def test_a_split_that_holds_the_dataset_itself_is_refused(tmp_path):
    fill(tmp_path / "set", {"images/a.png": None, "labels/a.txt": BOX, "data.yaml": "train: /\nnames: [x]"})
    assert [finding.code for finding in check(tmp_path / "set").errors] == ["split-too-wide", "no-images"]


def test_roboflow_paths_that_lead_one_folder_too_high_are_guessed(tmp_path):
    fill(tmp_path, {"train/images/a.png": None, "train/labels/a.txt": BOX})
    fill(tmp_path, {"data.yaml": "train: ../train/images\nval: ../valid/images\nnames: [cat]\n"})
    report = check(tmp_path)
    assert places(report, "path-guessed") == ["data.yaml"] and places(report, "split-missing") == ["data.yaml"]
    assert "valid/images" in report.errors[0].message
    assert len(read(tmp_path, split="train")) == 1
    with pytest.raises(DataError, match="not there"):
        read(tmp_path)


def test_names_are_a_list_or_numbered_without_gaps(tmp_path):
    split_set(tmp_path, "train: images/train\nnames:\n  0: cat\n  2: dog\n")
    report = check(tmp_path)
    assert [finding.code for finding in report.errors] == ["names-invalid"]
    assert "no name for class 1" in report.errors[0].message and report.errors[0].place.line == 3
    split_set(tmp_path, "train: images/train\nnames: {a: cat}\n")
    assert "names-invalid" in check(tmp_path).counts
    split_set(tmp_path, "train: images/train\nnames: cat\n")
    assert "names-invalid" in check(tmp_path).counts


def test_names_stay_as_they_are_written(tmp_path):
    split_set(tmp_path, "train: images/train\nnames: [no, 007, 1.0, Überfall, null]\n")
    report = check(tmp_path)
    assert report.understood["classes"][:4] == ["no", "007", "1.0", "Überfall"]
    assert "names-invalid" in report.counts


def test_nc_must_equal_the_number_of_names(tmp_path):
    """YOLOv5 overwrites nc in silence."""
    split_set(tmp_path, "train: images/train\nnc: 3\nnames: [cat, dog]\n")
    assert places(check(tmp_path), "yaml-nc") == ["data.yaml:2"]
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert caught.value.code == "yaml-nc"
    split_set(tmp_path, "train: images/train\nnc: 2\nnames: [cat, dog]\n")
    assert check(tmp_path).ok


def test_download_is_reported_and_never_executed(tmp_path):
    """YOLOv5 runs it with exec() or bash."""
    marker = tmp_path / "ran"
    split_set(tmp_path / "set", f"train: images/train\nnames: [cat]\ndownload: |\n  open({str(marker)!r}, 'w')\n")
    report = check(tmp_path / "set")
    read(tmp_path / "set").get(0)
    assert report.ok and places(report, "yaml-download") == ["data.yaml:3"] and not marker.exists()


def test_labels_cache_is_never_read(tmp_path):
    """YOLOv5 loads labels.cache with allow_pickle=True."""

    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    flat(tmp_path / "set", a=BOX)
    (tmp_path / "set" / "labels.cache").write_bytes(pickle.dumps(Trap()))
    assert check(tmp_path / "set").ok and read(tmp_path / "set").get(0) and not (tmp_path / "ran").exists()


def test_yaml_is_strict_utf8_with_the_byte_in_the_message(tmp_path):
    """YOLOv5 opens it with errors="ignore": bad bytes vanish from class names."""
    split_set(tmp_path, b"train: images/train\nnames: [caf\xe9]\n")
    finding = check(tmp_path).errors[0]
    assert finding.code == "yaml-invalid" and finding.place.offset == 31 and "0xe9" in finding.message
    with pytest.raises(DataError):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nnames: *b\n",
        "[" * 100_000,
        "names: !!python/object/apply:os.system ['true']\ntrain: [",
        "just text",
        "",
        "x: " + "y" * (2 << 20),
        "train: images/train\ntrain: images/val\n",
        "? [1, 2]\n: x\ntrain: {a: b}\n",
    ],
    ids=["aliases", "nesting", "tags", "text", "nothing", "huge", "twice", "mapping"],
)
def test_hostile_yaml_is_refused(tmp_path, text):
    split_set(tmp_path, text or " ")
    assert "yaml-invalid" in check(tmp_path).counts


@pytest.mark.parametrize(
    "tagged",
    ["!!python/object/apply:os.system 'touch {mark}'", "!!python/name:os.system", "!mine cat", "!!binary Y2F0"],
)
def test_a_tag_in_the_yaml_is_reported_and_never_followed(tmp_path, tagged):
    mark = tmp_path / "ran"
    split_set(tmp_path / "set", f"train: images/train\nnames: [{tagged.format(mark=mark)}, dog]\n")
    report = check(tmp_path / "set")
    assert places(report, "yaml-tag") == ["data.yaml:2"] and not mark.exists()
    with pytest.raises(DataError):
        read(tmp_path / "set", {"yaml-tag": "raise"})
    (tmp_path / "out").mkdir()
    assert any("[yaml-tag]" in line for line in yolo.fix(tmp_path / "set", tmp_path / "out"))
    assert "!" not in (tmp_path / "out" / "data.yaml").read_text() and not mark.exists()


def test_plain_tags_are_no_fault(tmp_path):
    split_set(tmp_path, "train: !!str images/train\nnames: !!seq [!!str cat, ! dog]\nnc: !!int 2\n")
    report = check(tmp_path)
    assert report.ok and not report.warnings and report.understood["classes"] == ["cat", "dog"]


def test_key_points_are_refused_and_not_read_as_polygons(tmp_path):
    split_set(tmp_path, "train: images/train\nkpt_shape: [17, 2]\nnames: [person]\n")
    assert "yaml-keypoints" in check(tmp_path).counts
