# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints open as the float model: every tensor once, decoded when it is read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fewbit.checkpoints import compressed_tensors
from fewbit.checkpoints._base import LayerFormat
from fewbit.checkpoints._open import open_weights
from fewbit.checkpoints._verification import fingerprint
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import read_tensors, save_llama, write_quantized

GROUP, CHANNEL, BF16 = QSchemeType.per_group, QSchemeType.per_channel, ScaleType.bfloat16
PER_TOKEN = QuantizationGrid(Dtype.int8, QSchemeType.per_token)


def block_format(name):
    kind = BLOCK_FORMATS[name]
    return QuantizationGrid(kind.element, GROUP, group_size=kind.group_size, scale_type=kind.scale_type)


FORMATS = {
    "w4a16": LayerFormat(QuantizationGrid(Dtype.int4, GROUP, group_size=32, full_range=True, scale_type=BF16)),
    "w4a16_asym": LayerFormat(QuantizationGrid(Dtype.uint4, GROUP, group_size=32, symmetric=False, scale_type=BF16)),
    "w3a16": LayerFormat(QuantizationGrid(Dtype.int3, GROUP, group_size=32, scale_type=BF16)),
    "w8a16": LayerFormat(QuantizationGrid(Dtype.int8, CHANNEL)),
    "w8a8_dynamic": LayerFormat(QuantizationGrid(Dtype.int8, CHANNEL), PER_TOKEN),
    "fp8_a16": LayerFormat(QuantizationGrid(Dtype.fp8_e4m3, CHANNEL)),
    "fp8_block": LayerFormat(
        QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(32, 32)),
        QuantizationGrid(Dtype.fp8_e4m3, GROUP, group_size=32),
    ),
    "nvfp4_a16": LayerFormat(block_format("nvfp4")),
    "mxfp4_a16": LayerFormat(block_format("mxfp4")),
    "mxfp8_a16": LayerFormat(block_format("mxfp8_e4m3")),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """With tensors that no model class knows: a layer for multi-token prediction."""
    folder = save_llama(tmp_path_factory.mktemp("model"))
    tensors = read_tensors(folder)
    tensors |= {"mtp.layers.0.proj.weight": torch.ones(64, 64).bfloat16(), "mtp.norm.weight": torch.ones(64)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_compressed_tensors_open_with_integers_and_values(source, tmp_path, name):
    values = write_quantized(source, tmp_path / "out", compressed_tensors.CHECKPOINT, FORMATS[name])
    weights = open_weights(tmp_path / "out")
    assert set(weights) == set(values) and "mtp.norm.weight" in weights
    for key, value in values.items():
        assert weights.shape(key) == tuple(value.shape)
        assert fingerprint(weights.read(key), sums=True).shape == tuple(value.shape)
        if FORMATS[name].weight.two_level:
            assert torch.allclose(weights.read(key).float(), value.float(), rtol=1e-6, atol=0)
        else:
            assert torch.equal(weights.read(key).float(), value.float()), key
    key = "model.layers.0.mlp.down_proj.weight"
    tensor = weights.qtensor(key)
    assert torch.equal(tensor.dequantize(), weights.read(key)) and weights.qtensor("model.norm.weight") is None
    activation = weights.activation(key)
    wanted = FORMATS[name].activation
    assert (activation is None) == (wanted is None)
    if wanted is not None:
        assert (activation.dtype, activation.granularity) == (wanted.dtype, wanted.granularity)


def test_schemes_by_name_pattern_and_class(source, tmp_path):
    write_quantized(source, tmp_path / "out", compressed_tensors.CHECKPOINT, FORMATS["w4a16"])
    file = tmp_path / "out/config.json"
    content = json.loads(file.read_text())
    groups = content["quantization_config"]["config_groups"]
    eight = json.loads(json.dumps(groups["group_0"]))
    eight["targets"], eight["weights"]["num_bits"] = ["re:.*down_proj", "a.b"], 8
    groups["group_1"] = eight
    file.write_text(json.dumps(content))
    weights = open_weights(tmp_path / "out")
    bits = {name: weights.scheme(name)["weights"]["num_bits"] for name in ("x.down_proj", "a.b", "x.up_proj")}
    assert bits == {"x.down_proj": 8, "a.b": 8, "x.up_proj": 4}


def test_three_bits_as_older_libraries_packed_them():
    """Ten integers per word, two bits of each word unused."""
    integers = torch.arange(64) % 8
    words = torch.zeros(1, 7, dtype=torch.int32)
    for index, value in enumerate(integers):
        words[0, index // 10] |= int(value) << (3 * (index % 10))
    assert torch.equal(compressed_tensors._unpack(words, 3, 64)[0].long(), integers)


@pytest.mark.parametrize(
    "scale,settings",
    [
        (torch.rand(2, 3) + 0.1, {"weight_block_size": [32, 32]}),
        (torch.tensor(0.25), {}),
        (torch.rand(48, 1) + 0.1, {}),
    ],
    ids=["block", "tensor", "channel"],
)
def test_fp8_of_others(tmp_path, scale, settings):
    weight = torch.randn(48, 80, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    key = "l.weight_scale_inv" if "weight_block_size" in settings else "l.weight_scale"
    tensors = {
        "l.weight": weight,
        key: scale.contiguous(),
        "l.input_scale": torch.ones(1),
        "norm.weight": torch.ones(4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", **settings}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = open_weights(tmp_path)
    assert set(weights) == {"l.weight", "norm.weight"}
    wide = scale.repeat_interleave(32, 0)[:48].repeat_interleave(32, 1)[:, :80] if scale.shape == (2, 3) else scale
    assert torch.equal(weights.read("l.weight"), weight.float() * wide)
    assert torch.equal(weights.qtensor("l.weight").dequantize(), weight.float() * wide)


def test_a_float_model_is_itself_and_other_quantization_is_refused(source, tmp_path):
    weights = open_weights(source)
    tensors = read_tensors(source)
    assert set(weights) == set(tensors)
    assert all(torch.equal(weights.read(name), tensor) for name, tensor in tensors.items())
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(ModelError, match="bitsandbytes"):
        open_weights(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="00002-of-00002"):
        open_weights(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists mapped files")
def test_files_are_read_and_not_mapped(source):
    """Pages of mapped files would count as memory of the process while a model is passed through."""
    weights = open_weights(source)
    tensors = [weights.read(name) for name in weights]
    assert tensors and str(source) not in Path("/proc/self/maps").read_text()
