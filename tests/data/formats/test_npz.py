# SPDX-License-Identifier: Apache-2.0
import os
import random
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

import fewbit
from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.arrays.npz_writer import write_npz
from fewbit.data.findings import DataReport, Policy, Severity
from fewbit.data.formats import npz
from fewbit.data.signature import InputSpec, Signature
from fewbit.errors import DataError, FewbitError, UsageError
from mutation import mutate

IMAGE = Signature("onnx", (InputSpec("x", ("batch", 3, 4, 4), "float32"),))
BERT = Signature("onnx", tuple(InputSpec(name, ("batch", "seq"), "int64") for name in ("input_ids", "attention_mask")))


def opened(path, policy=None, split=None, **options):
    return npz.read(path, split=split, task=None, policy=Policy(npz.CODES, policy), **options)


def checked(path, signature=None, quick=False, **options) -> DataReport:
    report = DataReport(str(path), codes=npz.CODES)
    npz.check(path, report, task=None, signature=signature, quick=quick, **options)
    return report


def repaired(source, out, signature=None, **options):
    out.mkdir()
    return npz.fix(source, out, task=None, signature=signature, **options)


def pixels(seed, shape=(3, 4, 4), dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(4):
        np.savez(folder / f"input{i}.npz", x=pixels(i), label=i)
    return folder


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        np.savez(folder / f"input{i}.npz", input_ids=np.arange(6) + i, attention_mask=np.ones(6, np.int64))
    return folder


def test_one_sample_per_file_in_natural_order(texts):
    source = opened(texts)
    assert [sample.place.path for sample in source] == [f"input{i}.npz" for i in range(12)]
    assert len(source) == 12 and source.get(10)["input_ids"][0] == 10
    assert source.place(2).path == "input2.npz" and source.place(2).index == 2
    assert checked(texts, BERT).ok and not checked(texts, BERT).findings


def test_detect(images, tmp_path):
    assert npz.detect(images).confidence > 0.9
    assert npz.detect(images / "input0.npz").confidence > 0.9
    assert npz.detect(tmp_path / "none") is None
    assert npz.detect([1, 2]) is None
    (tmp_path / "empty").mkdir()
    assert npz.detect(tmp_path / "empty") is None


def test_a_stacked_npz_is_many_samples(tmp_path):
    x, y = pixels(0, (5, 3, 4, 4)), np.arange(5)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=x, label=y)
        for options in ({}, {"signature": IMAGE}, {"stacked": True}):
            source = opened(tmp_path / "a.npz", **options)
            assert len(source) == 5
            np.testing.assert_array_equal(source.get(3)["x"], x[3])
            assert source.get(3)["label"] == 3 and source.get(3)["label"].shape == ()
    assert len(opened(tmp_path / "a.npz", stacked=False)) == 1
    assert checked(tmp_path / "a.npz").counts == {"stacked-assumed": 1}
    assert checked(tmp_path / "a.npz").understood["samples"] == 5
    assert not checked(tmp_path / "a.npz", IMAGE).findings


def test_samples_with_the_whole_shape_of_every_input(tmp_path):
    """The batch axis of the state is not its first: what looks like two samples is one."""
    model = Signature("onnx", (InputSpec("x", (1, 6), "float32"), InputSpec("state", (2, 1, 3), "float32")))
    (tmp_path / "data").mkdir()
    for i in range(3):
        np.savez(tmp_path / "data" / f"{i}.npz", x=pixels(i, (1, 6)), state=pixels(i, (2, 1, 3)))
    report = checked(tmp_path / "data", model)
    assert not report.findings and report.understood["samples"] == 3
    assert [s["state"].shape for s in opened(tmp_path / "data", signature=model)] == [(2, 1, 3)] * 3
    assert repaired(tmp_path / "data", tmp_path / "out", model) == []
    np.savez(tmp_path / "all.npz", x=pixels(0, (4, 1, 6)), state=pixels(1, (4, 2, 1, 3)))
    for options in ({}, {"signature": model}):
        assert len(opened(tmp_path / "all.npz", **options)) == 4
    assert not checked(tmp_path / "all.npz", model).findings


def test_a_lone_sample_is_not_taken_for_a_stack(images):
    assert len(opened(images / "input0.npz")) == 1
    np.savez(images / "b.npz", x=pixels(0))
    assert len(opened(images / "b.npz")) == 1
    assert opened(images / "b.npz").get(0)["x"].shape == (3, 4, 4)


