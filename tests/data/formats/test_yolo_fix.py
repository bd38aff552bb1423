# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import pytest

from fewbit.data.boxes import labels
from fewbit.data.boxes.changes import DONE
from fewbit.data.boxes.fault import remedy
from fewbit.data.findings import Severity
from fewbit.data.formats import yolo
from fewbit.data.images import decode
from fewbit.errors import DataError
from mutation import mutate
from yolo_sets import BOX, OUTLINE, check, fill, flat, png, read, tree


def fixed(source, out, **options):
    """The repaired copy, which must be without errors, and the lines that tell what changed."""
    before = tree(source)
    out.mkdir()
    lines = yolo.fix(source, out, **options)
    assert tree(source) == before, "the source was touched"
    report = check(out)
    assert report.ok, [str(finding) for finding in report.errors]
    return lines


def test_a_clean_dataset_is_copied_unchanged(tmp_path):
    flat(tmp_path / "set", a=BOX, b=OUTLINE, c=None, d="")
    fill(tmp_path / "set", {"README.md": "hello"})
    assert fixed(tmp_path / "set", tmp_path / "out") == []
    assert tree(tmp_path / "out") == tree(tmp_path / "set")


def test_labels_are_rewritten_only_where_faulty(tmp_path):
    clean = "0   0.50 0.5\t0.2 0.2\r\n"
    rows = [
        "0 0.9 0.5 0.4 0.2",  # clipped
        "0,0.5,0.5,0.2,0.2",  # commas
        "1 10 5 4 2",  # pixels on an image of 20 x 10
        "1 0.5 0.5 0.20 0.2",  # the same as the pixels
        "0 nan 0.5 0.1 0.1",
        "0 1 2",
        "7 0.5 0.5 0.1 0.1",
        "0.0 0.25 0.5 0.10 0.1",  # fine, so it stays as it is written
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
        "0.0 0.25 0.5 0.10 0.1",
        "1 0.7 0.7 0.1 0.1",
        "0 0.1 0.1 0.3 0.1 0.3 0.3",
    ]
    assert out["images/a.png"] == (tmp_path / "set/images/a.png").read_bytes()
    assert b"dog" in out["data.yaml"]
    for number in (1, 2, 3, 4, 5, 6, 7, 9, 10):
        assert any(line.startswith(f"labels/b.txt:{number}:") for line in lines), number


def test_pixels_are_read_in_the_way_that_fits_every_row(tmp_path):
    flat(tmp_path / "set", a="0 12 2 19 9\n", b="0 2 2 6 8\n")
    fixed(tmp_path / "set", tmp_path / "out")
    boxes = [sample["boxes"][0].tolist() for sample in read(tmp_path / "out")]
    assert boxes == pytest.approx(np.array([[15.5 / 20, 0.55, 7 / 20, 0.7], [0.2, 0.5, 0.2, 0.6]]))


def test_classes_are_never_shifted_on_a_guess(tmp_path):
    """One stray row of class 2 beside 29 dogs once made 29 cats."""
    flat(
        tmp_path / "set", **{f"dog{i:02}": "1 .5 .5 .2 .2\n" for i in range(29)}, stray="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n"
    )
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert {cls for sample in read(tmp_path / "out") for cls in sample["classes"].tolist()} == {1}
    assert len(read(tmp_path / "out")) == 30
    assert [line for line in lines if line.startswith("labels/")] == [
        "labels/stray.txt:2: class 2, but there are 2 classes, 0 to 1: row left out [class-beyond]"
    ]


def test_classes_are_shifted_when_it_is_said_that_they_count_from_one(tmp_path):
    flat(tmp_path / "set", a="1 .5 .5 .2 .2\n2 .5 .5 .1 .1\n")
    lines = fixed(tmp_path / "set", tmp_path / "out", one_based=True)
    assert any("classes-from-one" in line for line in lines)
    assert read(tmp_path / "out").get(0)["classes"].tolist() == [0, 1]


def test_an_image_whose_rows_are_all_dropped_is_left_out_and_never_background(tmp_path):
    flat(tmp_path / "set", a=BOX, short="0 .5 .5 .2\n", flat="0 .5 .5 0 .2\n", beyond="7 .5 .5 .2 .2\n", none="")
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert sorted(name for name in tree(tmp_path / "out") if "/" in name) == [
        "images/a.png",
        "images/none.png",
        "labels/a.txt",
        "labels/none.txt",
    ]
    assert [line for line in lines if line.startswith("images/")] == [
        f"images/{name}.png: left out, no row of labels/{name}.txt can be used" for name in ("beyond", "flat", "short")
    ]


