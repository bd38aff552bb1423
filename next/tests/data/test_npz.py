# SPDX-License-Identifier: Apache-2.0
"""`.npz` and `.npy` files: one sample per file, hostile files as typed issues, and the writer."""

import os
import pickle
import random
import tarfile
import zipfile

import numpy as np
import pytest

from fewbit import fix_dataset, open_dataset
from fewbit.data.formats import npz
from fewbit.data.formats.npz import write_npz
from fewbit.data.opening import locate, open_source, scan_source
from fewbit.data.types import SampleError
from fewbit.errors import DataError, FewbitError, UsageError, render


def pixels(seed, shape=(3, 4, 4), dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def checked(path, on_error=None, split=None, depth="full", **options):
    return scan_source(str(path), data_format="npz", data_option=options, on_error=on_error, split=split, depth=depth)[
        1
    ]


def opened(path, on_error=None, split=None, depth="index", **options):
    return open_source(str(path), data_format="npz", data_option=options, on_error=on_error, split=split, depth=depth)[
        0
    ]


@pytest.fixture(params=[np.savez, np.savez_compressed])
def save(request):
    return request.param


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(4):
        write_npz(tmp_path / "images" / f"input{number}.npz", {"x": pixels(number), "label": number})
    return tmp_path / "images"


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(12):
        sample = {"input_ids": np.arange(number, number + 6), "attention_mask": np.ones(6, np.int64)}
        write_npz(tmp_path / "texts" / f"input{number}.npz", sample)
    return tmp_path / "texts"


# Single files


def test_objects_are_refused_in_every_array_and_never_unpickled(tmp_path):
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.savez(tmp_path / "a.npz", fine=np.ones(2), bad=np.array([Boom()], object), worse=np.array([{}], object))
    for depth in ("index", "full"):
        report = checked(tmp_path / "a.npz", depth=depth)
        assert [(issue.code, issue.location.field) for issue in report.errors] == [
            ("array-dtype", "bad"),
            ("array-dtype", "worse"),
        ]
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "a.npz")
    assert "allow_pickle" not in str(caught.value)


