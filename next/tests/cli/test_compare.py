# SPDX-License-Identifier: Apache-2.0
"""`compare` from the command line and Python: ONNX files, modules, language models."""

import json
import warnings

import jsonschema
import numpy as np
import pytest

import fewbit as package
from fewbit.errors import FewbitWarning
from fewbit.record.schema import Record, json_schema

pytest.importorskip("onnxruntime")


@pytest.fixture
def small(fewbit, tiny_onnx, tmp_path):
    fewbit("quantize", tiny_onnx, "--preset", "w8a16", "-o", "small.onnx")
    return tmp_path / "small.onnx"


@pytest.fixture
def broken(tiny_onnx, tmp_path):
    """The same network with the columns of its last weight in another order."""
    onnx = pytest.importorskip("onnx")
    proto = onnx.load(tiny_onnx)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "V")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight)[:, ::-1].copy(), "V"))
    onnx.save(proto, str(tmp_path / "broken.onnx"))
    return tmp_path / "broken.onnx"


def labeled(tmp_path, model):
    """Samples whose label is what the model itself chooses."""
    import onnxruntime

    session, folder = onnxruntime.InferenceSession(str(model)), tmp_path / "labeled"
    folder.mkdir()
    draw = np.random.default_rng(5)
    for index in range(60):
        x = draw.normal(size=64).astype(np.float32)
        label = session.run(None, {"x": x[None]})[0].argmax()
        np.savez(folder / f"s{index}.npz", x=x, label=label)
    return folder


def test_the_screen_and_the_record(fewbit, tiny_onnx, small, npz_folder):
    code, out, err = fewbit("compare", tiny_onnx, small, "--data", npz_folder, "--runs", 3, "-o", "result.json")
    assert code == 0, err
    assert out.startswith("OK  ") and "x smaller" in out and "100 samples" in out and "held-out" not in out
    assert "median of 3" in out and "thread" in out and "ONNX Runtime" in out
    assert "original" in err and "seed 0" in err
    record = Record.read("result.json")
    jsonschema.validate(record.to_dict(), json_schema())
    assert record.command == "compare" and record.quality["samples"] == 100 and record.speed["runs"] == 3
    assert record.size["result"] < record.size["original"]
    code, _, err = fewbit("compare", tiny_onnx, small, "--data", npz_folder, "-o", "result.json")
    assert code == 2 and "--overwrite" in err
    words = ["compare", tiny_onnx, small, "--data", npz_folder, "--runs", 1, "-o", "result.json", "--overwrite"]
    assert fewbit(*words)[0] == 0


