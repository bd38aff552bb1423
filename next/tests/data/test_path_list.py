# SPDX-License-Identifier: Apache-2.0
"""Lists of image paths with labels, as Caffe has them."""

import shutil

import pytest

from detection_sets import check, codes, fill, places, read, scan
from fewbit.data.files import Folder
from fewbit.data.formats import path_list
from fewbit.data.opening import choose_format
from fewbit.errors import DataError, UsageError


def samples(source):
    return [(source.location(index).file, source[index]["label"]) for index in range(len(source))]


def listed(folder, **lists):
    """Four images, and lists by their names."""
    texts = {f"{name}.txt": text for name, text in lists.items()}
    return fill(folder, {f"images/{name}.png": None for name in "abc"} | {"images/my cat.png": None} | texts)


def test_labels_are_numbers_and_splits_are_in_the_names(tmp_path):
    listed(tmp_path, val="images/my cat.png 2\n", train="images/a.png 3\r\n\r\n./images\\b.png\t0\n")
    assert choose_format(Folder(tmp_path))[0].name == "path_list"
    source, report = scan(tmp_path, "path_list", depth="full")
    assert samples(source) == [("images/a.png", 3), ("images/b.png", 0), ("images/my cat.png", 2)]
    assert source.facts["classes"] == ["0", "1", "2", "3"] and source.facts["splits"] == {"train": 2, "val": 1}
    assert report.ok and source.strata() == ["3", "0", "2"]
    assert samples(read(tmp_path, "path_list", split="val")) == [("images/my cat.png", 2)]
    with pytest.raises(UsageError):
        read(tmp_path, "path_list", split="test")


def test_a_list_alone_in_a_folder_of_its_own_or_in_an_archive(tmp_path):
    listed(tmp_path / "set", list="images/a.png cat\nimages/b.png dog\n")
    assert samples(read(tmp_path / "set" / "list.txt", None)) == [("images/a.png", 0), ("images/b.png", 1)]
    fill(tmp_path / "other", {"lists/train.txt": "../images/a.png 1\nimages/b.png 0\n", "images/a.png": None})
    fill(tmp_path / "other", {"images/b.png": None})
    assert samples(read(tmp_path / "other", None)) == [("images/a.png", 1), ("images/b.png", 0)]
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "set")
    assert len(read(archive, None)) == 2


def test_class_names_may_be_given(tmp_path):
    listed(tmp_path, train="images/a.png 1\nimages/b.png 0\n")
    source = read(tmp_path, "path_list", classes="cat,dog")
    assert source.strata() == ["dog", "cat"] and source[0]["label"] == 1
    with pytest.raises(DataError) as caught:
        read(tmp_path, "path_list", classes="cat")
    assert caught.value.code == "class-unknown" and "train.txt:1" in str(caught.value)


def test_wrong_lines_are_located_and_the_rest_is_read(tmp_path):
    good = "images/a.png 0\nimages/b.png 1\nimages/c.png 1\nimages/my cat.png 0\n"
    listed(tmp_path, train=f"{good}images/gone.png 1\nwhat\nimages/a.png 1\nimages/b.png 1\n")
    report = check(tmp_path, "path_list")
    assert {issue.code: str(issue.location) for issue in report.issues} == {
        "image-missing": "train.txt:5", "list-invalid": "train.txt:6", "duplicate-across-classes": "train.txt:7",
        "duplicate": "train.txt:8",
    }  # fmt: skip
    assert len(read(tmp_path, "path_list", on_error="drop")) == 6
    fill(tmp_path, {"val.txt": "images/c.png 1\n"})
    assert places(check(tmp_path, "path_list"), "duplicate-across-splits") == ["val.txt:1"]


def test_damaged_images_are_found(tmp_path):
    listed(tmp_path, train="images/a.png 0\nimages/b.png 1\n")
    fill(tmp_path, {"images/a.png": b"", "images/b.png": (tmp_path / "images/b.png").read_bytes()[:-30]})
    assert codes(check(tmp_path, "path_list").errors) == ["image-empty", "image-truncated"]
    assert codes(scan(tmp_path, "path_list")[1].errors) == ["image-empty"]


@pytest.mark.parametrize("text", ["images/a.png\nimages/b.png\n", "0 .5 .5 .2 .2\n", "a cat\n", "x.png 1\n", ""])
def test_other_texts_are_no_lists(tmp_path, text):
    assert path_list.detect(Folder(listed(tmp_path, notes=text))) is None


def test_one_word_among_numbers_is_an_issue(tmp_path):
    images = {f"images/{number}.png": None for number in range(11)}
    lines = [f"images/{number}.png {number % 3 if number else 'x'}\n" for number in range(11)]
    report = check(fill(tmp_path, {**images, "train.txt": "".join(lines)}), "path_list")
    assert [(issue.code, str(issue.location)) for issue in report.issues] == [("class-unknown", "train.txt:1")]
    assert report.facts["classes"] == ["0", "1", "2"]