def test_a_changed_byte_fails_the_checksum_on_full_depth(tmp_path, save):
    save(tmp_path / "a.npz", x=np.random.default_rng(0).integers(0, 1 << 40, 20_000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[40_000] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(raw)
    assert not checked(tmp_path / "a.npz", depth="index").errors
    assert list(checked(tmp_path / "a.npz").counts) == ["archive-corrupt"]
    with pytest.raises(SampleError) as caught:
        opened(tmp_path / "a.npz")[0]
    assert caught.value.code == "archive-corrupt" and "a.npz" in caught.value.where


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"\x93NUMPY\x01\x00" + b" " * 60, "suffix .npy"),
        ("a.npy", b"PK\x03\x04" + b" " * 60, "suffix .npz"),
        ("a.npz", b"\x1f\x8b" + b" " * 60, "gzip"),
        ("a.npz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.npy", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.npz", b"\n<!DOCTYPE html><html></html>", "web page"),
        ("a.npz", b"", "is empty"),
        ("a.npz", b"PK\x03\x04" + b"\0" * 100, "the rest is missing"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    (issue,) = checked(tmp_path).errors
    assert message in issue.message


def test_a_member_that_is_no_array_is_passed_over_and_reported(tmp_path):
    np.savez(tmp_path / "a.npz", x=pixels(0))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README.txt", "hello")
    assert checked(tmp_path).counts == {"member-not-array": 1}
    assert list(opened(tmp_path)[0]) == ["x"]


# Datasets


def test_one_sample_per_file_in_natural_order(texts):
    source = opened(texts)
    assert len(source) == 12 and source[10]["input_ids"][0] == 10
    assert [source.location(index).file for index in range(12)] == [f"input{i}.npz" for i in range(12)]
    assert not checked(texts).issues
    assert pickle.loads(pickle.dumps(source))[3]["input_ids"][0] == 3


def test_facts_name_the_arrays(images):
    np.savez(images / "input9.npz", x=pixels(9, (3, 5, 4)), label=1)
    assert opened(images).facts["columns"] == ["x", "label"]


def test_detection(images, tmp_path):
    assert npz.detect(locate(str(images), None)).confidence > 0.9
    assert npz.detect(locate(str(images / "input0.npz"), None)).confidence > 0.9
    for number in range(40):
        (images / f"{number}.txt").touch()
    assert npz.detect(locate(str(images), None)).confidence < 0.5
    (tmp_path / "empty").mkdir()
    assert npz.detect(locate(str(tmp_path / "empty"), None)) is None


def test_index_depth_reads_a_few_headers_only(tmp_path, monkeypatch):
    for number in range(200):
        write_npz(tmp_path / f"{number}.npz", {"x": pixels(number)})
    count = []
    original = npz.NpzSource.open
    monkeypatch.setattr(npz.NpzSource, "open", lambda self, name: count.append(name) or original(self, name))
    assert len(opened(tmp_path)) == 200
    assert len(set(count)) == 16


def test_a_lone_file_is_one_sample_unless_stacked(tmp_path):
    x, y = pixels(0, (5, 3, 4, 4)), np.arange(5)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=x, label=y)
        assert len(opened(tmp_path / "a.npz")) == len(opened(tmp_path / "a.npz", stacked=False)) == 1
        source = opened(tmp_path / "a.npz", stacked=True)
        assert len(source) == 5
        np.testing.assert_array_equal(source[3]["x"], x[3])
        assert source[3]["label"] == 3 and source[3]["label"].shape == ()
        assert source.location(3).row == 3
    assert checked(tmp_path / "a.npz").counts == {"stack-suspected": 1}
    assert not checked(tmp_path / "a.npz", stacked=False).counts
    assert checked(tmp_path / "a.npz", stacked=True).facts["samples"] == 5


def test_a_lone_stack_is_a_warning_that_names_the_option(tmp_path):
    np.savez(tmp_path / "a.npz", x=pixels(0, (1000, 3, 8, 8)), y=np.arange(1000))
    report = checked(tmp_path / "a.npz", depth="index")
    (issue,) = report.warnings
    assert issue.code == "stack-suspected" and "1,000 entries" in issue.message and not report.ok
    assert "--data-option stacked=true" in render(issue.type.hint, "cli")
    for name in range(3):
        np.save(tmp_path / f"{name}.npy", pixels(name, (3, 8, 8)))
    (tmp_path / "a.npz").unlink()
    assert not checked(tmp_path).counts  # numbered files of one shape are samples


@pytest.mark.parametrize("code", ["columns-suspected", "stacked-assumed"])
def test_older_codes_are_accepted(tmp_path, code):
    np.savez(tmp_path / "a.npz", x=pixels(0, (5, 3, 8, 8)), y=np.arange(5))
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "a.npz", {code: "raise"})
    assert caught.value.code == "stack-suspected"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_rows_of_a_stack_are_dropped_and_the_rest_is_read(tmp_path, save):
    x = pixels(0, (20, 3, 4, 4))
    x[7], x[11, 0] = np.nan, np.nan
    save(tmp_path / "a.npz", x=x, label=np.arange(20))
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])  # cut off
    source = opened(tmp_path, "drop", depth="full", stacked=True)
    rows = [row for row in range(20) if row not in (7, 11)]
    assert [int(source[index]["label"]) for index in range(len(source))] == rows
    assert [source.location(index).row for index in range(len(source))] == rows
    dataset = open_dataset(str(tmp_path), data_option={"stacked": True}, on_error="drop")
    assert [int(sample["label"]) for sample in dataset] == rows


@pytest.mark.parametrize("shape", [(3, 8, 8), (128,), (80, 300)])
def test_a_lone_array_is_never_suspected_to_be_a_stack(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=pixels(0, shape))
    assert not checked(tmp_path / "a.npz").counts and opened(tmp_path / "a.npz")[0]["x"].shape == shape


def test_a_folder_of_stacks(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (i + 2, 3, 4, 4)))
    source = opened(tmp_path, stacked=True)
    assert len(source) == 5
    np.testing.assert_array_equal(source[4]["x"], pixels(1, (3, 3, 4, 4))[2])
    np.savez(tmp_path / "2.npz", x=pixels(0, (2, 3, 4, 4)), z=np.arange(3))
    assert checked(tmp_path, stacked=True).counts["stack-uneven"] == 1
    with pytest.raises(DataError) as caught:
        opened(tmp_path, stacked=True)
    assert caught.value.code == "stack-uneven"
    assert len(opened(tmp_path, {"stack-uneven": "drop"}, stacked=True)) == 5


