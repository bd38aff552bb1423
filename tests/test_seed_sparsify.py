# SPDX-License-Identifier: Apache-2.0
"""Every layout of data and every call of the document about datasets for sparsifying, made in our own code."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit import NumpyExportWrapper, sparsify
from fewbit.modules.opening import open_model
from sparse_examples import classifier, digest, encoder, graph, with_zeros
from word_tokenizer import make_tokenizer

pytest.importorskip("accelerate")

SHORT = {"max_steps": 4, "batch_size": 4, "lr": 1e-3, "device": "cpu", "tensorboard": False}
TRAINED = ("training-aware", "sparse-transfer")


def picture(path, number, size=(24, 18)):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(path)


@pytest.fixture
def cats_and_dogs(tmp_path):
    """One folder a class, pictures of different sizes and kinds."""
    root = tmp_path / "root"
    names = [f"{kind}/{name}" for kind in ("dog", "cat") for name in ("xxx", "xxy", "123", "nsa", "asd", "b", "c", "d")]
    for number, name in enumerate(names):
        picture(root / f"{name}.{'png' if number % 2 else 'jpeg'}", number, (16 + number, 20))
    return root


SLOW_MODES = [pytest.param(mode, marks=pytest.mark.slow) for mode in TRAINED]


@pytest.mark.parametrize("mode", ["one-shot", *SLOW_MODES])
def test_image_classification_from_one_folder_a_class(cats_and_dogs, mode):
    before = digest(cats_and_dogs)
    more = SHORT if mode in TRAINED else {}
    model = with_zeros(classifier(2)) if mode == "sparse-transfer" else classifier(2)
    result = sparsify(model, cats_and_dogs, mode=mode, use_case="image_classification", image_size=16, **more)
    facts = result.fewbit_record.facts
    assert facts["classes"] == ["cat", "dog"]  # cat is 0 and dog 1, by the alphabet
    assert facts["preprocessing"]["size"] == [16, 16] and facts["after"]["metric"]["name"] == "accuracy"
    assert digest(cats_and_dogs) == before


@pytest.fixture
def streets(tmp_path):
    """`images/` and `labels/` side by side, without splits and without a description."""
    for number in range(8):
        picture(tmp_path / "dataset" / "images" / f"image{number}.jpg", number, (32, 32))
        labels = tmp_path / "dataset" / "labels"
        labels.mkdir(exist_ok=True)
        (labels / f"image{number}.txt").write_text("0 0.5 0.6 0.2 0.3\n1 0.7 0.8 0.1 0.2\n")
    return tmp_path / "dataset"


def detector():
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    eyes = {"embedding_size": 16, "hidden_sizes": [16], "depths": [1], "layer_type": "basic"}
    config = DetrConfig(
        use_timm_backbone=False, backbone_config=ResNetConfig(**eyes, out_features=["stage1"]), num_labels=2,
        d_model=16, num_queries=3, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    return DetrForObjectDetection(config).eval()


@pytest.mark.slow
def test_object_detection_from_images_and_labels(streets):
    before = digest(streets)
    result = sparsify(detector(), streets, use_case="object_detection", optim_level=0.5, validation_ratio=0.25)
    facts = result.fewbit_record.facts
    assert facts["task"] == "object_detection" and facts["after"]["metric"]["name"] == "map"
    assert facts["after"]["sparsity"]["share"] > 0.3 and digest(streets) == before


def segmenter():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    return SegformerForSemanticSegmentation(config).eval()


@pytest.mark.slow
def test_image_segmentation_from_outlines(streets):
    for path in (streets / "labels").glob("*.txt"):
        path.write_text("0 0.1 0.1 0.6 0.1 0.6 0.6 0.1 0.6\n1 0.7 0.7 0.9 0.7 0.9 0.9\n")
    result = sparsify(segmenter(), streets, use_case="segmentation", validation_ratio=0.25)
    assert result.fewbit_record.facts["after"]["metric"]["name"] == "mean_iou"


ROWS = [("w10 w11 w12!", "positive"), ("w20 was w21.", "negative"), ("w30 about w31.", "neutral")] * 6


def rows(folder, form):
    lines = "".join(f'{{"text": "{text} w{40 + i}", "label": "{label}"}}\n' for i, (text, label) in enumerate(ROWS))
    table = "text,label\n" + "".join(f'"{text} w{40 + i}","{label}"\n' for i, (text, label) in enumerate(ROWS))
    path = folder / f"data.{form}"
    path.write_text(table if form == "csv" else lines, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["jsonl", *(pytest.param(form, marks=pytest.mark.slow) for form in ("json", "csv"))])
def test_sentiment_analysis_from_rows(tmp_path, form):
    model = encoder(tmp_path / "model", num_labels=3)
    result = sparsify(model, rows(tmp_path, form), use_case="sentiment_analysis", validation_ratio=0.3)
    facts = result.fewbit_record.facts
    assert facts["classes"] == ["negative", "neutral", "positive"]
    assert facts["after"]["metric"]["name"] == "accuracy" and facts["after"]["sparsity"]["share"] > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("mode", TRAINED)
def test_a_text_classifier_is_trained_from_rows(tmp_path, mode):
    model = encoder(tmp_path / "model", num_labels=3)
    if mode == "sparse-transfer":
        with_zeros(open_model(model)).save_pretrained(model)
    result = sparsify(model, rows(tmp_path, "jsonl"), mode=mode, use_case="nlp-text_classification", **SHORT)
    assert result.fewbit_record.facts["train"]["after"] is not None


NAMES = ("input_ids", "attention_mask", "token_type_ids")


def reader(path):
    """A small ONNX model with the inputs of BERT: a table, a sum weighed by the mask, two matrices."""
    rng = np.random.default_rng(0)
    tables = {"table": (96, 16), "kinds": (2, 16), "first": (16, 32), "second": (32, 2)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["kind"]),
        helper.make_node("Add", ["words", "kind"], ["both"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["both", "wide"], ["seen"]),
        helper.make_node("ReduceMean", ["seen"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["c"]),
        helper.make_node("Softmax", ["c"], ["scores"]),
    ]
    weights = [numpy_helper.from_array(rng.normal(size=size).astype(np.float32), n) for n, size in tables.items()]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 128]) for name in NAMES],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])],
        [*weights, numpy_helper.from_array(np.array([2]), "last")],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_one_shot_from_samples_of_a_text_model(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for number in range(1, 13):
        sample = {"input_ids": rng.integers(0, 50, 128), "attention_mask": np.ones(128, int)}
        np.savez(tmp_path / "data" / f"input{number}.npz", **sample, token_type_ids=rng.integers(0, 2, 128))
    result = sparsify(reader(tmp_path / "bert.onnx"), tmp_path / "data")
    assert isinstance(result, onnx.ModelProto)
    assert [value.name for value in result.graph.input] == list(NAMES)


def test_one_shot_of_a_graph_from_rows_of_text(tmp_path):
    """What the document has for the near future: the other layouts for one-shot too."""
    make_tokenizer(start=True, ends=True).save_pretrained(tmp_path)
    result = sparsify(reader(tmp_path / "bert.onnx"), rows(tmp_path, "csv"), use_case="text_classification")
    assert [value.name for value in result.graph.input] == list(NAMES)


def test_one_shot_names_a_sample_that_the_model_does_not_take(tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "input1.npz", input_ids=np.zeros(128, int), attention_mask=np.ones(128, int))
    with pytest.raises(fewbit.DataError, match="token_type_ids"):
        sparsify(reader(tmp_path / "bert.onnx"), tmp_path / "data")


def test_the_script_that_writes_samples_feeds_one_shot(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    loader = DataLoader(TensorDataset(torch.rand(12, 3, 16, 16), torch.arange(12) % 3), batch_size=4)
    model = NumpyExportWrapper(classifier())
    for data in loader:
        model(data[0])
    model.save()
    result = sparsify(graph(tmp_path / "model.onnx"), "data", use_case="custom", output="sparse")
    assert (result / "deployment" / "model.onnx").is_file() and (result / "record.json").is_file()
    again = sparsify(tmp_path / "model.onnx", "data", recipe=result / "deployment" / "recipe.yaml", output="again")
    names = [folder / "deployment" / "model.onnx" for folder in (result, again)]
    assert names[0].read_bytes() == names[1].read_bytes()


PLUGIN = """
import numpy as np

def readings(sample):
    return {"input": np.array([sample["a"], sample["b"]], np.float32), "label": int(sample["state"] == "hot")}

readings.TASK = "sequence_classification"
"""


@pytest.mark.slow
def test_a_use_case_by_plug_in(tmp_path):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    lines = [f'{{"a": {i / 10}, "b": {1 - i / 10}, "state": "{"hot" if i > 4 else "cold"}"}}' for i in range(10)]
    (tmp_path / "sensors.jsonl").write_text("\n".join(lines * 3))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 2))
    result = sparsify(
        model, tmp_path / "sensors.jsonl", mode="training-aware", use_case=f"{tmp_path / 'plugin.py'}:readings", **SHORT
    )
    assert result.fewbit_record.facts["after"]["metric"]["name"] == "accuracy"
