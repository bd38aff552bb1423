# SPDX-License-Identifier: Apache-2.0
"""Pascal VOC: annotation files, lists of images, masks, and hostile XML."""

import io
import pickle
import random

import numpy as np
import pytest
from PIL import Image

import fewbit
from detection_sets import check, codes, confidence, fill, places, png, read, scan, tree
from fewbit.data.detection.voc_xml import read_objects, read_xml
from fewbit.data.files import Folder
from fewbit.data.formats import coco, voc, yolo
from fewbit.data.opening import choose_format
from fewbit.data.types import SampleError
from fewbit.errors import DataError, UsageError


def thing(name="cat", edges=(5, 3, 12, 6), **flags):
    box = "".join(f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), edges))
    marks = "".join(f"<{key}>{value}</{key}>" for key, value in flags.items())
    return f"<object><name>{name}</name>{marks}<bndbox>{box}</bndbox></object>"


def xml(*things, width=20, height=10, filename="a.png"):
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>{filename}</filename>{size}{''.join(things)}</annotation>"


def dataset(folder, *things, **kwargs):
    return fill(folder, {"JPEGImages/a.png": None, "Annotations/a.xml": xml(*things, **kwargs)})


def mask_png(values):
    stream = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def test_boxes_are_counted_from_one_with_both_ends_included(tmp_path):
    data = dataset(tmp_path, thing(), thing("dog", (1, 1, 20, 10), difficult=1))
    source = read(data, "voc")
    sample = source[0]
    assert sample["boxes"].tolist() == pytest.approx(np.array([[0.4, 0.4, 0.4, 0.4], [0.5, 0.5, 1, 1]]))
    assert sample["classes"].tolist() == [0, 1] and source.facts["classes"] == ["cat", "dog"]
    assert sample["difficult"].tolist() == [False, True]
    assert pickle.loads(pickle.dumps(source))[0]["classes"].tolist() == [0, 1]


def test_a_box_that_begins_at_zero_is_not_beyond_the_border(tmp_path):
    report = check(dataset(tmp_path, thing(edges=(0, 0, 20, 10))), "voc")
    assert report.ok and not report.issues
    assert "out-of-range" in check(dataset(tmp_path, thing(edges=(-3, 0, 20, 10))), "voc").counts


def test_the_example_has_splits_and_no_issues(tmp_path):
    source, report = scan(voc.example(tmp_path), "voc", depth="full")
    assert report.ok and not report.issues and report.facts["splits"] == {"train": 3, "val": 2}
    assert report.facts["class_counts"] == {"cat": 3, "dog": 2}
    assert source.strata() == ["train"] * 3 + ["val"] * 2
    assert source.location(0).file == "VOCdevkit/VOC2012/JPEGImages/2012_000000.jpg"
    assert len(read(tmp_path, "voc", split="val")) == 2
    with pytest.raises(UsageError, match="no split 'test'"):
        read(tmp_path, "voc", split="test")


def test_masks_are_read_for_segmentation(tmp_path):
    source, report = scan(voc.example(tmp_path), "voc", depth="full", task="segmentation")
    assert report.ok and report.facts["splits"] == {"train": 1, "val": 1}
    sample = source[0]
    assert set(sample) == {"image", "mask"} and sample["mask"].shape == (24, 32)
    assert source.facts["classes"][0] == "background" and source.facts["classes"][8] == "cat"
    assert set(np.unique(sample["mask"]).tolist()) == {0, 8, 255}


def test_masks_that_do_not_fit_are_issues(tmp_path):
    base = voc.example(tmp_path) / "VOCdevkit" / "VOC2012"
    fill(base, {"SegmentationClass/2012_000000.png": mask_png(np.full((24, 32), 40)),
                "SegmentationClass/2012_000003.png": mask_png(np.zeros((5, 5)))})  # fmt: skip
    report = check(tmp_path, "voc", task="segmentation")
    assert set(codes(report.errors)) == {"mask-value", "mask-size"}
    (base / "SegmentationClass" / "2012_000003.png").unlink()
    assert "mask-missing" in check(tmp_path, "voc", task="segmentation").counts
    with pytest.raises(SampleError):
        read(tmp_path, "voc", task="segmentation", on_error={"mask-missing": "drop"})[0]


def test_annotations_beside_images_and_images_by_their_file_name(tmp_path):
    fill(tmp_path / "beside", {"a.png": None, "a.xml": xml(thing())})
    assert len(read(tmp_path / "beside", "voc")[0]["boxes"]) == 1
    fill(tmp_path / "named", {"pictures/x1.png": None, "Annotations/a.xml": xml(thing(), filename="C:\\x\\x1.png")})
    assert read(tmp_path / "named", "voc").location(0).file == "pictures/x1.png"