def test_a_folder_of_stacks(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (i + 2, 3, 4, 4)))
    source = opened(tmp_path, stacked=True)
    assert [sample.place.index for sample in source] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(source.get(4)["x"], pixels(1, (3, 3, 4, 4))[2])
    np.savez(tmp_path / "2.npz", x=pixels(0, (2, 3, 4, 4)), z=np.arange(3))
    assert checked(tmp_path, stacked=True).counts["stack-uneven"] == 1
    with pytest.raises(DataError) as caught:
        list(opened(tmp_path, stacked=True))
    assert caught.value.code == "stack-uneven"


def test_npy_files(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"sample{i}.npy", pixels(i))
    source = opened(tmp_path)
    assert [list(sample) for sample in source] == [["input"]] * 3
    assert list(opened(tmp_path, signature=IMAGE).get(1)) == ["x"]
    assert not checked(tmp_path, IMAGE).findings
    np.save(tmp_path / "stack.npy", pixels(9, (7, 3, 4, 4)))
    assert len(opened(tmp_path / "stack.npy")) == 7


def test_npy_columns(tmp_path):
    np.save(tmp_path / "input_ids.npy", np.arange(40).reshape(5, 8))
    np.save(tmp_path / "attention_mask.npy", np.ones((5, 8), np.int64))
    for options in ({"stacked": True}, {"signature": BERT}):
        source = opened(tmp_path, **options)
        assert len(source) == 5
        assert source.get(2)["input_ids"].tolist() == list(range(16, 24))
    assert checked(tmp_path, BERT).ok


def test_npy_files_without_a_model_are_a_sample_each_and_may_be_columns(tmp_path):
    np.save(tmp_path / "cat.npy", pixels(0, (8, 8, 3)))
    np.save(tmp_path / "dog.npy", pixels(1, (8, 8, 3)))
    source = opened(tmp_path)
    assert [sample["input"].shape for sample in source] == [(8, 8, 3)] * 2
    assert [line["what"] for line in source.record.lines] == ["columns-suspected"]
    assert checked(tmp_path).counts == {"columns-suspected": 1}
    assert not checked(tmp_path, stacked=False).findings
    assert len(opened(tmp_path, stacked=True)) == 8


def test_a_tar_of_samples_is_read_in_place(images, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for i in (2, 0, 1):
            archive.add(images / f"input{i}.npz", f"data/input{i}.npz")
    assert npz.detect(tmp_path / "a.tar").confidence > 0.9
    source = opened(tmp_path / "a.tar", signature=IMAGE)
    assert [sample.place.path for sample in source] == [f"a.tar/data/input{i}.npz" for i in range(3)]
    np.testing.assert_array_equal(source.get(1)["x"], pixels(1))
    assert checked(tmp_path / "a.tar", IMAGE).ok
    assert not repaired(tmp_path / "a.tar", tmp_path / "fixed", IMAGE)
    assert (tmp_path / "fixed" / "a.tar").read_bytes() == (tmp_path / "a.tar").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "fixed", "images"]


def test_a_damaged_tar_is_a_finding(tmp_path, images):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(images / "input0.npz", "input0.npz")
        archive.add(images / "input1.npz", "input1.npz")
    raw = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(raw[:2600])
    assert checked(tmp_path / "a.tar").counts["archive-broken"]


def test_splits(tmp_path):
    for split, count in (("test", 1), ("validation", 2), ("train", 3)):
        (tmp_path / split).mkdir()
        for i in range(count):
            np.savez(tmp_path / split / f"{i}.npz", x=pixels(i))
    assert len(opened(tmp_path)) == 6
    assert [len(opened(tmp_path, split=name)) for name in ("train", "val", "validation", "test")] == [3, 2, 2, 1]
    assert opened(tmp_path).facts["splits"] == ["train", "val", "test"]
    assert checked(tmp_path).understood["splits"] == {"train": 3, "val": 2, "test": 1}
    with pytest.raises(UsageError):
        opened(tmp_path, split="trian")


def test_reading_looks_at_no_file_before_it_is_asked(texts):
    (texts / "input3.npz").write_bytes(b"broken")
    source = opened(texts)
    assert len(source) == 12 and source.get(2)["input_ids"][0] == 2
    with pytest.raises(DataError) as caught:
        source.get(3)
    assert "input3.npz" in caught.value.where and "sample 3" in caught.value.where