def test_rows_of_a_stored_stack_are_read_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4000.0).reshape(100, 40))
    source = opened(tmp_path / "a.npy", stacked=True)
    assert source[7]["array"][0] == 280 and len(source) == 100
    np.save(tmp_path / "f.npy", np.asfortranarray(np.arange(4000.0).reshape(100, 40)))
    assert opened(tmp_path / "f.npy", stacked=True)[7]["array"].tolist() == source[7]["array"].tolist()


def test_npy_files_are_samples_or_columns(tmp_path):
    np.save(tmp_path / "input_ids.npy", np.arange(40).reshape(5, 8))
    np.save(tmp_path / "attention_mask.npy", np.ones((5, 8), np.int64))
    assert [list(opened(tmp_path)[index]) for index in range(2)] == [["array"]] * 2
    assert checked(tmp_path).counts == {"stack-suspected": 1}
    assert not checked(tmp_path, stacked=False).counts
    source = opened(tmp_path, stacked=True)
    assert len(source) == 5 and source[2]["input_ids"].tolist() == list(range(16, 24))
    assert set(source.facts["columns"]) == {"input_ids", "attention_mask"}
    np.save(tmp_path / "attention_mask.npy", np.ones((4, 8), np.int64))
    assert checked(tmp_path, stacked=True).counts["stack-uneven"] == 1


def test_splits(tmp_path):
    for split, count in (("test", 1), ("validation", 2), ("train", 3)):
        (tmp_path / split).mkdir()
        for i in range(count):
            np.savez(tmp_path / split / f"{i}.npz", x=pixels(i))
    assert len(opened(tmp_path)) == 6
    assert [len(opened(tmp_path, split=name)) for name in ("train", "val", "test")] == [3, 2, 1]
    assert opened(tmp_path).facts["splits"] == {"train": 3, "val": 2, "test": 1}
    assert opened(tmp_path).strata() == ["train"] * 3 + ["val"] * 2 + ["test"]
    with pytest.raises(UsageError, match="no split"):
        opened(tmp_path, split="trian")


def test_files_named_after_splits_are_splits_only_together(tmp_path):
    for name, rows in (("train", 5), ("test", 2)):
        np.savez(tmp_path / f"{name}.npz", x=pixels(rows, (rows, 3)))
    assert opened(tmp_path, stacked=True).facts["splits"] == {"train": 5, "test": 2}
    np.savez(tmp_path / "input0.npz", x=pixels(2, (2, 3)))
    assert "splits" not in opened(tmp_path).facts


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test", "train_images train_labels val_images val_labels"])
def test_several_splits_in_one_file_are_an_error_with_the_line_to_write(tmp_path, names):
    shapes = [(60, 8, 8), (60,), (10, 8, 8), (10,)]
    np.savez(tmp_path / "mnist.npz", **{name: pixels(0, shape) for name, shape in zip(names.split(), shapes)})
    report = checked(tmp_path / "mnist.npz", depth="index")
    assert report.counts == {"splits-inside": 1} and "numpy.savez('train.npz'" in report.errors[0].message
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "mnist.npz")
    assert caught.value.code == "splits-inside"
    assert len(opened(tmp_path / "mnist.npz", stacked=False)) == 1
    assert len(opened(tmp_path / "mnist.npz", {"splits-inside": "keep"})) == 1
    np.savez(tmp_path / "fine.npz", train_step=np.arange(3), test_time=np.float32(1), x=pixels(0))
    assert not checked(tmp_path / "fine.npz").errors


def test_a_damaged_file_is_met_when_it_is_read_or_dropped(texts):
    (texts / "input3.npz").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        opened(texts)
    assert caught.value.code == "archive-broken"
    source = opened(texts, {"archive-broken": "drop"})
    assert len(source) == 11 and source.location(3).file == "input4.npz"


