# SPDX-License-Identifier: Apache-2.0
"""Repaired copies of YOLO datasets: what they hold, and that every change is said."""

import random

import pytest

from data.mutation import mutate_bytes
from detection_sets import BOX, OUTLINE, check, fill, flat, png, read, scan, tree
from fewbit.data.formats import yolo
from fewbit.data.types import SampleError
from fewbit.errors import DataError


@pytest.fixture
def fixed(tmp_path):
    """Writes a repaired copy of a folder, which must be without errors; returns its files and the lines of changes."""

    def fix(data, **options):
        before, out = tree(data), tmp_path / "repaired"
        out.mkdir()
        changes = yolo.write(scan(data, depth="full", on_error="repair", **options)[0], out)
        assert tree(data) == before and not check(out).errors
        return tree(out), changes

    return fix


def boxes(files, name):
    return [[float(value) for value in row.split()] for row in files[name].decode().splitlines()]


def test_a_clean_dataset_is_copied_byte_for_byte(tmp_path, fixed):
    data = fill(flat(tmp_path / "set", a=BOX, b=OUTLINE, c=None, d=""), {"README.md": "hello"})
    assert fixed(data) == (tree(data), [])


REPAIRS = {
    "0 0.9 0.5 0.4 0.2": "0 0.85 0.5 0.3 0.2",  # reaches beyond the border
    "0,0.5,0.5,0.2,0.2": "0 0.5 0.5 0.2 0.2",
    "1 10 5 16 4": "1 0.5 0.5 0.8 0.4",  # pixels of an image of 20 x 10
    "1 0.5 0.5 0.80 0.4": None,  # the same again
    "0 nan 0.5 0.1 0.1": None,
    "0 1 2": None,
    "7 0.5 0.5 0.1 0.1": None,
    "0.0 0.25 0.5 0.10 0.1": "0 0.25 0.5 0.1 0.1",
    "dog 0.7 0.7 0.1 0.1": "1 0.7 0.7 0.1 0.1",
    "0 .1 .1 .3 .1 .3 .1 .3 .3": "0 0.1 0.1 0.3 0.1 0.3 0.3",
}


def test_label_files_are_written_anew_only_if_something_is_wrong(tmp_path, fixed):
    spaced = "0   0.50 0.5\t0.2 0.2\r\n"
    data = flat(tmp_path / "set", right=spaced, wrong="\n".join(REPAIRS))
    files, changes = fixed(data)
    assert files["labels/right.txt"] == spaced.encode() and b"dog" in files["data.yaml"]
    assert files["labels/wrong.txt"].decode().splitlines() == list(filter(None, REPAIRS.values()))
    assert files["images/right.png"] == tree(data)["images/right.png"]
    changed = [line.split(":")[1] for line in changes if line.startswith("labels/wrong.txt")]
    assert changed == [str(number) for number in (1, 2, 3, 4, 5, 6, 7, 9)]
    assert any(line.endswith(": clips it at the border") for line in changes)


def test_pixels_are_read_in_the_way_that_fits_every_row(tmp_path, fixed):
    files, _ = fixed(flat(tmp_path / "set", a="0 12 2 19 9\n", b="0 2 2 6 8\n"))  # only as corners
    assert boxes(files, "labels/a.txt") == [pytest.approx([0, 15.5 / 20, 0.55, 7 / 20, 0.7])]
    assert boxes(files, "labels/b.txt") == [pytest.approx([0, 0.2, 0.5, 0.2, 0.6])]


def test_pixels_that_could_be_read_in_two_ways_are_never_guessed(tmp_path, fixed):
    data = flat(tmp_path / "set", a="0 10 5 4 2\n", b=BOX)  # as the centre or as the top left corner
    report = check(data)
    assert [issue.message for issue in report.issues if issue.code == "pixels-ambiguous"] == [
        "1 row in pixels, such as this, fit as centre or top-left"
    ]
    files, changes = fixed(data)
    assert "labels/a.txt" not in files and "labels/b.txt" in files
    assert any("it fits as centre or top-left: leaves the row out" in line for line in changes)


def test_pixels_are_read_in_the_way_that_was_given(tmp_path, fixed):
    files, _ = fixed(flat(tmp_path / "set", a="0 10 5 4 2\n", b=BOX), pixels="top-left")
    assert boxes(files, "labels/a.txt") == [pytest.approx([0, 0.6, 0.6, 0.2, 0.2])]


def test_classes_are_never_shifted_on_a_guess(tmp_path, fixed):
    """One stray row of class 2 next to 29 dogs once made 29 cats."""
    dog = "1 .5 .5 .2 .2\n"
    data = flat(tmp_path / "set", stray=f"{dog}2 .5 .5 .1 .1\n", **{f"dog{number:02}": dog for number in range(29)})
    files, changes = fixed(data)
    labels = [name for name in files if name.startswith("labels/")]
    assert len(labels) == 30 and all(row[0] == 1 for name in labels for row in boxes(files, name))
    assert "labels/stray.txt:2: class 2, but there are 2 classes: leaves the object out" in changes


def test_classes_are_shifted_if_asked_for(tmp_path, fixed):
    files, changes = fixed(flat(tmp_path / "set", a="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n"), one_based=True)
    assert [row[0] for row in boxes(files, "labels/a.txt")] == [0, 1]
    assert any("counted from 0" in line for line in changes)