def test_a_broken_file_can_be_dropped_and_is_noted(texts):
    (texts / "input3.npz").write_bytes(b"broken")
    source = opened(texts, {"archive-broken": "drop"})
    assert len(source) == 11 == len(list(source))
    assert [line["what"] for line in source.record.lines] == ["archive-broken"]


def test_a_damaged_value_can_be_dropped_while_iterating(texts):
    raw = bytearray((texts / "input3.npz").read_bytes())
    raw[raw.index(b"\n") + 3] ^= 1
    (texts / "input3.npz").write_bytes(raw)
    with pytest.raises(DataError, match="checksum"):
        list(opened(texts))
    assert len(list(opened(texts, {"array-corrupt": "drop"}))) == 11


def test_check_finds_every_fault_of_every_file(texts):
    np.savez(texts / "input1.npz", input_ids=np.array([print]), attention_mask=np.array([{}]))
    (texts / "input2.npz").write_bytes((texts / "input0.npz").read_bytes()[:-9])
    (texts / "input4.npz").write_bytes(b"")
    report = checked(texts)
    assert report.counts["array-dtype"] == 2 and report.counts["archive-broken"] == 2
    assert {finding.place.path for finding in report.errors} == {"input1.npz", "input2.npz", "input4.npz"}


def test_object_arrays_are_found_by_quick_checks(texts):
    np.savez(texts / "input1.npz", input_ids=np.array([print]), attention_mask=np.ones(6))
    assert checked(texts, quick=True).counts["array-dtype"] == 1


def test_file_and_allow_pickle_are_names_like_others(tmp_path):
    write_npz(tmp_path / "file.npz", {"file": pixels(0), "allow_pickle": np.arange(2)})
    assert set(opened(tmp_path).get(0)) == {"file", "allow_pickle"}
    assert checked(tmp_path).ok


def test_names_are_suggested_and_repaired_only_when_asked(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", Input_IDs=np.arange(6) + i, mask=np.ones(6, np.int64))
    report = checked(tmp_path, BERT)
    assert report.counts["input-name"] == 6 and not report.ok
    with pytest.raises(DataError) as caught:
        opened(tmp_path, signature=BERT).get(0)
    assert "rename=" in caught.value.try_
    source = opened(tmp_path, {"input-name": "repair"}, signature=BERT)
    assert set(source.get(2)) == {"input_ids", "attention_mask"}
    assert [line["what"] for line in source.record.lines] == ["input-name", "input-name"]
    rename = {"Input_IDs": "input_ids", "mask": "attention_mask"}
    assert not checked(tmp_path, BERT, rename=rename).findings
    assert set(opened(tmp_path, rename=rename).get(0)) == {"input_ids", "attention_mask"}


def test_missing_and_extra_arrays_are_told_with_place(texts):
    np.savez(texts / "input5.npz", input_ids=np.arange(6), stray=np.zeros((2, 2, 2)))
    report = checked(texts, BERT)
    assert report.counts["input-missing"] == 1 and report.counts["input-extra"] == 1
    finding = report.errors[0]
    assert (finding.place.path, finding.place.index, finding.place.field) == ("input5.npz", 5, "attention_mask")


def test_a_batch_dimension_of_1_is_squeezed(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (1, 3, 4, 4)))
    source = opened(tmp_path, signature=IMAGE)
    assert source.get(0)["x"].shape == (3, 4, 4)
    assert [line["what"] for line in source.record.lines] == ["batch-dimension"]
    assert checked(tmp_path, IMAGE).counts["batch-dimension"] == 3
    assert checked(tmp_path).counts == {"batch-suspected": 1}


def test_a_batch_dimension_of_n_becomes_n_samples(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=pixels(i, (2, 3, 4, 4)), label=np.arange(2) + 2 * i)
    source = opened(tmp_path, signature=IMAGE)
    assert len(source) == 6
    np.testing.assert_array_equal(source.get(5)["x"], pixels(2, (2, 3, 4, 4))[1])
    assert [int(sample["label"]) for sample in source] == list(range(6))
    assert checked(tmp_path, IMAGE).understood["samples"] == 6


