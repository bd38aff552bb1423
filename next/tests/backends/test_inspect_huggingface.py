# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: configuration, headers of weights, processors; no model is built."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fewbit.backends.torch import BACKEND
from fewbit.backends.torch.huggingface import is_model_folder
from fewbit.errors import ModelError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}


def folder(path, config, **files):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        name = name.replace("__", ".")
        (path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def weights(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


TENSOR = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def test_a_language_model(tmp_path):
    path = folder(tmp_path / "m", LLAMA, model__safetensors=weights({"w": TENSOR, "__metadata__": {}}, bytes(16)))
    assert BACKEND.matches(path) and BACKEND.matches(str(path))
    info = BACKEND.inspect(path)
    assert info.kind == "LlamaForCausalLM" and info.task == "text-generation" and info.vocabulary == 100
    assert [(tensor.name, tensor.required) for tensor in info.inputs] == [
        ("input_ids", True),
        ("attention_mask", False),
    ]
    assert info.size == (path / "model.safetensors").stat().st_size
    assert info.facts["parameters"] == 4 and info.facts["max_positions"] == 64 and info.tokenizer is None
    for name in ("tokenizer.json", "tekken.json"):
        (path / name).write_text("{}")
        assert BACKEND.inspect(path).tokenizer == str(path)
        (path / name).unlink()


def test_an_image_classifier(tmp_path):
    config = {"architectures": ["ViTForImageClassification"], "image_size": 32, "id2label": {"1": "dog", "0": "cat"}}
    processor = {
        "do_resize": True,
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    path = folder(tmp_path / "m", config, preprocessor_config__json=processor)
    info = BACKEND.inspect(path)
    assert str(info.inputs[0]) == "pixel_values: float32 [batch, 3, 32, 32]"
    assert info.labels == ("cat", "dog") and info.task == "image-classification"
    assert info.preprocessing["image_size"] == [32, 32] and info.preprocessing["mean"] == [0.5] * 3
    folder(path, config | {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    assert BACKEND.inspect(path).labels is None


@pytest.mark.parametrize(
    ("settings", "quantized"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({}, "unknown"),
        (None, None),
        (3, None),
    ],
)
def test_quantized_models_are_recognized(tmp_path, settings, quantized):
    assert BACKEND.inspect(folder(tmp_path / "m", LLAMA | {"quantization_config": settings})).quantized == quantized


def test_a_million_layers_cost_nothing_and_nothing_heavy_is_imported(tmp_path):
    path = folder(tmp_path / "m", LLAMA | {"num_hidden_layers": 10**6, "hidden_size": 10**6})
    code = (
        f"import sys; from fewbit.backends.torch import BACKEND; info = BACKEND.inspect({str(path)!r}); "
        "assert info.facts['num_hidden_layers'] == 10**6; "
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=20).returncode == 0


def test_a_folder_that_transformers_saved(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=3, **sizes))
    model.save_pretrained(tmp_path / "m")
    info = BACKEND.inspect(tmp_path / "m")
    assert info.task == "text-classification" and info.labels is None
    assert info.facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\x01", "cut short"),
        (weights({"w": TENSOR}, bytes(8)), "cut short"),
        (weights({"w": TENSOR | {"shape": [10**9, 10**9]}}, bytes(16)), "claims the shape"),
        (weights({"w": TENSOR | {"shape": [-2, -2]}}, bytes(16)), "damaged header"),
        (weights({"w": 3}), "damaged header"),
        (weights([1]), "no JSON object"),
        ((10**15).to_bytes(8, "little") + b"{}", "cut short"),
        (b"\x02\0\0\0\0\0\0\0xy", "no JSON"),
    ],
)
def test_lying_and_damaged_headers_are_typed_errors(tmp_path, content, reason):
    path = folder(tmp_path / "m", LLAMA, model__safetensors=content)
    with pytest.raises(ModelError, match=reason) as caught:
        BACKEND.inspect(path)
    assert caught.value.code == "model-unreadable" and "model.safetensors" in caught.value.where


def test_missing_shards_are_named(tmp_path):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../../etc/passwd"}}
    path = folder(tmp_path / "m", LLAMA)
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "model-00001-of-00002.safetensors").write_bytes(weights({"a": TENSOR}, bytes(16)))
    with pytest.raises(ModelError, match=r"etc/passwd") as caught:
        BACKEND.inspect(path)
    assert caught.value.code == "weights-missing" and "00001" not in caught.value.what


@pytest.mark.parametrize("content", ["", "[]", "{", "<html>"])
def test_a_damaged_configuration(tmp_path, content):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(content)
    with pytest.raises(ModelError, match="not a readable"):
        BACKEND.inspect(tmp_path / "m")


@pytest.mark.parametrize(
    "config", [{"architectures": 3, "vocab_size": "x"}, {"text_config": 3}, {"id2label": [1]}, {"image_size": "x"}]
)
def test_odd_configurations_are_read(tmp_path, config):
    assert BACKEND.inspect(folder(tmp_path / "m", config | {"model_type": "x"})).inputs


def test_other_folders_are_not_taken(tmp_path):
    assert not is_model_folder(tmp_path)
    path = folder(tmp_path / "exported", LLAMA, model__onnx=b"x")
    assert not BACKEND.matches(path)
    (path / "model.safetensors").write_bytes(weights({"w": TENSOR}, np.ones(4, np.float32).tobytes()))
    assert BACKEND.matches(path)