def test_a_broken_model_is_red_and_has_something_to_try(fewbit, tiny_onnx, broken, npz_folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = fewbit("compare", tiny_onnx, broken, "--data", npz_folder, "--runs", 1)
    assert code == 1 and out.startswith("\x1b[1;31mBROKEN") and "next " in out
    code, out, _ = fewbit("compare", tiny_onnx, broken, "--data", npz_folder, "--runs", 1, "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 1 and document["verdict"] == "broken"
    assert document["quality"]["agreement"] < 0.5


def test_labels_give_the_metric_of_both(fewbit, tiny_onnx, small, broken, tmp_path):
    data = labeled(tmp_path, tiny_onnx)
    record = package.compare(tiny_onnx, small, data, runs=1, progress=False)
    assert record.quality["metric"] == "accuracy" and record.quality["metric_values"][0] == 1
    assert record.verdict == "ok" and len(repr(record)) <= 120
    record = package.compare(tiny_onnx, broken, data, runs=1, progress=False, metric="f1")
    assert record.verdict == "broken" and record.quality["metric"] == "f1"
    record = package.compare(tiny_onnx, small, data, runs=1, progress=False, metric=lambda outputs, labels: 0.5)
    assert record.quality["metric_values"] == [0.5, 0.5]


def test_modules_are_ranked_and_packed_weights_counted(npz_folder):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = [np.random.default_rng(i).normal(size=64).astype(np.float32) for i in range(40)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewbitWarning)
        quantized = package.ModelQuantizer("w4a16").quantize_model(model, data)
        frozen = package.ModelQuantizer("w4a16").freeze(quantized)
    for result in (quantized, frozen):
        record = package.compare(model, result, data, runs=1, progress=False)
        assert record.size["original"] == 4 * (64 * 256 + 256 + 2560 + 10)
        assert 5 < record.size["original"] / record.size["result"] < 8  # 4 bits, scales, biases in float
        assert {row["name"] for row in record.layers} == {"0", "2"} and record.layers[0]["share"] >= 0.5
        assert "of the error" in record.quality["worst"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_two_frameworks(tiny_onnx, tmp_path):
    """A module and its export: inputs of the same name, the shape known to one of them."""
    torch, onnx = pytest.importorskip("torch"), pytest.importorskip("onnx")
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(tiny_onnx).graph.initializer}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(64, 256, bias=False), torch.nn.Linear(256, 10, bias=False)
            self.first.weight.data = torch.from_numpy(weights["W"].T.copy())
            self.last.weight.data = torch.from_numpy(weights["V"].T.copy())

        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    data = [{"x": np.random.default_rng(i).normal(size=64).astype(np.float32)} for i in range(20)]
    for pair in ((Net(), tiny_onnx), (tiny_onnx, Net())):
        record = package.compare(*pair, data, runs=1, progress=False)
        assert record.verdict == "ok" and record.quality["sqnr_db"] > 80


@pytest.mark.parametrize(("words", "code", "text"), [
    (["{model}"], 2, "compare needs MODEL"),
    (["{model}", "{model}"], 2, "compare needs --data"),
    (["{model}", "missing.onnx", "--data", "{data}"], 2, "there is no model"),
    (["{model}", "{model}", "--data", "{data}", "--metric", "acuracy"], 2, "accuracy"),
    (["{model}", "{model}", "--data", "{data}", "--metric", "accuracy"], 2, "needs labels"),
    (["{model}", "{model}", "--data", "{data}", "--device", "cuda"], 2, "run on the CPU"),
    (["{model}", "{model}", "--data", "{data}", "-o", "out.txt"], 2, ".json"),
    (["{model}", "{model}", "--data", "nowhere"], 3, "no file or folder"),
    (["{model}", "{model}", "--data", "{data}", "--factory", "a.py:b"], 2, "option-later"),
])  # fmt: skip
def test_mistakes_are_typed_and_leave_nothing(fewbit, tiny_onnx, npz_folder, tmp_path, words, code, text):
    before = sorted(tmp_path.iterdir())
    result, _, err = fewbit("compare", *[word.format(model=tiny_onnx, data=npz_folder) for word in words])
    assert result == code and text in err, err
    assert sorted(tmp_path.iterdir()) == before


def test_classes_are_matched_by_name(tmp_path, tiny_onnx):
    """The folder sorts its classes by name, the model has an order of its own."""
    from fewbit.api.compare import _label_map
    from fewbit.data.dataset import Dataset
    from fewbit.model_info import ModelInfo
    from fewbit.progress import Run

    source = Dataset([0]).source
    source.facts = {"classes": ["four", "one", "three", "two"]}
    dataset = Dataset.of(source)
    labels = _label_map(Run(), ModelInfo("m", "ONNX", "onnx", labels=("one", "Two", "three", "four")), dataset)
    assert [labels(number, {}) for number in range(4)] == [3, 0, 2, 1]
    labels = _label_map(Run(), ModelInfo("m", "ONNX", "onnx", labels=("one", "two", "dog", "cat")), dataset)
    assert labels(0, {}) is None
    labels = _label_map(Run(), ModelInfo("m", "ONNX", "onnx"), dataset)
    assert labels(2, {}) == 2
