# SPDX-License-Identifier: Apache-2.0
"""Repaired copies of YOLO datasets."""

import random

import numpy as np
import pytest

from detection_sets import BOX, OUTLINE, check, fill, flat, png, read, scan, tree
from fewbit.data.formats import yolo
from fewbit.data.types import SampleError
from fewbit.errors import DataError


def fixed(data, out, **options):
    """A repaired copy, which must be without errors, and the lines that say what changed."""
    before = tree(data)
    out.mkdir()
    source, _ = scan(data, depth="full", on_error="repair", **options)
    lines = yolo.write(source, out)
    assert tree(data) == before, "the source was touched"
    report = check(out)
    assert not report.errors, [str(issue) for issue in report.errors]
    return lines


def test_a_clean_dataset_is_copied_byte_for_byte(tmp_path):
    flat(tmp_path / "set", a=BOX, b=OUTLINE, c=None, d="")
    fill(tmp_path / "set", {"README.md": "hello"})
    assert fixed(tmp_path / "set", tmp_path / "out") == []
    assert tree(tmp_path / "out") == tree(tmp_path / "set")


def test_label_files_are_written_anew_only_if_something_is_wrong(tmp_path):
    clean = "0   0.50 0.5\t0.2 0.2\r\n"
    rows = [
        "0 0.9 0.5 0.4 0.2",  # clipped
        "0,0.5,0.5,0.2,0.2",
        "1 10 5 4 2",  # pixels on an image of 20 x 10
        "1 0.5 0.5 0.20 0.2",  # the same as the pixels
        "0 nan 0.5 0.1 0.1",
        "0 1 2",
        "7 0.5 0.5 0.1 0.1",
        "0.0 0.25 0.5 0.10 0.1",
        "dog 0.7 0.7 0.1 0.1",
        "0 .1 .1 .3 .1 .3 .1 .3 .3",
    ]
    flat(tmp_path / "set", a=clean, b="\n".join(rows))
    lines = fixed(tmp_path / "set", tmp_path / "out")
    out = tree(tmp_path / "out")
    assert out["labels/a.txt"] == clean.encode()
    assert out["labels/b.txt"].decode().splitlines() == [
        "0 0.85 0.5 0.3 0.2",
        "0 0.5 0.5 0.2 0.2",
        "1 0.5 0.5 0.2 0.2",
        "0 0.25 0.5 0.1 0.1",
        "1 0.7 0.7 0.1 0.1",
        "0 0.1 0.1 0.3 0.1 0.3 0.3",
    ]
    assert out["images/a.png"] == (tmp_path / "set/images/a.png").read_bytes() and b"dog" in out["data.yaml"]
    numbers = [line.partition(":")[2].partition(":")[0] for line in lines if line.startswith("labels/b.txt")]
    assert numbers == ["1", "2", "3", "4", "5", "6", "7", "9"]
    assert any(line.endswith(": clips it at the border") for line in lines)


def test_pixels_are_read_in_the_way_that_fits_every_row(tmp_path):
    flat(tmp_path / "set", a="0 12 2 19 9\n", b="0 2 2 6 8\n")
    fixed(tmp_path / "set", tmp_path / "out")
    source = read(tmp_path / "out")
    boxes = [source[index]["boxes"][0].tolist() for index in range(2)]
    assert boxes == pytest.approx(np.array([[15.5 / 20, 0.55, 7 / 20, 0.7], [0.2, 0.5, 0.2, 0.6]]))


def test_classes_are_never_shifted_on_a_guess(tmp_path):
    """One stray row of class 2 next to 29 dogs once made 29 cats."""
    dogs = {f"dog{i:02}": "1 .5 .5 .2 .2\n" for i in range(29)}
    flat(tmp_path / "set", **dogs, stray="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n")
    lines = fixed(tmp_path / "set", tmp_path / "out")
    source = read(tmp_path / "out")
    assert {int(c) for index in range(30) for c in source[index]["classes"]} == {1} and len(source) == 30
    assert [line for line in lines if line.startswith("labels/")] == [
        "labels/stray.txt:2: class 2, but there are 2 classes: leaves the object out"
    ]