def test_nhwc_is_hinted_and_turned_when_asked(tmp_path):
    np.savez(tmp_path / "0.npz", x=pixels(0, (4, 4, 3)))
    assert checked(tmp_path, IMAGE).counts == {"input-layout": 1}
    sample = opened(tmp_path, {"input-layout": "repair"}, signature=IMAGE).get(0)
    np.testing.assert_array_equal(sample["x"], pixels(0, (4, 4, 3)).transpose(2, 0, 1))


def test_dtypes_are_cast_safely_or_refused(tmp_path):
    np.savez(tmp_path / "0.npz", input_ids=np.arange(6, dtype=np.int32), attention_mask=np.ones(6, np.float32))
    assert checked(tmp_path, BERT, quick=True).counts == {"dtype-refused": 1}
    np.savez(tmp_path / "0.npz", input_ids=np.arange(6, dtype=np.int32), attention_mask=np.ones(6, bool))
    assert opened(tmp_path, signature=BERT).get(0)["attention_mask"].dtype == np.int64


def test_targets_stay_in_the_sample_and_out_of_the_way(images):
    source = opened(images, signature=IMAGE)
    assert source.get(2)["label"] == 2 and "label" in source.targets
    assert not checked(images, IMAGE).findings


def test_files_that_differ_from_the_others(texts):
    np.savez(texts / "input1.npz", input_ids=np.arange(6))
    np.savez(texts / "input2.npz", input_ids=np.arange(6)[None], attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input3.npz", input_ids=np.arange(6.0), attention_mask=np.ones(6, np.int64))
    np.savez(texts / "input4.npz", input_ids=np.arange(9), attention_mask=np.ones(9, np.int64))
    report = checked(texts)
    told = {(finding.code, finding.place.path) for finding in report.findings}
    assert {("keys-differ", "input1.npz"), ("rank-differs", "input2.npz"), ("dtype-differs", "input3.npz")} <= told
    assert report.counts["shape-differs"] == 1  # attention_mask; input_ids differs in rank, which says more


def test_values_and_duplicates_are_for_deep_checks(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32))
    np.savez(images / "input2.npz", x=np.zeros((3, 4, 4), np.float32))
    np.savez_compressed(images / "input3.npz", x=pixels(0), label=0)
    report = checked(images, IMAGE)
    assert report.counts == {"array-nan": 1, "array-zero": 1, "duplicate-sample": 1}
    assert not checked(images, IMAGE, quick=True).findings
    duplicate = next(f for f in report.findings if f.code == "duplicate-sample")
    assert duplicate.place.path == "input3.npz" and "input0.npz" in duplicate.message


def test_ids_beyond_the_vocabulary(texts):
    assert checked(texts, BERT, vocab_size=16).counts == {"id-range": 1}
    source = opened(texts, {"id-range": "drop"}, vocab_size=16)
    assert len(list(source)) == 11


def test_values_are_looked_at_while_reading_when_the_policy_says_so(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32))
    assert len(list(opened(images))) == 4
    assert len(list(opened(images, {"array-nan": "drop"}))) == 3
    with pytest.raises(DataError):
        list(opened(images, {"array-nan": "raise"}))


def test_a_corrupt_stack_is_found_in_the_deep_check(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(20_000).reshape(100, 200))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[90_000] ^= 255
    (tmp_path / "a.npz").write_bytes(raw)
    assert checked(tmp_path / "a.npz").counts["array-corrupt"] == 1


def test_other_files_are_told_but_a_manifest_is_not(images):
    (images / "manifest.json").write_text("{}")
    (images / "notes.txt").write_text("hello")
    assert checked(images).counts == {"file-ignored": 1}


def captured(folder, outputs=True):
    for i in range(3):
        for kind in ("input", "output")[: 1 + outputs]:
            (folder / f"sample-{kind}s").mkdir(parents=True, exist_ok=True)
            write_npz(folder / f"sample-{kind}s" / f"{kind}{i:08}.npz", {kind: pixels(i, (2 + len(kind),))})
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.mark.parametrize("prefix", ["", "train"])
def test_outputs_beside_the_inputs_are_told_and_not_read(tmp_path, prefix):
    captured(tmp_path / "in" / prefix)
    folder = tmp_path / "in"
    report = checked(folder)
    assert report.ok and report.counts == {"outputs-ignored": 1} and report.understood["samples"] == 3
    assert report.findings[0].place.path.endswith("sample-outputs") and "3 files" in report.findings[0].message
    source = opened(folder)
    assert [list(sample) for sample in source] == [["input"]] * 3
    assert [line["what"] for line in source.record.lines] == ["outputs-ignored"]
    assert len(opened(folder / prefix / "sample-outputs")) == 3
    assert repaired(folder, tmp_path / "out") == []
    names = [{path.relative_to(root) for path in root.rglob("*")} for root in (folder, tmp_path / "out")]
    assert names[0] == names[1]


