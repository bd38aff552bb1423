# SPDX-License-Identifier: Apache-2.0
"""What every format must do, run over whatever the registry lists."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

import fewbit
from fewbit import registry
from fewbit.cli import _digits
from fewbit.data.findings import Code
from fewbit.data.sample import Sample

FORMATS = registry.names("formats")
ON_DISK = [name for name in FORMATS if name != "objects"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    made = {}

    def make(name):
        if name not in made:
            made[name] = _digits.MAKERS[name](tmp_path_factory.mktemp("digits") / name)
        return made[name]

    return make


def same(a, b):
    if isinstance(a, np.ndarray) or hasattr(a, "numpy"):
        return np.array_equal(np.asarray(a), np.asarray(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def tree(path: Path):
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.rglob("*")) if p.is_file()}


def test_every_format_has_an_example_in_the_demo():
    assert set(_digits.MAKERS) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_declared_once_and_well(name):
    codes = registry.get("formats", name).CODES
    assert codes
    for code, known in codes.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) and isinstance(known, Code)
        assert known.meaning and known.fix and set(known.policies) <= {"raise", "drop", "repair", "keep"}


def test_a_code_means_the_same_in_every_format():
    seen = {}
    for name in FORMATS:
        for code, known in registry.get("formats", name).CODES.items():
            assert seen.setdefault(code, known).severity is known.severity, code


@pytest.mark.parametrize("name", FORMATS)
def test_its_own_data_is_detected_and_fine(name, digits):
    report = fewbit.check_dataset(digits(name))
    assert report.format == name and report.why
    assert report.ok and not report.warnings, [str(f) for f in report.findings]
    assert report.samples and report.understood


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_pass_sees_the_same(name, digits):
    dataset = fewbit.Dataset(digits(name))
    assert same(list(dataset), list(dataset))


@pytest.mark.parametrize("name", ON_DISK)
def test_random_access_is_the_order_of_the_pass(name, digits):
    dataset = fewbit.open_dataset(digits(name))
    elements = list(dataset)
    assert len(dataset) == len(elements) == dataset.sample_count
    for index in (0, len(elements) // 2, -1):
        assert same(dataset[index], elements[index])
        assert dataset[index].place == elements[index].place


@pytest.mark.parametrize("name", ON_DISK)
def test_samples_know_where_they_come_from_and_carry_no_batch_axis(name, digits):
    dataset = fewbit.open_dataset(digits(name))
    assert not dataset.batched
    for index, sample in enumerate(dataset):
        assert isinstance(sample, Sample) and sample.place.path
        assert str(dataset.source.place(index).path) == sample.place.path


@pytest.mark.parametrize("name", ON_DISK)
def test_the_source_is_never_changed(name, digits, tmp_path):
    path = digits(name)
    before = tree(path)
    fewbit.check_dataset(path)
    list(fewbit.open_dataset(path))
    if hasattr(registry.get("formats", name), "fix"):
        fewbit.fix_dataset(path, tmp_path / "fixed")
    assert tree(path) == before


@pytest.mark.parametrize("name", [n for n in ON_DISK if hasattr(registry.get("formats", n), "fix")])
def test_fixing_what_is_fine_changes_nothing_it_holds(name, digits, tmp_path):
    fewbit.fix_dataset(digits(name), tmp_path / "fixed")
    assert same(list(fewbit.open_dataset(digits(name))), list(fewbit.open_dataset(tmp_path / "fixed")))
    assert fewbit.check_dataset(tmp_path / "fixed").ok


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_gets_what_it_takes(name, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = _digits.model(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    dataset = fewbit.Dataset(digits(name), _digits.as_model_input).subset(20)
    scores = [session.run(None, feed)[0] for feed in dataset.inputs(model)]
    assert sum(map(len, scores)) == 20


@pytest.mark.parametrize("name", ON_DISK)
def test_shards_of_a_folder_are_disjoint(name, digits):
    dataset = fewbit.open_dataset(digits(name))
    parts = [[s.place for s in dataset.shard(rank, 3)] for rank in range(3)]
    assert sorted(str(place) for part in parts for place in part) == sorted(str(s.place) for s in dataset)
