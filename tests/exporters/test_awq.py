# SPDX-License-Identifier: Apache-2.0
"""AWQ files say what the model says: by a second decoder, by the layout's rules, and to the last tensor."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import fewbit
from fewbit.engine.delivering import export
from fewbit.errors import DataError, UsageError
from fewbit.exporters import awq
from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.modules import manifest
from fewbit.modules.quantized import get_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from transposed_formats import AWQ_ORDER, awq_values, config, files, grid, llama, quantized

UINT4 = grid(Dtype.uint4, symmetric=False)
IDS = torch.arange(12)[None]
KINDS = {
    "unsigned": UINT4,
    "signed": grid(Dtype.int4, symmetric=False),
    "symmetric": grid(Dtype.int4),
    "rows": grid(Dtype.uint4, -1, symmetric=False),
    "groups of 16, bfloat16 scales": grid(Dtype.uint4, 16, ScaleType.bfloat16, symmetric=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_mean_what_the_model_does(kind, tmp_path):
    model = quantized(llama(attention_bias=True), KINDS[kind])
    export(model, tmp_path / "out", format="awq")
    group = config(tmp_path / "out")["quantization_config"]["group_size"]
    stored, state = files(tmp_path / "out"), {}
    for name, tensor in stored.items():
        layer, _, suffix = name.rpartition(".")
        if suffix == "qweight":
            state[f"{layer}.weight"] = torch.from_numpy(awq_values(stored, layer, group))
        elif suffix not in ("qzeros", "scales"):
            state[name] = torch.from_numpy(tensor.copy())
    float_model = llama(attention_bias=True)
    float_model.load_state_dict(state)  # no tensor less, none more
    with torch.no_grad():
        assert torch.equal(float_model(IDS).logits, model(IDS).logits)


def test_shapes_and_types_are_those_of_the_format(tmp_path):
    export(quantized(llama(), UINT4), tmp_path / "out", format="awq")
    stored, layer = files(tmp_path / "out"), "model.layers.1.mlp.down_proj"  # 96 in, 64 out
    found = {
        n: (stored[f"{layer}.{n}"].shape, stored[f"{layer}.{n}"].dtype.str) for n in ("qweight", "qzeros", "scales")
    }
    assert found == {"qweight": ((96, 8), "<i4"), "qzeros": ((3, 8), "<i4"), "scales": ((3, 64), "<f2")}
    assert f"{layer}.g_idx" not in stored


def one_layer(codes, zeros):
    """The weight of a layer of given codes `[out, in]` and zero points `[out, groups of 32]`."""
    weight = QTensor.from_codes(codes, QParams(UINT4, (1, 32), torch.full(zeros.shape, 0.5), zeros.float()))
    return Matrix("l", weight.shape, UINT4, torch.float32, lambda: weight)


def test_a_word_that_is_known():
    codes = torch.arange(8, dtype=torch.uint8)[:, None].repeat(4, 32)  # output o has the code o % 8 everywhere
    tensors = {entry.name: entry.read() for entry in awq._entries("l", one_layer(codes, codes[:, :1]))}
    assert tensors["l.qweight"].unique().tolist() == [0x75316420] and tensors["l.qweight"].shape == (32, 4)
    assert tensors["l.qzeros"].tolist() == [[0x75316420] * 4]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))
def test_packing_keeps_the_order_of_the_format(outs, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (32 * outs, 32 * groups), dtype=torch.uint8, generator=generator)
    zeros = torch.randint(0, 16, (32 * outs, groups), dtype=torch.uint8, generator=generator)
    layer = one_layer(codes, zeros)
    tensors = {entry.name: entry.read() for entry in awq._entries("l", layer)}
    for name, wanted in (("l.qweight", codes), ("l.qzeros", zeros)):
        words = tensors[name].tolist()
        assert [
            [words[i][o // 8] >> (4 * AWQ_ORDER.index(o % 8)) & 15 for i in range(wanted.shape[1])]
            for o in range(len(wanted))
        ] == wanted.tolist()
    parts = {name.removeprefix("l."): tensor for name, tensor in tensors.items()}
    found = awq._decode(parts, layer.read())
    assert torch.equal(found[0], codes) and torch.equal(found[1], zeros) and (found[2] == 0.5).all()


def test_a_user_s_model_goes_out_with_its_head_and_table_as_floats(tmp_path):
    model = fewbit.compress_weights(llama().to(torch.bfloat16), mode="int4_asym", group_size=32)
    export(model, tmp_path / "out", format="awq")
    content = manifest.read(tmp_path / "out")
    assert content["dequantized"] == ["model.embed_tokens.weight", "lm_head.weight"] and len(content["coded"]) == 14
    assert config(tmp_path / "out")["quantization_config"] == {
        "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip


def test_float_layers_are_told_as_transformers_reads_it(tmp_path):
    from transformers.quantizers.quantizers_utils import should_convert_module

    model = quantized(llama(), UINT4, {"model.layers.1.mlp.up_proj": None})
    export(model, tmp_path / "out", format="awq")
    skipped = config(tmp_path / "out")["quantization_config"]["modules_to_not_convert"]
    assert skipped == ["model.layers.1.mlp.up_proj", "lm_head"]
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    coded = manifest.read(tmp_path / "out")["coded"]
    assert [name for name in linear if should_convert_module(name, skipped)] == coded


@pytest.mark.parametrize("suffix", ["qweight", "qzeros", "scales", "bias"])
def test_a_single_bit_is_noticed(suffix, tmp_path):
    model = quantized(llama(attention_bias=True), UINT4)
    folder = export(model, tmp_path / "out", format="awq")
    stored, content = load_file(folder / "model.safetensors"), manifest.read(folder)
    name = f"model.layers.1.self_attn.k_proj.{suffix}"
    stored[name] = stored[name].clone()
    stored[name].view(-1).view(torch.uint8)[0] ^= 16
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(DataError, match="not what the model holds") as error:
        awq.check(model, folder, content)
    assert error.value.where.startswith("model.layers.1.self_attn.k_proj")


def weight(scheme, shape=(64, 64), layer="layer"):
    return Destined(layer, "weight", shape, scheme)


REFUSED = {
    "3-bit codes, not 4": weight(grid(Dtype.int3)),
    "8-bit codes, not 4": weight(grid(Dtype.uint8, symmetric=False)),
    "zero points that are not integers": weight(grid(Dtype.uint4, symmetric=False, float_zero=True)),
    "float32 scales": weight(grid(Dtype.uint4, scale=ScaleType.float32, symmetric=False)),
    "groups of 64 beside groups of 32": weight(grid(Dtype.uint4, 64, symmetric=False)),
    "groups of -1 beside groups of 32": weight(grid(Dtype.uint4, -1, symmetric=False)),
    "fp4 values": weight(grid(Dtype.fp4)),
    "72 output features": weight(UINT4, (72, 64)),
    "'a.gate' in it": weight(UINT4, layer="layer"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_each_reason_is_found_before_anything_is_computed(reason):
    fits = [weight(UINT4, layer="other"), weight(UINT4, layer="another")]
    if "gate" in reason:  # vLLM leaves a layer in float if its name contains one of the list
        fits = [weight(None, layer="a.gate"), weight(UINT4, layer="a.gate_proj")]
        found = awq.refusals([*fits, REFUSED[reason]])
        assert [layer for layer, _ in found] == ["a.gate_proj"]
    else:
        found = awq.refusals([REFUSED[reason], *fits])
        assert [layer for layer, _ in found] == ["layer"]
    assert reason in found[0][1]


def test_a_model_is_refused_with_every_reason_and_nothing_is_left(tmp_path):
    others = {"model.layers.0.mlp.up_proj": grid(Dtype.int8), "model.layers.1.mlp.up_proj": Grid(Dtype.nf4)}
    with pytest.raises(UsageError) as error:
        export(quantized(llama(), UINT4, others), tmp_path / "out", format="awq")
    for part in ("8-bit codes", "nf4 values", *others):
        assert part in str(error.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_runs_it(tmp_path):
    pytest.importorskip("gptqmodel")
    from transformers import AutoModelForCausalLM, AwqConfig

    model = quantized(llama().half(), UINT4, {"model.layers.0.mlp.up_proj": None})
    folder = export(model, tmp_path / "out", format="awq")
    made = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float16, device_map="cpu", quantization_config=AwqConfig(backend="torch_awq")
    )
    layers = made.model.layers
    assert isinstance(layers[0].mlp.up_proj, nn.Linear) and hasattr(layers[0].mlp.gate_proj, "qweight")
    with torch.no_grad():
        assert (made(IDS).logits - model(IDS).logits).abs().max() < 0.005


def test_scales_are_kept_to_the_bit(tmp_path):
    model = quantized(llama(), UINT4)
    export(model, tmp_path / "out", format="awq")
    scale = get_weight(model.model.layers[0].mlp.up_proj, "weight").qparams.scale
    stored = files(tmp_path / "out")["model.layers.0.mlp.up_proj.scales"]
    assert np.array_equal(stored.astype(np.float32), scale.numpy().T)