def test_outputs_without_inputs_are_samples(tmp_path):
    captured(tmp_path)
    shutil.rmtree(tmp_path / "sample-inputs")
    assert len(opened(tmp_path)) == 3 and checked(tmp_path).ok


def test_a_changed_copy_says_what_it_does_not_take_along(tmp_path):
    folder = captured(tmp_path / "in")
    (folder / "sample-inputs" / "input00000001.npz").write_bytes(b"")
    lines = repaired(folder, tmp_path / "out")
    assert sum("sample-outputs" in line for line in lines) == 3 and any("manifest.json" in line for line in lines)
    assert len(list((tmp_path / "out").rglob("*.npz"))) == 2


def test_one_file_in_a_folder_is_one_sample_unless_the_user_or_the_model_says_otherwise(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "input1.npz", x=pixels(0, (24, 24, 3)))
    assert [sample["x"].shape for sample in opened(data)] == [(24, 24, 3)]
    assert not checked(data).findings and checked(data).understood["samples"] == 1
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(data / "input1.npz", "input1.npz")
    assert len(opened(tmp_path / "a.tar")) == 1
    np.savez(data / "input1.npz", x=pixels(0, (5, 3, 4, 4)))
    assert [len(opened(data, **said)) for said in ({}, {"stacked": True}, {"signature": IMAGE})] == [1, 5, 5]
    assert checked(data, IMAGE).counts == {"batch-dimension": 1}


def test_a_copy_of_a_lone_stack_means_the_same(tmp_path):
    stack = pixels(0, (12, 24, 3))
    np.savez(tmp_path / "named.npz", x=stack, label=np.arange(12))
    np.save(tmp_path / "bare.npy", stack)
    for name in ("named.npz", "bare.npy"):
        lines = repaired(tmp_path / name, tmp_path / f"{name}-copy")
        assert lines == [f"{name}: split into 12 samples"]
        before, after = list(opened(tmp_path / name)), list(opened(tmp_path / f"{name}-copy"))
        assert len(before) == len(after) == 12
        for one, other in zip(before, after):
            assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    assert (tmp_path / "bare.npy-copy" / "bare_00.npy").exists()  # an array without a name gets none


def test_a_split_file_takes_no_other_files_name(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "a.npz", x=pixels(0, (2, 3, 4, 4)))
    np.savez(data / "a_0.npz", x=pixels(1))
    repaired(data, tmp_path / "out", IMAGE)
    assert len(opened(tmp_path / "out", signature=IMAGE)) == 3


def test_a_name_in_a_file_that_is_not_the_models_is_told(tmp_path):
    np.savez(tmp_path / "0.npz", input=pixels(0))
    np.save(tmp_path / "1.npy", pixels(1))
    report = checked(tmp_path, IMAGE)
    assert report.counts == {"input-renamed": 1} and report.findings[0].place.path == "0.npz"
    source = opened(tmp_path, signature=IMAGE)
    assert [list(sample) for sample in source] == [["x"]] * 2
    assert [line["what"] for line in source.record.lines] == ["input-renamed"]


def test_advice_for_a_batch_of_n_loses_no_sample(tmp_path):
    np.savez(tmp_path / "0.npz", x=pixels(0, (5, 3, 4, 4)))
    np.savez(tmp_path / "1.npz", x=pixels(1, (1, 3, 4, 4)))
    many, one = (f for f in checked(tmp_path, IMAGE).findings if f.code == "batch-dimension")
    assert "one file a sample" in many.fix and "--fix" in many.fix and "[0]" not in many.fix
    assert "x[0]" in one.fix


@pytest.mark.parametrize(
    "options",
    [
        {"rename": "input=image"},
        {"rename": {"a": 1}},
        {"stacked": "False"},
        {"stacked": 1},
        {"targets": "label"},
        {"targets": 3},
        {"vocab_size": "many"},
        {"vocab_size": 0},
    ],
)
def test_options_of_the_wrong_kind_are_refused_with_the_right_form(images, tmp_path, options):
    (name,) = options
    for call in (opened, checked):
        with pytest.raises(UsageError, match=name) as caught:
            call(images, **options)
        assert caught.value.expected.startswith(f"{name}=")
    with pytest.raises(UsageError, match=name):
        repaired(images, tmp_path / "out", **options)


