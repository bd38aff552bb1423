# SPDX-License-Identifier: Apache-2.0
"""`quantize` of a Hugging Face folder to every checkpoint format."""

import pytest
import torch
from safetensors.torch import save_file

import fewbit
from fewbit.checkpoints._open import open_weights
from fewbit.errors import FewbitError
from tiny_checkpoints import read_tensors
from tiny_language_models import save, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save(tiny("llama"), tmp_path_factory.mktemp("sources") / "model")


@pytest.mark.parametrize(
    "preset,name",
    [
        ("w4a16", "gptq"), ("w8a16", "gptq"), ("w4a16_asym", "awq"), ("w4a16", "gguf"), ("q4_0", None),
        ("q8_0", "gguf"), ("int4", "gguf"), ("bf16", "gguf"), ("nf4", "safetensors"), ("w4a16", "compressed-tensors"),
    ],
)  # fmt: skip
def test_formats_and_presets(source, tmp_path, preset, name):
    options = {} if name is None else {"format": name}
    options |= {"target": "generic"} if name == "safetensors" else {}
    path, record = fewbit.quantize(source, preset=preset, output=tmp_path / "out", return_record=True, **options)
    weights, tensors = open_weights(next(path.glob("*.gguf"), path)), read_tensors(source)
    assert set(weights) == set(tensors) and record.verification["tensors"] == len(tensors)
    for key, value in tensors.items():
        error = float((weights.read(key).float() - value).square().sum() / value.square().sum())
        assert error < 0.02, key
        assert error > 0 or not key.endswith("proj.weight")
    assert sum(row["quantized"] for row in record.layers) >= 14
    assert record.size["result"] < 0.75 * record.size["original"]


def test_ignored_layers_stay_in_float(source, tmp_path):
    path, record = fewbit.quantize(
        source, preset="q4_0", ignore=["*.down_proj"], output=tmp_path / "out", return_record=True
    )
    assert {row["name"]: row["weight"] for row in record.layers}["model.layers.0.mlp.up_proj"] == "Q4_0"
    weights = open_weights(next(path.glob("*.gguf")))
    types = {name: weights.headers[name]["type"] for name in weights}
    assert (
        types["model.layers.0.mlp.down_proj.weight"] == "F32" and types["model.layers.0.mlp.up_proj.weight"] == "Q4_0"
    )


def test_a_model_the_format_cannot_hold_is_refused_before_it_is_quantized(tmp_path):
    source = save(tiny("llama"), tmp_path / "model")
    tensors = read_tensors(source) | {"mtp.layers.0.proj.weight": torch.ones(64, 64), "mtp.norm.weight": torch.ones(64)}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FewbitError, match="no place for 2 tensors"):
        fewbit.quantize(source, preset="q4_0", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path = fewbit.quantize(source, preset="w4a16", output=tmp_path / "kept")
    weights = open_weights(path)
    assert torch.equal(weights.read("mtp.norm.weight"), torch.ones(64)) and "mtp.layers.0.proj.weight" in weights
