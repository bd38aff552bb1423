# SPDX-License-Identifier: Apache-2.0
"""`fewbit capture`."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, features, scale=1.0):
        assert not self.training and not torch.is_grad_enabled()
        return self.layer(features) * scale


def build():
    return Net()


def doubled(sample):
    return {"features": sample["features"][None] * 2}


rows = [torch.ones(2, 4) * index for index in range(3)]
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    return f"{tmp_path / 'net.py'}:build"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for index in range(12):
        np.savez(tmp_path / "data" / f"{index:02}.npz", features=np.arange(4, dtype=np.float32) + index)
    return tmp_path / "data"


def values(folder, name="features"):
    return [float(np.load(path)[name][0]) for path in sorted(folder.glob("*.npz"))]


def test_what_arrives_at_the_model_is_written(fewbit, model, data, tmp_path):
    code, out, err = fewbit("capture", model, "--data", data, "-o", "out", "--batch-size", 5)
    assert code == 0, err
    assert out.splitlines()[:2] == ["12 samples in out", "  input     features: float32 [4]"]
    assert sorted(values(tmp_path / "out")) == list(range(12))
    code, out, _ = fewbit("check", "out")
    assert code == 0 and "OK  no issues in 12 samples" in out


def test_samples_are_spread_and_named_as_asked(fewbit, model, data, tmp_path, tiny_onnx):
    code, out, _ = fewbit("capture", model, "--data", data, "-o", "few", "--samples", 3, "--names", "pixels", "--json")
    document = json.loads(out)
    assert code == 0 and document["record"]["samples"] == 3 and document["output"] == "few"
    assert set(values(tmp_path / "few", "pixels")) <= set(range(12))
    code, _, err = fewbit("capture", model, "--data", data, "-o", "onnx", "--names", tiny_onnx)
    assert code == 0 and list(np.load(tmp_path / "onnx" / "input0000.npz")) == ["x"], err


def test_a_transform_and_objects_of_a_python_file(fewbit, model, data, tmp_path):
    code, _, err = fewbit("capture", model, "--data", data, "-o", "out", "--transform", f"{tmp_path}/net.py:doubled")
    assert code == 0 and sorted(values(tmp_path / "out")) == [2 * index for index in range(12)], err


def test_mistakes_are_reported_before_anything_is_written(fewbit, model, data, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, _, err = fewbit("capture", model)
    assert code == 2 and "--data DATA" in err and "--output captured" in err and "2 problems" in err
    for words, text in (
        (["net.py:missing", "--data", data, "-o", "out"], "defines no 'missing'"),
        (["net.py", "--data", data, "-o", "out"], "FILE.py:FN"),
        ([model, "--data", "nowhere", "-o", "out"], "no file or folder"),
        ([model, "--data", data, "-o", data / "inside"], "lies inside"),
        ([model, "--data", data, "-o", "out", "--names", "a,b"], "2 names (a, b) for 1 input (features)"),
        ([model, "--data", data, "-o", "out", "--names", "missing.onnx"], "there is no model"),
        ([model, "--data", data, "-o", "out", "--factory", "net.py:build"], "has no --factory yet"),
    ):
        code, _, err = fewbit("capture", *words)
        assert code in (2, 3) and text in err, err
    assert sorted(tmp_path.rglob("*")) == before


def test_only_an_earlier_recording_is_overwritten(fewbit, model, data, tmp_path):
    command = ("capture", model, "--data", data, "-o", "out", "--samples", 2)
    assert fewbit(*command)[0] == 0
    code, _, err = fewbit(*command)
    assert code == 2 and "--overwrite replaces it" in err
    assert fewbit(*command, "--overwrite")[0] == 0
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, _, err = fewbit(*command, "--overwrite")
    assert code == 2 and "mine.txt" in err and len(values(tmp_path / "out")) == 2


def test_a_damaged_sample_can_be_dropped(fewbit, model, data, tmp_path):
    (data / "05.npz").write_bytes((data / "05.npz").read_bytes()[:100])
    code, _, err = fewbit("capture", model, "--data", data, "-o", "out")
    assert code == 3 and "05.npz" in err
    code, out, err = fewbit("capture", model, "--data", data, "-o", "out", "--on-error", "drop")
    assert code == 0 and "11 samples" in out, err


def test_a_model_that_fails_is_no_bug_of_fewbit(fewbit, model, tmp_path):
    (tmp_path / "wide").mkdir()
    np.savez(tmp_path / "wide" / "a.npz", features=np.ones(9, np.float32))
    code, _, err = fewbit("capture", model, "--data", "wide", "-o", "out")
    assert code == 3 and "[model-failed]" in err and "a.npz, given features [1, 9]" in err
    assert not (tmp_path / "out").exists()