def test_sample_numbers_of_check_are_those_of_the_dataset(tmp_path):
    bad = np.full((2, 3, 4, 4), np.nan, np.float32)
    np.savez(tmp_path / "input0.npz", x=pixels(0, (5, 3, 4, 4)))
    np.savez(tmp_path / "input1.npz", x=bad)
    np.savez(tmp_path / "input2.npz", x=pixels(2, (2, 4, 4, 3)))  # does not fit, and counts all the same
    np.savez(tmp_path / "input3.npz", x=np.zeros((3, 4, 4), np.float32))
    report = fewbit.check_dataset(tmp_path, model=IMAGE)
    dataset = fewbit.open_dataset(tmp_path, signature=IMAGE)
    assert len(dataset) == report.understood["samples"] == 10
    numbers = {(f.code, f.place.path): f.place.index for f in report.findings if f.code.startswith("array-")}
    assert numbers == {("array-nan", "input1.npz"): 6, ("array-zero", "input3.npz"): 9}
    assert all(dataset.source.place(number).path == path for (_, path), number in numbers.items())
    assert [sample["place"] for sample in report.samples] == [f"input0.npz, sample {n}" for n in range(3)]


def test_a_copy_without_a_sample_is_refused(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for i in range(5):
        np.savez(data / f"{i}.npz", x=np.full((3, 4, 4), np.nan, np.float32))
    with pytest.raises(DataError, match="no sample is left") as caught:
        fewbit.fix_dataset(data, tmp_path / "out")
    assert "NaN" in caught.value.what and not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test", "train_images train_labels val_images val_labels"])
def test_several_splits_in_one_file_are_told(tmp_path, names):
    shapes = [(60, 8, 8), (60,), (10, 8, 8), (10,)]
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "mnist.npz", **{name: pixels(0, shape) for name, shape in zip(names.split(), shapes)})
    for path in (data / "mnist.npz", data):
        (finding,) = checked(path, quick=True).errors
        assert finding.code == "splits-inside" and "numpy.savez('train.npz'" in finding.fix
        for split in (None, "train"):
            with pytest.raises(DataError) as caught:
                opened(path, split=split)
            assert caught.value.code == "splits-inside"
        with pytest.raises(DataError, match="2 splits"):
            repaired(path, tmp_path / f"out-{path.name}")
        assert len(opened(path, stacked=False)) == len(opened(path, {"splits-inside": "keep"})) == 1
    np.savez(tmp_path / "fine.npz", train_step=np.arange(3), test_time=np.float32(1), x=pixels(0))
    assert not checked(tmp_path / "fine.npz").errors


def test_a_file_the_system_refuses_says_so(images, tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(images / "input0.npz", "input0.npz")

    def refuse(real, suffixes):
        def call(path, *more, **options):
            if str(path).endswith(suffixes):
                raise PermissionError(13, "Permission denied")
            return real(path, *more, **options)

        return call

    monkeypatch.setattr(os, "open", refuse(os.open, "input1.npz"))
    monkeypatch.setattr("builtins.open", refuse(open, ".tar"))
    for path, place in ((images, "input1.npz"), (images / "input1.npz", "input1.npz"), (tmp_path / "a.tar", "a.tar")):
        finding = checked(path).errors[0]
        assert (finding.code, finding.place.path) == ("unreadable", place)
        assert "Permission denied" in finding.message and "permissions" in finding.fix
        with pytest.raises(DataError, match="Permission denied"):
            list(opened(path))
        assert npz.detect(path) is not None
    assert len(list(opened(images, {"unreadable": "drop"}))) == 3


def test_many_rows_without_a_value_are_a_bomb(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4_000_000_000, 0), np.float32))
    assert checked(tmp_path / "a.npz").counts == {"array-bomb": 1}


def test_a_stack_of_batches_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=pixels(0, (5, 2, 3, 4, 4)))
    assert checked(tmp_path, IMAGE, stacked=True).counts == {"stack-uneven": 1}
    with pytest.raises(DataError, match="2 samples once more"):
        opened(tmp_path, signature=IMAGE, stacked=True).get(0)


def test_a_stack_without_rows_has_no_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((0, 3), np.float32))
    report = checked(tmp_path / "a.npz")
    assert not report.ok and report.counts["no-samples"] == 1