def test_classes_are_shifted_if_asked_for(tmp_path):
    flat(tmp_path / "set", a="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n")
    lines = fixed(tmp_path / "set", tmp_path / "out", one_based=True)
    assert any("counted from 0" in line for line in lines)
    assert read(tmp_path / "out")[0]["classes"].tolist() == [0, 1]


def test_an_image_that_lost_its_rows_is_left_out(tmp_path):
    flat(tmp_path / "set", a=BOX, short="0 .5 .5 .2\n", flat="0 .5 .5 0 .2\n", beyond="7 .5 .5 .2 .2\n", none="")
    lines = fixed(tmp_path / "set", tmp_path / "out")
    names = sorted(name for name in tree(tmp_path / "out") if "/" in name)
    assert names == ["images/a.png", "images/none.png", "labels/a.txt", "labels/none.txt"]
    assert [line.partition(":")[0] for line in lines if line.startswith("images/")] == [
        f"images/{name}.png" for name in ("beyond", "flat", "short")
    ]


def test_what_is_done_about_files_is_said(tmp_path):
    flat(tmp_path / "set", a=f"0 .9 .5 .4 .2\n0 .9 .5 .5 .2\n0 nan .5 .1 .1\n0 1 2\n{BOX}{BOX}")
    yaml = "train: ../images\nval: nowhere\nnames: [cat, dog]\n"
    fill(tmp_path / "set", {"data.yaml": yaml, "labels/lost.txt": BOX})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert [line.split(":")[1] for line in lines if line.startswith("labels/a.txt")] == ["1", "2", "3", "4", "6"]
    for end in (
        "writes a data.yaml with the right path",
        "leaves the split out",
        "leaves the label file out",
        "clips it at the border",
        "leaves the row out",
    ):
        assert any(line.endswith(f": {end}") for line in lines), end


