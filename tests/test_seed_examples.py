# SPDX-License-Identifier: Apache-2.0
"""The calls of the documents that describe the system, made in our own code: what concerns data in three of them."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit import NumpyExportWrapper


class Embed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(128, 4)

    def forward(self, input_ids):
        return self.layer(input_ids)


def collate(blocks):
    return {"input_ids": torch.Tensor([block["input_ids"] for block in blocks])}


# Calibration loaders: over a tensor, over lists without a batch size, over a dict with a collate_fn.
LOADERS = {
    "tensor": lambda: DataLoader(torch.rand(128, 128), batch_size=4, shuffle=False),
    "list of dicts": lambda: DataLoader(
        [{"input_ids": torch.rand(128, 128)}, {"input_ids": torch.rand(128, 128)}], batch_size=None, shuffle=False
    ),
    "list of tensors": lambda: DataLoader([torch.rand(128, 128), torch.rand(128, 128)], batch_size=None, shuffle=False),
    "dict": lambda: DataLoader({"input_ids": torch.rand(128, 128)}, batch_size=4, collate_fn=collate),
}


@pytest.mark.parametrize("form", LOADERS)
def test_each_form_of_a_calibration_loader_reaches_the_model(form):
    model = Embed()
    rows = 0
    for args, kwargs in fewbit.Dataset(LOADERS[form]()).subset(100).inputs(model):
        rows += model(*args, **kwargs).shape[0]
    assert rows == 100


def transform_fn(data_item):
    images, _ = data_item
    return images


@pytest.fixture
def val_loader():
    return DataLoader(TensorDataset(torch.rand(10, 3, 4, 4), torch.arange(10)), batch_size=4)


def test_a_transform_function_feeds_a_module_as_the_validation_loop_does(val_loader):
    model = torch.nn.Conv2d(3, 2, 1)
    by_hand = [model(transform_fn(item)) for item in val_loader]
    calibration_dataset = fewbit.Dataset(val_loader, transform_fn)
    ours = [model(*args, **kwargs) for args, kwargs in calibration_dataset.inputs(model)]
    assert all(torch.equal(a, b) for a, b in zip(by_hand, ours, strict=True))


def test_a_transform_function_feeds_a_session_as_the_validation_loop_does(val_loader, tmp_path):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 4, 4]) for n in ("images", "out")]
    graph = helper.make_graph([helper.make_node("Relu", ["images"], ["out"])], "g", value[:1], value[1:])
    model = str(tmp_path / "model.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    sess = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def to_feed(data_item):
        return {"images": data_item[0].numpy()}

    by_hand = [sess.run(["out"], input_feed=to_feed(item))[0] for item in val_loader]
    ours = [sess.run(["out"], input_feed=feed)[0] for feed in fewbit.Dataset(val_loader, to_feed).inputs(model)]
    assert all(np.array_equal(a, b) for a, b in zip(by_hand, ours, strict=True))


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(map(ord, str(path)))
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 10, 3), np.uint8)).save(path)


def test_the_image_folder_of_cats_and_dogs(tmp_path):
    for name in ("dog/xxx", "dog/xxy", "dog/xxz", "cat/123", "cat/nsa", "cat/asd"):
        picture(tmp_path / f"{name}.png")
    dataset = fewbit.open_dataset(tmp_path)
    assert dataset.classes == ["cat", "dog"]
    assert [sample["label"] for sample in dataset] == [0, 0, 0, 1, 1, 1]
    assert fewbit.check_dataset(tmp_path).ok


def test_the_flat_detection_folder(tmp_path):
    for i in (1, 2):
        picture(tmp_path / "images" / f"image{i}.jpg")
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / f"image{i}.txt").write_text("0 0.5 0.6 0.2 0.3\n1 0.7 0.8 0.1 0.2\n")
    sample = fewbit.open_dataset(tmp_path)[0]
    assert sample["classes"].tolist() == [0, 1]
    assert np.allclose(sample["boxes"], [[0.5, 0.6, 0.2, 0.3], [0.7, 0.8, 0.1, 0.2]])
    assert fewbit.check_dataset(tmp_path).ok


ROWS = [("I love it!", "positive"), ("It was awful.", "negative"), ("Mixed feelings, all in all.", "neutral")]


def test_sentiment_rows_as_json_lines_and_as_csv(tmp_path):
    lines = "".join(f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in ROWS)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.json").write_text(lines)
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f'"{text}","{label}"\n' for text, label in ROWS))
    for name in ("a.jsonl", "a.json", "a.csv"):
        assert [tuple(sample.values()) for sample in fewbit.open_dataset(tmp_path / name)] == ROWS
        assert fewbit.check_dataset(tmp_path / name).ok
    numbered = fewbit.open_dataset(tmp_path / "a.csv", task="text-classification")
    assert numbered.classes == ["negative", "neutral", "positive"]
    assert [sample["label"] for sample in numbered] == [2, 0, 1]


def test_a_folder_of_npz_samples_for_a_text_model(tmp_path):
    names = ("input_ids", "attention_mask", "token_type_ids")
    (tmp_path / "data").mkdir()
    for i in (1, 2, 10):
        np.savez(tmp_path / "data" / f"input{i}.npz", **{name: np.full(128, i) for name in names})
    dataset = fewbit.open_dataset(tmp_path / "data")
    assert [sample["input_ids"][0] for sample in dataset] == [1, 2, 10]
    assert all(sample[name].shape == (128,) for sample in dataset for name in names)


def test_the_export_wrapper_writes_samples_that_open(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = torch.nn.Conv2d(3, 2, 1)
    loader = DataLoader(TensorDataset(torch.rand(5, 3, 4, 4), torch.arange(5)), batch_size=2)
    model = NumpyExportWrapper(module)
    for data in loader:
        model(data[0])
    model.save()
    assert "5" in capsys.readouterr().out
    dataset = fewbit.open_dataset("data")
    expected = torch.cat([data[0] for data in loader]).numpy()
    assert np.array_equal(np.stack([sample["input"] for sample in dataset]), expected)