def test_classes_are_sorted_or_given(tmp_path):
    dataset(tmp_path, thing("dog"), thing("cat"), thing("Bird"))
    assert read(tmp_path, "voc").facts["classes"] == ["Bird", "cat", "dog"]
    source = read(tmp_path, "voc", classes="dog,cat,Bird")
    assert source.facts["classes"] == ["dog", "cat", "Bird"] and source[0]["classes"].tolist() == [0, 1, 2]
    report = check(tmp_path, "voc", classes="cat,dog")
    assert places(report, "class-beyond") == ["Annotations/a.xml row 2 (object)"]
    assert read(tmp_path, "voc", on_error="drop", classes="cat,dog")[0]["classes"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (thing(edges=("x", 1, 5, 5)), "box-invalid"),
        (thing(edges=("nan", 1, 5, 5)), "box-invalid"),
        (thing(edges=(1, 1, "1_0", 5)), "box-invalid"),
        ("<object><name>cat</name></object>", "box-invalid"),
        (thing(edges=(9, 1, 5, 5)), "box-empty"),
        (thing(edges=(30, 1, 50, 5)), "outside-image"),
        (thing(edges=(15, 1, 30, 5)), "out-of-range"),
        ("<object></object>", "class-beyond"),
        (thing(), "row-duplicate"),
    ],
)
def test_wrong_objects_are_located_and_cost_only_themselves(tmp_path, wrong, code):
    report = check(dataset(tmp_path, thing(), wrong), "voc")
    assert places(report, code) == ["Annotations/a.xml row 1 (object)"]
    assert len(scan(tmp_path, "voc", on_error="drop")[0][0]["boxes"]) in (1, 2)


def test_an_image_that_lost_all_objects_is_an_issue(tmp_path):
    report = check(dataset(tmp_path, thing(edges=(30, 1, 50, 5))), "voc", on_error="drop")
    assert places(report, "objects-lost") == ["JPEGImages/a.png"] and report.facts["samples"] == 0
    assert check(dataset(tmp_path / "empty"), "voc").ok, "no object at all is background"


def test_missing_images_and_annotations_are_located(tmp_path):
    dataset(tmp_path, thing())
    fill(tmp_path, {"Annotations/gone.xml": xml(thing(), filename="gone.jpg"), "JPEGImages/bare.png": None})
    report = check(tmp_path, "voc")
    assert places(report, "image-missing") == ["Annotations/gone.xml"]
    assert places(report, "annotation-missing") == ["JPEGImages/bare.png"]
    with pytest.raises(DataError):
        read(tmp_path, "voc")
    kept = read(tmp_path, "voc", on_error={"image-missing": "drop", "annotation-missing": "keep"})
    assert [len(kept[index]["boxes"]) for index in range(2)] == [1, 0]


def test_lists_decide_what_is_read(tmp_path):
    for stem in ("a", "b", "c"):
        fill(tmp_path, {f"JPEGImages/{stem}.png": png(seed=ord(stem)), f"Annotations/{stem}.xml": xml(thing())})
    fill(tmp_path, {"ImageSets/Main/train.txt": "b\r\n\r\na 1\ngone\n", "ImageSets/Main/cat_train.txt": "c 1\n"})
    report = check(tmp_path, "voc")
    assert places(report, "image-missing") == ["ImageSets/Main/train.txt:4"]
    assert "1 image such as c" in next(issue for issue in report.notes if issue.code == "annotation-not-listed").message
    source = read(tmp_path, "voc", on_error="drop")
    assert [source.location(index).file for index in range(2)] == ["JPEGImages/b.png", "JPEGImages/a.png"]


def test_another_size_than_the_file_says_is_an_error(tmp_path):
    report = check(dataset(tmp_path, thing(), width=40, height=20), "voc")
    assert codes(report.errors) == ["image-size-mismatch"]
    assert check(dataset(tmp_path, thing(), width=0, height=0), "voc").ok, "some tools write 0"


LAUGHS = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><annotation><filename>&y;</filename></annotation>'