def test_a_confidence_is_taken_off_and_told(tmp_path):
    flat(tmp_path / "set", a="0 0.5 0.5 0.2 0.2 0.91\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "set").get(0)
    assert caught.value.code == "row-confidence"
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert read(tmp_path / "out").get(0)["boxes"].tolist() == pytest.approx(np.array([[0.5, 0.5, 0.2, 0.2]]))
    assert "the box is kept, the sixth value is left out [row-confidence]" in lines[0]


def test_every_line_says_what_was_done_and_rows_come_in_order(tmp_path):
    flat(tmp_path / "set", a=f"0 .9 .5 .4 .2\n0 .9 .5 .5 .2\n0 nan .5 .1 .1\n0 1 2\n{BOX}{BOX}")
    yaml = "train: ../images\nval: nowhere\nnames: [cat, dog]\n"
    fill(tmp_path / "set", {"data.yaml": yaml, "labels/lost.txt": BOX})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert [line.split(":")[1] for line in lines if line.startswith("labels/a.txt")] == ["1", "2", "3", "4", "6"]
    for end in (
        "its images are copied, and the new data.yaml leads to them [path-guessed]",
        "left out of the new data.yaml [split-missing]",
        "left out [label-orphan]",
        "cut at the border [out-of-range]",
        "row left out [row-count]",
    ):
        assert any(line.endswith(f": {end}") for line in lines), end


def test_every_code_that_makes_a_copy_differ_has_words_for_what_was_done():
    own_words = {"stem-twice", "label-unreadable", "no-images", "labels-none", "yaml-keypoints", "masks-too-large"}
    for code, known in yolo.CODES.items():
        if code in labels.CODES and remedy(known) == "drop":
            assert code not in DONE, f"{code} costs the row"
        elif (known.severity is Severity.ERROR or remedy(known) != "keep") and code not in {*own_words, *decode.CODES}:
            assert code in DONE


def test_what_two_splits_share_is_told_once_and_written_for_both(tmp_path):
    flat(tmp_path / "set", a=f"{BOX}0 1 2\n", b="0 1 2\n")
    fill(tmp_path / "set", {"data.yaml": "train: images\nval: images\nnames: [cat, dog]\n"})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert len(lines) == len(set(lines)) == 4
    assert set(tree(tmp_path / "out")) >= {"labels/train/a.txt", "labels/val/a.txt"}


def test_a_copy_of_the_images_folder_brings_the_labels_from_above(tmp_path):
    fill(tmp_path, {"set/train/images/a.png": None, "set/train/labels/a.txt": BOX})
    fixed(tmp_path / "set/train/images", tmp_path / "out")
    assert len(read(tmp_path / "out").get(0)["boxes"]) == 1


def test_images_that_cannot_be_used_are_left_out_with_their_labels(tmp_path):
    flat(tmp_path / "set", a=BOX, b=BOX, c=BOX)
    fill(tmp_path / "set", {"images/b.png": b"", "images/c.jpg": png(), "labels/lost.txt": BOX})
    lines = fixed(tmp_path / "set", tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == [
        "data.yaml",
        "images/a.png",
        "images/c.jpg",
        "labels/a.txt",
        "labels/c.txt",
    ]
    for word in ("images/b.png: left out", "images/c.png: left out", "labels/lost.txt"):
        assert any(word in line for line in lines), word


@pytest.mark.parametrize(
    "yaml",
    [
        "train: images/train\nval: images/val\nnc: 3\nnames: [cat, dog]\n",
        "train: images/train\nval: images/val\nnames: {0: cat, 2: dog}\n",
        "train: ../images/train\nval: nowhere\nnames: [cat, dog]\n",
        "train: [images/train\n",
        "train: list.txt\nval: images/val\nnames: [cat, dog]\n",
        "nc: 999999999\nnames: [cat, dog]\ntrain: images/train\n",
    ],
)
def test_a_broken_description_is_written_anew(tmp_path, yaml):
    files = {f"images/{s}/{s}.png": None for s in ("train", "val")} | {
        f"labels/{s}/{s}.txt": BOX for s in ("train", "val")
    }
    fill(tmp_path / "set", {**files, "data.yaml": yaml, "list.txt": "images/train/train.png\nimages/gone.png\n"})
    fixed(tmp_path / "set", tmp_path / "out")
    assert read(tmp_path / "out").facts["splits"]["train"] == 1


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


def test_what_cannot_be_repaired_says_so(tmp_path):
    fill(tmp_path / "none", {"images/a.png": None})
    fill(tmp_path / "broken", {"images/a.png": b"", "labels/a.txt": BOX})
    for name in ("none", "broken"):
        (tmp_path / f"{name}-out").mkdir()
        with pytest.raises(DataError):
            yolo.fix(tmp_path / name, tmp_path / f"{name}-out")


def test_damaged_files_end_in_samples_or_typed_findings_and_can_be_fixed(tmp_path):
    rng = random.Random(7)
    valid = tmp_path / "valid"
    fill(valid, {f"images/{s}/{i}.png": None for s in ("train", "val") for i in range(2)})
    fill(valid, {f"labels/{s}/{i}.txt": BOX + OUTLINE for s in ("train", "val") for i in range(2)})
    fill(valid, {"val.txt": "./images/val/0.png\n./images/val/1.png\n"})
    fill(valid, {"data.yaml": "path: .\ntrain: images/train\nval: val.txt\nnc: 2\nnames:\n  0: cat\n  1: dog\n"})
    names = sorted(tree(valid))
    texts = [name for name in names if not name.endswith(".png")]
    for _ in range(300):
        victim = rng.choice(texts if rng.random() < 0.85 else names)
        raw = (valid / victim).read_bytes()
        (valid / victim).write_bytes(mutate(raw, rng))
        report = check(valid)
        try:
            samples = list(read(valid))
            assert all(len(sample["masks"]) == len(sample["boxes"]) for sample in samples if "masks" in sample)
        except DataError as error:
            assert error.code in yolo.CODES and not report.ok
        if not report.ok:
            out = tmp_path / f"out-{rng.random()}"
            out.mkdir()
            try:
                yolo.fix(valid, out)
                assert check(out).ok
            except DataError as error:
                assert error.code in yolo.CODES
        (valid / victim).write_bytes(raw)
    assert check(valid).ok