def test_every_problem_of_every_file_is_reported(texts):
    np.savez(texts / "input1.npz", input_ids=np.array([print]), attention_mask=np.array([{}]))
    (texts / "input2.npz").write_bytes((texts / "input0.npz").read_bytes()[:-9])
    (texts / "input4.npz").write_bytes(b"")
    report = checked(texts)
    assert report.counts == {"array-dtype": 2, "archive-broken": 2}
    assert {issue.location.file for issue in report.errors} == {"input1.npz", "input2.npz", "input4.npz"}


def test_files_that_differ_from_the_others(texts):
    np.savez(texts / "input1.npz", input_ids=np.arange(6))
    np.savez(texts / "input2.npz", input_ids=np.arange(6)[None], attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input3.npz", input_ids=np.arange(6.0), attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input4.npz", input_ids=np.arange(9), attention_mask=np.ones(9, np.int64))
    report = checked(texts)
    issues = {(issue.code, issue.location.file) for issue in report.issues}
    assert {("keys-differ", "input1.npz"), ("rank-differs", "input2.npz"), ("dtype-differs", "input3.npz")} <= issues
    assert report.counts["shape-differs"] == 1  # attention_mask; input_ids differs in rank, which says more


def test_values_and_duplicates_are_for_full_depth(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32), label=0)
    np.savez(images / "input2.npz", x=np.zeros((3, 4, 4), np.float32), label=0)
    np.savez_compressed(images / "input3.npz", x=pixels(0), label=0)
    np.savez(images / "input4.npz", x=np.full((3, 4, 4), 7, np.float32), label=0)
    np.savez(images / "input5.npz", x=np.array([[[np.inf, 1]]], np.float32), label=0)
    np.savez(images / "input6.npz", x=np.zeros((0, 4, 4), np.float32), label=0)
    report = checked(images)
    expected = {"array-nan": 1, "duplicate-sample": 1, "array-constant": 2, "array-inf": 1, "array-empty": 1}
    assert {code: report.counts[code] for code in expected} == expected
    assert set(checked(images, depth="index").counts) == {"shape-differs"}
    duplicate = next(issue for issue in report.issues if issue.code == "duplicate-sample")
    assert duplicate.location.file == "input3.npz" and "input0.npz" in duplicate.message
    nan = next(issue for issue in report.issues if issue.code == "array-nan")
    assert (nan.location.index, nan.location.field) == (1, "x")


def test_values_are_looked_at_while_reading_if_asked_for(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32), label=0)
    assert np.isnan(opened(images)[1]["x"]).all()
    with pytest.raises(SampleError) as caught:
        opened(images, {"array-nan": "drop"})[1]
    assert caught.value.code == "array-nan"
    source = opened(images, {"array-nan": "drop"}, depth="full")
    assert len(source) == 3 and source.location(1).file == "input2.npz"


def test_a_leading_axis_of_1_everywhere_is_noted(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (1, 3, 4, 4)))
    assert checked(tmp_path).counts == {"batch-suspected": 1}
    assert opened(tmp_path)[0]["x"].shape == (1, 3, 4, 4)  # and never cut


def test_other_files_are_noted_but_a_manifest_is_not(images):
    (images / "manifest.json").write_text("{}")
    (images / "notes.txt").write_text("hello")
    assert checked(images).counts == {"file-ignored": 1}


def test_a_tar_of_samples_is_read_in_place(images, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for i in (2, 0, 1):
            archive.add(images / f"input{i}.npz", f"data/train/input{i}.npz")
    source = opened(tmp_path / "a.tar")
    assert [source.location(index).file for index in range(3)] == [f"train/input{i}.npz" for i in range(3)]
    np.testing.assert_array_equal(source[1]["x"], pixels(1))
    assert source.facts["splits"] == {"train": 3}


def test_pipes_and_links_do_not_hang(images):
    os.mkfifo(images / "pipe.npz")
    os.symlink("nowhere", images / "link.npz")
    assert checked(images).counts == {"special-file": 1, "link-broken": 1}


@pytest.mark.parametrize("stacked", ["False", 1])
def test_an_option_of_the_wrong_kind_is_refused(images, stacked):
    with pytest.raises(UsageError, match="stacked"):
        opened(images, stacked=stacked)


def test_many_rows_without_a_value_are_a_bomb(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4_000_000_000, 0), np.float32))
    assert checked(tmp_path / "a.npz", stacked=True).counts == {"array-bomb": 1}