def test_splits_inside_a_tar(images, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(images / "input0.npz", "train/0.npz")
        archive.add(images / "input1.npz", "test/0.npz")
    assert opened(tmp_path / "a.tar").facts["splits"] == ["train", "test"]
    assert opened(tmp_path / "a.tar", split="test").get(0)["label"] == 1


def test_a_rename_that_cannot_be_followed_is_told_without_a_model_too(images, tmp_path):
    for rename in ({"z": "q"}, {"x": "label"}):
        assert checked(images, rename=rename).counts["rename-unknown"] == 4
        with pytest.raises(DataError) as caught:
            opened(images, rename=rename).get(0)
        assert caught.value.code == "rename-unknown"
        with pytest.raises(UsageError):
            repaired(images, tmp_path / f"out{len(rename)}{next(iter(rename))}", rename=rename)
    assert set(opened(images, rename={"x": "label", "label": "x"}).get(0)) == {"x", "label"}
    np.savez(images / "input9.npz", pixels=pixels(9), label=9)
    assert checked(images, IMAGE, rename={"pixels": "x"}).ok  # four files have the right name already


def test_an_array_with_a_wrong_name_is_judged_all_the_same(tmp_path):
    np.savez(tmp_path / "0.npz", np.ones(6, np.float32), np.ones((2, 2, 2), np.int64))
    found = [(finding.code, finding.place.field) for finding in checked(tmp_path, BERT, quick=True).errors]
    assert ("dtype-refused", "input_ids") in found and ("input-shape", "attention_mask") in found
    assert sum(code == "input-name" for code, _ in found) == 2


def test_a_batch_in_the_wrong_layout_is_split_and_turned(tmp_path):
    batch = pixels(0, (2, 4, 4, 3))
    np.savez(tmp_path / "0.npz", x=batch)
    np.savez(tmp_path / "1.npz", x=batch + 1)
    report = checked(tmp_path, IMAGE)
    assert report.counts == {"input-layout": 2} and "x[i].transpose(2, 0, 1)" in report.findings[0].fix
    source = opened(tmp_path, {"input-layout": "repair"}, signature=IMAGE)
    np.testing.assert_array_equal(source.get(1)["x"], batch[1].transpose(2, 0, 1))


def test_samples_dropped_for_their_values_are_in_no_part_of_the_dataset(images):
    np.savez(images / "input1.npz", x=np.full((3, 4, 4), np.nan, np.float32))
    dataset = fewbit.open_dataset(images, policy={"array-nan": "drop"})
    assert len(dataset) == 3
    parts = dataset.split(0.5, 0.5)
    assert sorted(int(sample["label"]) for part in parts for sample in part) == [0, 2, 3]
    assert dataset.source.place(1).path == "input2.npz"
    assert [line["what"] for line in dataset.record.lines] == ["array-nan"]


def test_places_of_check_and_read_agree_behind_a_damaged_file(images):
    (images / "input0.npz").write_bytes(b"")
    np.savez(images / "input2.npz", x=np.zeros((3, 4, 4), np.float32))
    (zeros,) = (finding for finding in checked(images).findings if finding.code == "array-zero")
    assert opened(images).place(zeros.place.index).path == zeros.place.path == "input2.npz"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.npz", b"\x93NUMPY\x01\x00" + b" " * 60, "suffix .npy"),
        ("a.npy", b"PK\x03\x04" + b" " * 60, "suffix .npz"),
        ("a.npz", b"\x1f\x8b" + b" " * 60, "gzip"),
        ("a.npz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.npz", b"\n<!DOCTYPE html><html></html>", "web page"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    (finding,) = checked(tmp_path).errors
    assert told in finding.message


def test_npy_files_that_fit_are_copied_as_they_are(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(2):
        np.save(tmp_path / "in" / f"{i}.npy", pixels(i))
    assert repaired(tmp_path / "in", tmp_path / "out", IMAGE) == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.npy", "1.npy"]


def test_no_samples(tmp_path):
    assert checked(tmp_path).counts == {"no-samples": 1}
    with pytest.raises(DataError) as caught:
        opened(tmp_path)
    assert caught.value.code == "no-samples"


def test_pipes_and_links_do_not_hang(images):
    os.mkfifo(images / "pipe.npz")
    os.symlink("nowhere", images / "link.npz")
    report = checked(images)
    assert report.counts == {"not-a-file": 1, "link-broken": 1}


def test_a_clean_dataset_is_copied_unchanged(images, tmp_path):
    assert repaired(images, tmp_path / "out", IMAGE) == []
    for path in images.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_fix_repairs_all_it_can_and_drops_the_rest(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "good.npz", x=pixels(0), label=1)
    np.savez(folder / "named.npz", **{"X:0": pixels(1)})
    np.savez(folder / "batch1.npz", x=pixels(2, (1, 3, 4, 4)))
    np.savez(folder / "batch3.npz", x=pixels(3, (3, 3, 4, 4)), label=np.arange(3))
    np.savez(folder / "double.npz", x=pixels(4).astype(np.float64))
    np.savez(folder / "nhwc.npz", x=pixels(5, (4, 4, 3)))
    np.savez(folder / "extra.npz", x=pixels(6), stray=np.zeros((9, 9)))
    np.savez(folder / "pixels.npz", x=np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
    np.savez(folder / "wrong.npz", x=pixels(7, (3, 5, 5)))
    np.savez(folder / "nan.npz", x=np.full((3, 4, 4), np.nan, np.float32))
    (folder / "broken.npz").write_bytes(b"PK")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = repaired(folder, tmp_path / "out", IMAGE)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    out = sorted(path.name for path in (tmp_path / "out").iterdir())
    kept = ("good", "named", "batch1", "batch3_0", "batch3_1", "batch3_2", "double", "nhwc", "extra", "pixels")
    assert out == sorted(f"{name}.npz" for name in kept)
    assert sum("left out:" in line for line in lines) >= 3
    report = checked(tmp_path / "out", IMAGE)
    assert report.ok and set(report.counts) == {
        "dtype-unscaled",
        "dtype-differs",
    }  # pixels are for their owner to scale
    assert read_npz(tmp_path / "out" / "batch3_2.npz")["label"] == 2


def test_fix_without_a_model_drops_what_differs(texts, tmp_path):
    np.savez(texts / "input1.npz", input_ids=np.arange(6))
    (texts / "input2.npz").write_bytes(b"")
    lines = repaired(texts, tmp_path / "out")
    assert len(lines) == 2 and checked(tmp_path / "out").ok
    assert len(list((tmp_path / "out").iterdir())) == 10


def test_fix_splits_the_stacks_of_a_folder_only_when_it_must(tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", x=pixels(0, (4, 3, 4, 4)))
    assert repaired(tmp_path / "data", tmp_path / "same", stacked=True) == []
    np.savez(tmp_path / "a.npz", x=pixels(0, (4, 3, 4, 4)).astype(np.float64), label=np.arange(4))
    assert repaired(tmp_path / "a.npz", tmp_path / "out", IMAGE)
    assert len(list((tmp_path / "out").iterdir())) == 4 and not checked(tmp_path / "out", IMAGE).findings


def test_every_code_says_what_to_do():
    for code, known in npz.CODES.items():
        assert known.meaning and known.fix, code
        assert known.policy in ("raise", "drop", "repair", "keep")
        assert known.severity in Severity


def test_mutated_datasets_end_in_samples_or_typed_findings(tmp_path):
    valid = tmp_path / "valid"
    valid.mkdir()
    np.savez(valid / "0.npz", x=pixels(0), label=1)
    np.savez_compressed(valid / "1.npz", x=pixels(1), label=1)
    np.save(valid / "2.npy", pixels(2))
    with tarfile.open(valid / "3.tar", "w") as archive:
        archive.add(valid / "0.npz", "a.npz")
    chance = random.Random(11)
    bad = tmp_path / "bad"
    for round_ in range(250):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(valid, bad)
        victim = chance.choice(sorted(bad.iterdir()))
        victim.write_bytes(mutate(victim.read_bytes(), chance))
        signature = IMAGE if round_ % 2 else None
        checked(bad, signature)
        try:
            for sample in opened(bad, signature=signature):
                assert sum(np.asarray(value).nbytes for value in sample.values()) < 1 << 20
        except FewbitError:
            pass
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        repaired(bad, tmp_path / "out", signature)
        assert checked(tmp_path / "out", signature).ok


def test_a_huge_claim_in_one_file_costs_nothing(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000, 4000000000), }"
    fake = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", fake)
    assert checked(tmp_path).counts == {"array-bomb": 1}
