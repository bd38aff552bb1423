# SPDX-License-Identifier: Apache-2.0
"""GPTQ and AWQ: the layouts of the specifications, read back bit by bit, and the same values as compressed-tensors."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fewbit.checkpoints import awq, compressed_tensors, gptq
from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._weights import decode_words
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import read_tensors, save_llama, write_quantized

GROUP, CHANNEL = QSchemeType.per_group, QSchemeType.per_channel
BF16, F16 = ScaleType.bfloat16, ScaleType.float16
INT4 = QuantizationGrid(Dtype.int4, GROUP, group_size=32, full_range=True, scale_type=BF16)
UINT4 = QuantizationGrid(Dtype.uint4, GROUP, group_size=32, symmetric=False, scale_type=BF16)
GPTQ = {
    "int4 groups": INT4, "int4 rows": INT4.replace(granularity=CHANNEL, scale_type=F16, full_range=False),
    "int8 groups": QuantizationGrid(Dtype.int8, GROUP, group_size=32, scale_type=F16),
    "int3 groups": QuantizationGrid(Dtype.int3, GROUP, group_size=32, scale_type=BF16),
    "int2 groups": QuantizationGrid(Dtype.int2, GROUP, group_size=32, scale_type=BF16),
    "uint4 symmetric": UINT4.replace(symmetric=True),
}  # fmt: skip
AWQ = {"uint4 groups": UINT4, "int4 groups": INT4, "uint4 rows": UINT4.replace(granularity=CHANNEL)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("model"))


def by_hand_gptq(arrays, bits):
    """The published formula, one element at a time."""
    words, scales, index = arrays["qweight"].numpy(), arrays["scales"].float().numpy(), arrays["g_idx"].numpy()
    stream = [int(np.uint32(word)) for word in words[:, 0]]
    bits_of_column = sum(word << (32 * place) for place, word in enumerate(stream))
    zeros = arrays["qzeros"].numpy()
    values = []
    for i in range(len(index)):
        code = (bits_of_column >> (bits * i)) & ((1 << bits) - 1)
        zero = (int(np.uint32(zeros[index[i], 0])) & ((1 << bits) - 1)) + 1
        values.append(np.float32(scales[index[i], 0]) * np.float32(code - zero))
    return np.array(values)


@pytest.mark.parametrize("name", GPTQ)
def test_gptq_reads_back_as_it_was_written(source, tmp_path, name):
    layer = LayerFormat(GPTQ[name])
    assert gptq.CHECKPOINT.refusal(layer, (64, 64)) is None
    values = write_quantized(source, tmp_path / "out", gptq.CHECKPOINT, layer)
    stored = read_tensors(tmp_path / "out")
    owner = "model.layers.0.mlp.up_proj"
    arrays = {part: stored[f"{owner}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")}
    bits = GPTQ[name].dtype.bits
    assert arrays["qweight"].shape == (64 * bits // 32, 96) and arrays["scales"].dtype == torch.float16
    assert np.array_equal(by_hand_gptq(arrays, bits), values[f"{owner}.weight"][0].numpy())
    settings = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert (settings["bits"], settings["sym"], settings["desc_act"]) == (bits, True, False)
    assert settings["dynamic"]["-:^lm_head$"] == {}


@pytest.mark.parametrize("name", AWQ)
def test_awq_reads_back_as_it_was_written(source, tmp_path, name):
    layer = LayerFormat(AWQ[name])
    assert awq.CHECKPOINT.refusal(layer, (64, 64)) is None
    values = write_quantized(source, tmp_path / "out", awq.CHECKPOINT, layer)
    stored = read_tensors(tmp_path / "out")
    owner = "model.layers.1.self_attn.q_proj"
    words, zeros, scales = (stored[f"{owner}.{part}"].numpy() for part in ("qweight", "qzeros", "scales"))
    place = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibble of each output: AutoAWQ's unpacking order
    size = len(words) // len(scales)
    for out in (0, 1, 5, 14, 63):
        for i in (0, 1, 33, 63):
            shift, group = 4 * place[out % 8], i // size
            code = (int(np.uint32(words[i, out // 8])) >> shift) & 15
            zero = (int(np.uint32(zeros[group, out // 8])) >> shift) & 15
            wanted = np.float32(scales[group, out]) * np.float32(code - zero)
            assert wanted == values[f"{owner}.weight"][out, i].item()
    settings = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert settings["modules_to_not_convert"] == ["lm_head"] and settings["version"] == "gemm"


def test_all_three_formats_hold_the_same_values(source, tmp_path):
    decoded = {}
    for checkpoint in (gptq.CHECKPOINT, awq.CHECKPOINT, compressed_tensors.CHECKPOINT):
        folder = tmp_path / checkpoint.name
        write_quantized(source, folder, checkpoint, LayerFormat(INT4))
        decoded[checkpoint.name] = dict(checkpoint.read(folder))
    for name, value in decoded["compressed_tensors"].items():
        assert torch.equal(decoded["gptq"][name], value) and torch.equal(decoded["awq"][name], value), name


@pytest.mark.parametrize("checkpoint", [gptq.CHECKPOINT, awq.CHECKPOINT], ids=lambda item: item.name)
def test_a_changed_bit_is_noticed(source, tmp_path, checkpoint):
    class Damaged(type(checkpoint)):
        def write(self, folder, tensors, job):
            files = super().write(folder, tensors, job)
            path = folder / "model.safetensors"
            content = bytearray(path.read_bytes())
            content[-3000] ^= 1
            path.write_bytes(content)
            return files

    with pytest.raises(ModelError, match="other values"):
        write_quantized(source, tmp_path / "out", Damaged(), LayerFormat(INT4))


def test_what_they_cannot_hold_is_said():
    gptq_says, awq_says = gptq.CHECKPOINT.refusal, awq.CHECKPOINT.refusal
    assert "zero points" in gptq_says(LayerFormat(UINT4))
    assert "activations" in awq_says(LayerFormat(INT4, QuantizationGrid(Dtype.int8)))
    assert "nf4" in gptq_says(LayerFormat(QuantizationGrid(Dtype.nf4, GROUP, group_size=32)))
    assert "not 8" in awq_says(LayerFormat(INT4.replace(dtype=Dtype.int8)))
    assert "multiples of 32" in awq_says(LayerFormat(INT4), (60, 64))
    assert "do not divide" in gptq_says(LayerFormat(INT4.replace(group_size=128)), (64, 64))
    assert "per_tensor" in gptq_says(LayerFormat(QuantizationGrid(Dtype.int4, scale_type=F16)))
    wide = LayerFormat(QuantizationGrid(Dtype.int8, CHANNEL))
    assert "float32" in gptq_says(wide) and gptq_says(gptq.CHECKPOINT.adapt(wide)) is None


def test_scales_that_float16_does_not_have_are_refused(tmp_path):
    scale = torch.full((32, 1), 2.0**-20 * 1.0078125)
    tensor = QTensor.encode(torch.zeros(32, 32), QParams(INT4, (1, 32), scale))
    job = CheckpointJob(tmp_path, {"layer": LayerFormat(INT4)})
    with pytest.raises(ModelError, match="float16"):
        gptq.CHECKPOINT.write(tmp_path, [NamedTensor("layer.weight", tensor, "layer")], job)


@pytest.mark.parametrize("low,high", [(-17, 15)])
def test_every_bfloat16_scale_of_ordinary_size_is_a_float16(low, high):
    bits = torch.arange(1 << 15, dtype=torch.int32) << 16
    scale = bits.view(torch.float32)
    inside = (scale >= 2.0**low) & (scale <= 65280)
    assert torch.equal(scale[inside].half().float(), scale[inside])


def test_awq_refuses_names_that_readers_would_confuse_and_two_group_sizes(tmp_path):
    layers = {"model.layers.1": None, "model.layers.10": LayerFormat(INT4)}
    with pytest.raises(ModelError, match=r"take model.layers.10 for float"):
        awq.CHECKPOINT.check(CheckpointJob(tmp_path, layers))
    layers = {"a": LayerFormat(INT4), "b": LayerFormat(INT4.replace(group_size=64))}
    with pytest.raises(ModelError, match="32 and 64"):
        awq.CHECKPOINT.check(CheckpointJob(tmp_path, layers))


def test_other_widths_are_listed_by_name_in_gptq(tmp_path):
    layers = {
        "a.b": LayerFormat(INT4),
        "c": LayerFormat(INT4),
        "d": replace(LayerFormat(INT4.replace(dtype=Dtype.int8))),
    }
    settings = gptq.quantization_config(CheckpointJob(tmp_path, {**layers, "e": None}))
    assert settings["dynamic"] == {"-:^e$": {}, "+:^d$": {"bits": 8, "group_size": 32}}


def test_gptq_of_others_with_zero_points_and_activation_order(tmp_path):
    """What GPTQModel writes with `desc_act` and without `sym`: groups in any order, version 2 without the minus one."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (64, 32), generator=generator)  # [in, out]
    zeros = torch.randint(1, 16, (2, 32), generator=generator)
    scales = torch.rand(2, 32, generator=generator).half()
    index = torch.randperm(64, generator=generator) % 2

    def pack(matrix, axis):
        parts = matrix.movedim(axis, -1).reshape(*matrix.movedim(axis, -1).shape[:-1], -1, 8).long()
        words = (parts << (4 * torch.arange(8))).sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).int().movedim(-1, axis).contiguous()

    from safetensors.torch import save_file

    for version, less in (("gptq", 1), ("gptq_v2", 0)):
        folder = tmp_path / version
        folder.mkdir()
        tensors = {
            "l.qweight": pack(codes, 0), "l.qzeros": pack(zeros - less, 1), "l.scales": scales, "l.g_idx": index.int(),
            "l.bias": torch.ones(32),
        }  # fmt: skip
        save_file(tensors, folder / "model.safetensors")
        settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "checkpoint_format": version}
        (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
        weights = gptq.CHECKPOINT.open(folder)
        wanted = (scales.float()[index] * (codes - zeros[index]).float()).T
        assert list(weights) == ["l.bias", "l.weight"] and weights.shape("l.weight") == (32, 64)
        assert torch.equal(weights.read("l.weight"), wanted)
        assert weights.qtensor("l.weight") is None  # no grid has groups in another order


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_words_decode_bit_by_bit(bits):
    integers = torch.arange(64) * 37 % (1 << bits)
    number = sum(int(value) << (bits * place) for place, value in enumerate(integers))
    words = [(number >> (32 * place)) & 0xFFFFFFFF for place in range(64 * bits // 32)]
    stored = torch.tensor(np.array(words, np.uint32).view(np.int32))
    assert torch.equal(decode_words(stored, bits, 64).long(), integers)