HOSTILE = {
    "laughs": LAUGHS,
    "late": " " * 70_000 + LAUGHS,
    "declared": '<?xml version="1.0" encoding="utf-16"?>' + LAUGHS,
    "utf16": LAUGHS.encode("utf-16"),
    "ebcdic": b'<?xml version="1.0" encoding="cp037"?>' + LAUGHS.encode("cp037"),
    "external": '<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>',
    "deep": "<annotation>" + "<a>" * 100_000,
    "cut": "<annotation><object>",
    "html": "<html></html>",
    "empty": "",
    "bom": "\ufeff",
    "bytes": b"\xff\xfe\x00",
    "huge": "<annotation>" + " " * (5 << 20) + "</annotation>",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_xml_is_refused(tmp_path, text):
    fill(dataset(tmp_path, thing()), {"Annotations/b.xml": text, "JPEGImages/b.png": png(seed=9)})
    report = check(tmp_path, "voc")
    assert places(report, "label-unreadable") == ["Annotations/b.xml"]
    assert len(read(tmp_path, "voc", on_error={"label-unreadable": "drop"})) == 1


def test_latin_1_is_read(tmp_path):
    text = '<?xml version="1.0" encoding="ISO-8859-1"?>' + xml(thing("Möwe"))
    fill(dataset(tmp_path), {"Annotations/a.xml": text.encode("latin-1")})
    assert read(tmp_path, "voc").facts["classes"] == ["Möwe"]


def test_damaged_images_are_found_by_a_full_scan(tmp_path):
    base = voc.example(tmp_path) / "VOCdevkit" / "VOC2012" / "JPEGImages"
    (base / "2012_000001.jpg").write_bytes((base / "2012_000001.jpg").read_bytes()[:-400])
    assert codes(check(tmp_path, "voc").errors) == ["image-truncated"]


def test_voc_is_not_taken_for_another_format(tmp_path):
    voc.example(tmp_path)
    assert choose_format(Folder(tmp_path))[0].name == "voc"
    for other in (yolo, coco):
        assert confidence(tmp_path, other.detect) < 0.5
    dataset(tmp_path / "plain", thing())
    assert choose_format(Folder(tmp_path / "plain"))[0].name == "voc"
    fill(tmp_path / "none", {"a.png": None, "pom.xml": "<project/>"})
    assert confidence(tmp_path / "none", voc.detect) == 0


def test_mutated_files_end_in_samples_or_issues(tmp_path):
    generator = random.Random(5)
    data = voc.example(tmp_path)
    base = data / "VOCdevkit" / "VOC2012"
    victims = sorted(path for path in base.rglob("*") if path.suffix in (".xml", ".txt", ".png"))
    known = {kind.code for kind in voc.FORMAT.issues}
    for _ in range(150):
        victim = generator.choice(victims)
        original = victim.read_bytes()
        damaged = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(damaged) + 1)
            end = min(len(damaged), start + generator.randint(0, 6))
            damaged[start:end] = generator.choice(
                [b"", b"9", b"<", b"-1", b"</object>", b"&x;", b"\0", damaged[start:end] * 2]
            )
        victim.write_bytes(damaged)
        before = tree(data)
        for task in ("object-detection", "segmentation"):
            source, report = scan(data, "voc", depth="full", task=task, on_error="drop")
            assert set(report.counts) <= known
            for index in range(len(source)):
                try:
                    source[index]
                except SampleError as error:
                    assert error.code in known
        assert tree(data) == before
        victim.write_bytes(original)


def test_a_repaired_copy_has_what_can_be_used(tmp_path):
    data = tmp_path / "data"
    for stem in "abcd":
        fill(data, {f"JPEGImages/{stem}.png": png(seed=ord(stem)), f"Annotations/{stem}.xml": xml(thing())})
    wrong = (thing("dog", (15, 1, 30, 5)), thing("cat", (30, 1, 50, 5)), thing(), thing())
    fill(data, {"Annotations/a.xml": xml(*wrong), "JPEGImages/b.png": b"", "Annotations/gone.xml": xml(thing())})
    (data / "Annotations" / "d.xml").write_text("<annotation>")
    fill(data, {"ImageSets/Main/train.txt": "a\nb\nc\nmissing\nd\n", "README.md": "hello"})
    before, report = tree(data), fewbit.fix_dataset(data, tmp_path / "out", data_format="voc")
    assert tree(data) == before and report.facts["copy"].ok, str(report.facts["copy"])
    out = tree(tmp_path / "out")
    assert out["ImageSets/Main/train.txt"] == b"a\nc\n" and out["Annotations/c.xml"] == before["Annotations/c.xml"]
    assert {"README.md", "JPEGImages/a.png", "JPEGImages/c.png"} <= set(out)
    assert not {"JPEGImages/b.png", "Annotations/b.xml", "Annotations/d.xml"} & set(out)
    objects = read_objects(read_xml(out["Annotations/a.xml"]))
    assert [(item.name, item.edges) for item in objects] == [("dog", (15, 1, 20, 5)), ("cat", (5, 3, 12, 6))]


def test_names_that_are_alike_and_a_filename_that_differs_are_reported(tmp_path):
    data = dataset(tmp_path, thing("cat"), thing("Cat ", (1, 1, 20, 10)), filename="other.jpg")
    report = check(data, "voc")
    assert [(issue.code, issue.message) for issue in report.issues] == [
        ("filename-differs", "it says other.jpg"),
        ("labels-alike", "'Cat' and 'cat' are different classes"),
    ]
    for name in ("a.jpg", "C:\\photos\\a.png", "a", ""):
        assert not check(dataset(tmp_path, thing("cat"), filename=name), "voc").issues