def test_an_image_that_lost_its_rows_is_left_out(tmp_path, fixed):
    lost = {"short": "0 .5 .5 .2\n", "flat": "0 .5 .5 0 .2\n", "beyond": "7 .5 .5 .2 .2\n"}
    files, changes = fixed(flat(tmp_path / "set", a=BOX, none="", **lost))
    assert {name for name in files if "/" in name} == {f"{kind[0]}/{stem}.{kind[1]}" for stem in ("a", "none")
                                                       for kind in (("images", "png"), ("labels", "txt"))}  # fmt: skip
    for stem in lost:
        assert any(line.startswith(f"images/{stem}.png: ") for line in changes), stem


def test_what_is_done_about_files_is_said(tmp_path, fixed):
    flat(tmp_path / "set", a=BOX, b=BOX, c=BOX)
    fill(tmp_path / "set", {"images/b.png": b"", "images/c.jpg": png(), "labels/lost.txt": BOX})
    fill(tmp_path / "set", {"data.yaml": "train: ../images\nval: nowhere\nnames: [cat, dog]\n"})
    files, changes = fixed(tmp_path / "set")
    assert sorted(files) == [
        "data.yaml", "images/train/a.png", "images/train/c.jpg", "labels/train/a.txt", "labels/train/c.txt",
    ]  # fmt: skip
    for start, end in {
        "data.yaml (train)": "writes a data.yaml with the right path",
        "data.yaml (val)": "leaves the split out",
        "labels/lost.txt": "leaves the label file out",
        "images/b.png": "leaves the image out",
        "images/c.png": "keeps the first",
    }.items():
        assert any(line.startswith(start) and line.endswith(f": {end}") for line in changes), (start, changes)


def test_what_two_splits_share_is_said_once_and_written_for_both(tmp_path, fixed):
    data = fill(flat(tmp_path / "set", a=f"{BOX}0 1 2\n", b="0 1 2\n"), {"data.yaml": "train: images\nval: images\n"})
    files, changes = fixed(data)
    assert len(changes) == len(set(changes)) and {"labels/train/a.txt", "labels/val/a.txt"} <= set(files)


def test_a_copy_of_the_images_folder_brings_the_labels_along(tmp_path, fixed):
    fill(tmp_path, {"set/train/images/a.png": None, "set/train/labels/a.txt": BOX})
    files, _ = fixed(tmp_path / "set/train/images")
    assert BOX.encode() in files.values()


@pytest.mark.parametrize(
    "yaml",
    [
        "train: images/train\nval: images/val\nnc: 3\nnames: [cat, dog]\n",
        "train: images/train\nval: images/val\nnames: {0: cat, 2: dog}\n",
        "train: [images/train\n",
        "train: list.txt\nval: images/val\nnames: [cat, dog]\n",
        "nc: 999999999\nnames: [cat, dog]\ntrain: images/train\n",
        "train: images/train\nnames: [!mine cat, dog]\n",
        "path: {set}\ntrain: images/train\nnames: [cat]\n",
    ],
)
def test_a_broken_data_yaml_is_written_anew(tmp_path, fixed, yaml):
    data = tmp_path / "set"
    for number, split in enumerate(("train", "val")):
        fill(data, {f"images/{split}/a.png": png(seed=number), f"labels/{split}/a.txt": BOX})
    lines = "images/train/a.png\nimages/gone.png\n"
    files, _ = fixed(fill(data, {"data.yaml": yaml.replace("{set}", str(data)), "list.txt": lines}))
    written = files["data.yaml"].decode()
    assert "labels/train/a.txt" in files and "!" not in written and str(tmp_path) not in written


def test_files_from_outside_are_brought_in_under_names_of_their_own(tmp_path, fixed):
    images = [f"{tmp_path}/{pool}/images/a.png\n" for pool in ("one", "two")]
    for seed, pool in enumerate(("one", "two")):
        fill(tmp_path / pool, {"images/a.png": png(seed=seed), "labels/a.txt": BOX})
    fill(tmp_path / "set", {"list.txt": "".join(images), "data.yaml": "train: list.txt\nnames: [cat]\n"})
    files, _ = fixed(tmp_path / "set")
    assert {"images/train/a.png", "images/train/a_2.png", "labels/train/a_2.txt"} <= set(files)


def test_a_dataset_without_a_usable_image_is_an_error(tmp_path, fixed):
    with pytest.raises(DataError, match="no image"):
        fixed(fill(tmp_path / "set", {"images/a.png": b"", "labels/a.txt": BOX}))


def test_damaged_files_end_in_samples_or_issues_and_can_be_repaired(tmp_path):
    data, known = yolo.example(tmp_path / "set"), {kind.code for kind in yolo.FORMAT.issues}
    fill(data, {"val.txt": "./images/val/c.png\n./images/val/d.png\n"})
    fill(data, {"data.yaml": "path: .\ntrain: images/train\nval: val.txt\nnc: 2\nnames:\n  0: cat\n  1: dog\n"})
    original = tree(data)
    for number in range(120):
        chance = random.Random(number)
        victim = chance.choice(sorted(name for name in original if number % 7 == 0 or not name.endswith(".png")))
        (data / victim).write_bytes(mutate_bytes(original[victim], chance))
        source, report = scan(data, depth="full", on_error="repair")
        assert set(report.counts) <= known
        for index in range(len(source)):
            try:
                sample = source[index]
                assert len(sample["boxes"]) == len(sample["classes"]) == len(sample["polygons"])
            except SampleError as error:
                assert error.code in known and not report.ok
        out = tmp_path / f"repaired{number}"
        out.mkdir()
        try:
            yolo.write(source, out)
            assert not check(out).errors, victim
        except DataError as error:
            assert error.code == "no-images"
        (data / victim).write_bytes(original[victim])
    assert len(read(data)) == 4