# Repair and writer


def test_a_clean_dataset_is_copied_unchanged(images, tmp_path):
    source = opened(images, "repair", depth="full")
    assert npz.write(source, tmp_path / "copy") == []
    for path in images.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_a_repair_renames_where_that_is_certain_and_leaves_the_damaged_out(texts, tmp_path):
    np.savez(texts / "input1.npz", **{"Input-IDs:0": np.arange(6) + 50, "attention_mask": np.ones(6, np.int64)})
    np.savez(texts / "input2.npz", tokens=np.arange(6), attention_mask=np.ones(6, np.int64))
    (texts / "input3.npz").write_bytes(b"")
    source, _ = scan_source(str(texts), on_error={"*": "repair", "archive-broken": "drop"}, depth="full")
    assert list(source[1]) == ["input_ids", "attention_mask"]
    changes = npz.write(source, tmp_path / "copy")
    assert changes == ["input3.npz: left out", "input1.npz: renamed 'Input-IDs:0' to 'input_ids'"]
    copy = checked(tmp_path / "copy")
    assert copy.counts == {"keys-differ": 1}  # "tokens" may be anything
    assert opened(tmp_path / "copy")[1]["input_ids"][0] == 50


@pytest.mark.parametrize("columns", [False, True])
def test_a_row_that_is_dropped_from_a_stack_is_not_in_the_copy(tmp_path, columns):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    x[1, 0] = x[4, 1] = np.nan
    data, whole = tmp_path / "data", tmp_path / "data" / "b"
    whole.mkdir(parents=True)
    if columns:
        np.save(data / "x.npy", x)
        np.save(data / "y.npy", y)
        np.save(whole / "x.npy", x + np.inf)
        np.save(whole / "y.npy", y)
    else:
        np.savez(data / "a.npz", x=x, y=y)
        np.savez(whole / "b.npz", x=x[:1] + 20, y=y[:1])
    options = {"data_option": {"stacked": True}, "on_error": {"array-nan": "drop", "array-inf": "drop"}}
    report = fix_dataset(data, tmp_path / "copy", **options)
    names = ["x.npy", "y.npy"] if columns else ["a.npz"]
    lost = ["b/x.npy, b/y.npy: left out, with every row"] if columns else []
    assert report.facts["changes"] == [*lost, *(f"{name}: left out rows 1, 4" for name in names)]
    copy = opened(tmp_path / "copy", stacked=True)
    assert [int(copy[index]["y"]) for index in range(len(copy))] == [0, 2, 3, 5] + ([] if columns else [0])
    assert not {"array-nan", "array-inf"} & set(report.facts["copy"].counts)
    assert report.facts["samples"] == (12 if columns else 7)
    if not columns:
        assert (tmp_path / "copy" / "b" / "b.npz").read_bytes() == (whole / "b.npz").read_bytes()


def test_a_stack_that_is_left_out_does_not_move_the_dropped_rows_of_the_next(tmp_path):
    x = np.arange(4.0)
    np.savez(tmp_path / "a.npz", z=x)
    for name, row in (("b", 2), ("c", 0)):
        np.savez(tmp_path / f"{name}.npz", x=np.where(x == row, np.nan, x))
    source = opened(tmp_path, {"keys-differ": "drop", "array-nan": "drop"}, depth="full", stacked=True)
    assert [float(source[index]["x"]) for index in range(len(source))] == [0, 1, 3, 1, 2, 3]


def test_a_mutated_dataset_ends_in_samples_or_typed_issues(tmp_path):
    npz.example(tmp_path)
    np.save(tmp_path / "bare.npy", pixels(0))
    paths = sorted(tmp_path.iterdir())
    chance = random.Random(11)
    for _ in range(60):
        path = chance.choice(paths)
        before = path.read_bytes()
        raw = bytearray(before)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        try:
            source, _ = scan_source(str(tmp_path), data_format="npz", depth="full")
            for index in range(len(source)):
                source[index]
        except FewbitError:
            pass
        path.write_bytes(before)
