# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors: what the format's library and transformers read is what was written."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig

from fewbit.algorithms._scale_search import search_scales
from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._shards import ShardWriter
from fewbit.checkpoints.compressed_tensors import CHECKPOINT
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

GROUP, CHANNEL = QSchemeType.per_group, QSchemeType.per_channel
BF16 = ScaleType.bfloat16


def block_format(name: str) -> QuantizationGrid:
    kind = BLOCK_FORMATS[name]
    return QuantizationGrid(kind.element, GROUP, group_size=kind.group_size, scale_type=kind.scale_type)


PER_TOKEN = QuantizationGrid(Dtype.int8, QSchemeType.per_token)
FORMATS = {
    "w4a16": LayerFormat(QuantizationGrid(Dtype.int4, GROUP, group_size=32, full_range=True, scale_type=BF16)),
    "w4a16 per channel": LayerFormat(QuantizationGrid(Dtype.int4, CHANNEL, scale_type=BF16)),
    "w4a16_asym": LayerFormat(QuantizationGrid(Dtype.uint4, GROUP, group_size=32, symmetric=False, scale_type=BF16)),
    "w3a16": LayerFormat(QuantizationGrid(Dtype.int3, GROUP, group_size=32, scale_type=BF16)),
    "w2a16": LayerFormat(QuantizationGrid(Dtype.int2, GROUP, group_size=32, scale_type=BF16)),
    "w8a16": LayerFormat(QuantizationGrid(Dtype.int8, CHANNEL, scale_type=BF16)),
    "w8a8_dynamic": LayerFormat(QuantizationGrid(Dtype.int8, CHANNEL, scale_type=BF16), PER_TOKEN),
    "fp8_dynamic": LayerFormat(QuantizationGrid(Dtype.fp8_e4m3, CHANNEL), PER_TOKEN.replace(dtype=Dtype.fp8_e4m3)),
    "fp8_a16": LayerFormat(QuantizationGrid(Dtype.fp8_e4m3, CHANNEL)),
    "nvfp4_a16": LayerFormat(block_format("nvfp4")),
    "mxfp4_a16": LayerFormat(block_format("mxfp4")),
}
WEIGHTS_ONLY = [name for name, kind in FORMATS.items() if kind.activation is None]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A tiny model in bfloat16."""
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=64, max_position_embeddings=64, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write(source: Path, folder: Path, kind: LayerFormat, *, ignore: str = "lm_head") -> dict[str, torch.Tensor]:
    """Quantize all layers by rounding and write them; returns the float values of every tensor."""
    folder.mkdir()
    values, tensors, layers = {}, [], {}
    with safe_open(source / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            value = file.get_tensor(name)
            layer = name.removesuffix(".weight")
            if name.endswith("proj.weight") and ignore not in name:
                tensor = QTensor.encode(value.float(), search_scales(value.float(), kind.weight))
                tensors.append(NamedTensor(name, tensor, layer))
                layers[layer], values[name] = kind, tensor.dequantize()
            else:
                tensors.append(NamedTensor(name, value))
                values[name] = value
                if "proj" in name:
                    layers[layer] = None
    CHECKPOINT.write(folder, tensors, CheckpointJob(source, layers | {"lm_head": None}))
    return values


@pytest.mark.parametrize("name", FORMATS)
def test_the_library_decodes_the_same_values(source, tmp_path, name):
    kind = FORMATS[name]
    assert CHECKPOINT.refusal(kind) is None
    values = write(source, tmp_path / "out", kind)
    decoded = dict(CHECKPOINT.read(tmp_path / "out"))
    assert decoded.keys() == values.keys()
    for key, value in values.items():
        if kind.weight.two_level:  # the file holds the reciprocal of the global scale
            assert torch.allclose(decoded[key].float(), value.float(), rtol=1e-6, atol=0), key
        else:
            assert torch.equal(decoded[key].float(), value.float()), key


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_transformers_computes_with_these_weights(source, tmp_path, name):
    values = write(source, tmp_path / "out", FORMATS[name], ignore="layers.1.mlp")
    dtype = torch.bfloat16 if FORMATS[name].weight.dtype is Dtype.fp4 else torch.float32  # what its library decodes to
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=dtype)
    expected = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    expected.load_state_dict(values, strict=False)
    ids = torch.arange(1, 25).reshape(2, 12)
    with torch.no_grad():
        difference = (loaded(ids).logits - expected(ids).logits).abs().max()
    assert difference < 0.02 * expected(ids).logits.abs().max()
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_formats_it_cannot_hold():
    for grid, reason in [
        (QuantizationGrid(Dtype.nf4, GROUP, group_size=32), "nf4"),
        (QuantizationGrid(Dtype.int4, scale_type=ScaleType.pof2), "power-of-two"),
        (QuantizationGrid(Dtype.int16), "16 bits"),
    ]:
        assert reason in CHECKPOINT.refusal(LayerFormat(grid))


def test_large_models_are_written_in_several_files(tmp_path):
    writer = ShardWriter(tmp_path, limit=3000)
    tensors = {f"layer.{index}": torch.full((256,), float(index)) for index in range(7)}
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    names = writer.close()
    assert names == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)] + ["model.safetensors.index.json"]
    import json

    index = json.loads((tmp_path / names[-1]).read_text())
    assert index["metadata"]["total_size"] == 7 * 1024
    for name, tensor in tensors.items():
        with safe_open(tmp_path / index["weight_map"][name], framework="pt") as file:
            assert torch.equal(file.get_tensor(name), tensor)
    assert not list(tmp_path.glob("*.tmp"))