def test_what_two_splits_share_is_said_once_and_written_for_both(tmp_path):
    flat(tmp_path / "set", a=f"{BOX}0 1 2\n", b="0 1 2\n")
    fill(tmp_path / "set", {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n"})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert len(lines) == len(set(lines))
    assert set(tree(tmp_path / "out")) >= {"labels/train/a.txt", "labels/val/a.txt"}


def test_a_copy_of_the_images_folder_brings_the_labels_along(tmp_path):
    fill(tmp_path, {"set/train/images/a.png": None, "set/train/labels/a.txt": BOX})
    fixed(tmp_path / "set/train/images", tmp_path / "out")
    assert len(read(tmp_path / "out")[0]["boxes"]) == 1


def test_images_that_cannot_be_used_are_left_out_with_their_labels(tmp_path):
    flat(tmp_path / "set", a=BOX, b=BOX, c=BOX)
    fill(tmp_path / "set", {"images/b.png": b"", "images/c.jpg": png(), "labels/lost.txt": BOX})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == [
        "data.yaml", "images/a.png", "images/c.jpg", "labels/a.txt", "labels/c.txt",
    ]  # fmt: skip
    for name in ("images/b.png", "images/c.png", "labels/lost.txt"):
        assert any(line.startswith(name) for line in lines), name


@pytest.mark.parametrize(
    "yaml",
    [
        "train: images/train\nval: images/val\nnc: 3\nnames: [cat, dog]\n",
        "train: images/train\nval: images/val\nnames: {0: cat, 2: dog}\n",
        "train: ../images/train\nval: nowhere\nnames: [cat, dog]\n",
        "train: [images/train\n",
        "train: list.txt\nval: images/val\nnames: [cat, dog]\n",
        "nc: 999999999\nnames: [cat, dog]\ntrain: images/train\n",
        "train: images/train\nnames: [!mine cat, dog]\n",
    ],
)
def test_a_broken_data_yaml_is_written_anew(tmp_path, yaml):
    files = {f"images/{s}/{s}.png": None for s in ("train", "val")}
    files |= {f"labels/{s}/{s}.txt": BOX for s in ("train", "val")}
    fill(tmp_path / "set", {**files, "data.yaml": yaml, "list.txt": "images/train/train.png\nimages/gone.png\n"})
    fixed(tmp_path / "set", tmp_path / "out")
    assert read(tmp_path / "out").facts["splits"]["train"] == 1
    assert "!" not in (tmp_path / "out" / "data.yaml").read_text()


def test_files_from_outside_are_brought_in_under_names_of_their_own(tmp_path):
    for pool in ("one", "two"):
        fill(tmp_path / pool, {"images/a.png": png(seed=len(pool)), "labels/a.txt": BOX})
    lists = f"{tmp_path}/one/images/a.png\n{tmp_path}/two/images/a.png\n"
    fill(tmp_path / "set", {"list.txt": lists, "data.yaml": "train: list.txt\nnames: [cat]\n"})
    fixed(tmp_path / "set", tmp_path / "out")
    assert set(tree(tmp_path / "out")) >= {"images/train/a.png", "images/train/a_2.png", "labels/train/a_2.txt"}


def test_an_absolute_path_to_itself_does_not_survive_in_the_copy(tmp_path):
    flat(tmp_path / "set", a=BOX)
    fill(tmp_path / "set", {"data.yaml": f"path: {tmp_path}/set\ntrain: images\nnames: [cat, dog]\n"})
    fixed(tmp_path / "set", tmp_path / "out")
    assert str(tmp_path) not in (tmp_path / "out" / "data.yaml").read_text()


def test_a_dataset_without_a_usable_image_is_an_error(tmp_path):
    fill(tmp_path / "set", {"images/a.png": b"", "labels/a.txt": BOX})
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="no image"):
        yolo.write(scan(tmp_path / "set", depth="full", on_error="repair")[0], tmp_path / "out")


def mutate(content, generator):
    """Truncate, flip, delete, repeat or insert a few bytes."""
    content = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        start = generator.randrange(len(content) + 1)
        end = min(len(content), start + generator.randint(1, 8))
        kind = generator.randrange(5)
        if kind == 0:
            del content[start:]
        elif kind == 1 and start < len(content):
            content[start] ^= 1 << generator.randrange(8)
        elif kind == 2:
            del content[start:end]
        elif kind == 3:
            content[start:start] = content[start:end]
        else:
            content[start:start] = generator.choice(
                [b"nan", b"\0", b"-1 ", b"\n", b"{", b"..", b"999", b"\xff", b"&a "]
            )
    return bytes(content)


def test_damaged_files_end_in_samples_or_issues_and_can_be_repaired(tmp_path):
    generator = random.Random(7)
    data = yolo.example(tmp_path / "set")
    fill(data, {"val.txt": "./images/val/c.png\n./images/val/d.png\n"})
    fill(data, {"data.yaml": "path: .\ntrain: images/train\nval: val.txt\nnc: 2\nnames:\n  0: cat\n  1: dog\n"})
    names = sorted(tree(data))
    texts = [name for name in names if not name.endswith(".png")]
    known = {kind.code for kind in yolo.FORMAT.issues}
    for number in range(150):
        victim = generator.choice(texts if generator.random() < 0.85 else names)
        content = (data / victim).read_bytes()
        (data / victim).write_bytes(mutate(content, generator))
        source, report = scan(data, depth="full", on_error="repair")
        assert set(report.counts) <= known
        for index in range(len(source)):
            try:
                sample = source[index]
                assert len(sample["boxes"]) == len(sample["classes"]) == len(sample["polygons"])
            except SampleError as error:
                assert error.code in known and not report.ok
        out = tmp_path / f"out{number}"
        out.mkdir()
        try:
            yolo.write(source, out)
            assert not check(out).errors
        except DataError as error:
            assert error.code == "no-annotated-images"
        (data / victim).write_bytes(content)
    assert not check(data).errors
