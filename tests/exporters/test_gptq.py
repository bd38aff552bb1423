# SPDX-License-Identifier: Apache-2.0
"""GPTQ files say what the model says: by a second decoder, by the layout's rules, and to the last tensor."""

import json

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
from fewbit.exporters import gptq
from fewbit.exporters._base import Destined
from fewbit.exporters._transposed_words import fit_half, from_words, to_words
from fewbit.modules import manifest
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.freezing import freeze
from fewbit.modules.quantized import float_weight, get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from quantized_models import encode, mlp, quantize_linears
from transposed_formats import as_stream, bits_at, config, files, gptq_values, grid, llama, quantized

INT4, INT8 = grid(Dtype.int4), grid(Dtype.int8)
IDS = torch.arange(12)[None]
KINDS = {
    "4 bit": (INT4, 4),
    "8 bit": (INT8, 8),
    "3 bit": (grid(Dtype.int3, full_range=True), 3),
    "2 bit": (grid(Dtype.int2, full_range=True), 2),
    "rows": (grid(Dtype.int4, -1), 4),
    "unsigned": (grid(Dtype.uint4), 4),
    "bfloat16 scales": (grid(Dtype.int4, scale=ScaleType.bfloat16), 4),
    "powers of two": (grid(Dtype.int4, scale=ScaleType.pof2), 4),
}


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_files_mean_what_the_model_does(kind, version, tmp_path):
    scheme, bits = KINDS[kind]
    model = quantized(llama(attention_bias=True), scheme)
    export(model, tmp_path / "out", format="gptq", checkpoint_format=version)
    stored, state = files(tmp_path / "out"), {}
    for name, tensor in stored.items():
        layer, _, suffix = name.rpartition(".")
        if suffix == "qweight":
            state[f"{layer}.weight"] = torch.from_numpy(gptq_values(stored, layer, bits, added=int(version == "gptq")))
        elif suffix not in ("qzeros", "scales", "g_idx"):
            state[name] = torch.from_numpy(tensor.copy())
    float_model = llama(attention_bias=True)
    float_model.load_state_dict(state)  # no tensor less, none more
    with torch.no_grad():
        assert torch.equal(float_model(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_shapes_and_types_are_those_of_the_format(bits, tmp_path):
    export(quantized(llama(), grid(Dtype[f"int{bits}"])), tmp_path / "out", format="gptq")
    stored, layer = files(tmp_path / "out"), "model.layers.1.mlp.down_proj"  # 96 in, 64 out
    found = {n: (stored[f"{layer}.{n}"].shape, stored[f"{layer}.{n}"].dtype.str) for n in ("qweight", "qzeros")}
    assert found == {"qweight": ((96 * bits // 32, 64), "<i4"), "qzeros": ((3, 64 * bits // 32), "<i4")}
    scales, g_idx = stored[f"{layer}.scales"], stored[f"{layer}.g_idx"]
    assert scales.shape == (3, 64) and scales.dtype == np.float16
    assert g_idx.dtype.str == "<i4" and g_idx.tolist() == [0] * 32 + [1] * 32 + [2] * 32


def test_words_that_are_known():
    codes = torch.arange(8, dtype=torch.uint8)[None]
    assert to_words(codes, 4).tolist() == [[0x76543210]]
    assert to_words(codes[:, :4] + 252, 8).tolist() == [[0xFFFEFDFC - (1 << 32)]]
    # 3 bits: the eleventh code has two bits in the first word and one in the second.
    three = torch.zeros(1, 32, dtype=torch.uint8)
    three[0, 10], three[0, 21] = 0b111, 0b101
    assert [word & 0xFFFFFFFF for word in to_words(three, 3)[0].tolist()] == [0b11 << 30, 0b1 | 1 << 31, 0b10]


@pytest.mark.parametrize(("version", "word"), [("gptq", 0x77777777), ("gptq_v2", 0x88888888 - (1 << 32))])
def test_the_first_version_keeps_zero_points_less_one(version, word, tmp_path):
    export(quantized(llama(), INT4), tmp_path / "out", format="gptq", checkpoint_format=version)
    zeros = [tensor for name, tensor in files(tmp_path / "out").items() if name.endswith("qzeros")]
    assert len(zeros) == 14 and all((tensor == word).all() for tensor in zeros)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_packing_is_a_stream_of_bits(bits, rows, blocks, random):
    codes = [[random.randrange(1 << bits) for _ in range(32 * blocks)] for _ in range(rows)]
    tensor = torch.tensor(codes, dtype=torch.uint8)
    words = to_words(tensor, bits)
    assert words.shape == (rows, blocks * bits) and words.dtype is torch.int32
    assert [[bits_at(as_stream(row), i, bits) for i in range(32 * blocks)] for row in words.tolist()] == codes
    assert torch.equal(from_words(words, bits), tensor)
    assert torch.equal(to_words(tensor.T.contiguous().T, bits), words)  # however it lies in memory


@settings(max_examples=60, deadline=None)
@given(st.integers(0, (1 << 16) - 1))
def test_every_float16_fits_and_bfloat16_in_its_range(pattern):
    half = torch.tensor(pattern, dtype=torch.uint16).view(torch.float16).float().reshape(1, 1)
    brain = torch.tensor(pattern, dtype=torch.uint16).view(torch.bfloat16).float().reshape(1, 1)
    codes = torch.zeros(1, 32, dtype=torch.int8)

    def fits(scale, kind):
        return fit_half(QTensor.from_codes(codes, QParams(grid(Dtype.int4, scale=kind), (1, 32), scale)))

    assert fits(half, ScaleType.float16) == (not bool(half.isnan()))
    if not brain.isnan() and brain != 0:
        assert not (2.0**-17 <= brain.abs() <= 65280) or fits(brain, ScaleType.bfloat16)
        assert brain.abs() < 65536 or brain.isinf() or not fits(brain, ScaleType.bfloat16)


def test_a_user_s_model_goes_out_with_its_head_and_table_as_floats(tmp_path):
    model = fewbit.compress_weights(llama().to(torch.bfloat16), mode="int4_sym", group_size=32)
    export(model, tmp_path / "out", format="gptq")
    content, tensors = manifest.read(tmp_path / "out"), load_file(tmp_path / "out" / "model.safetensors")
    assert content["dequantized"] == ["model.embed_tokens.weight", "lm_head.weight"]
    assert content["recomputed"] == ["model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]
    assert torch.equal(tensors["lm_head.weight"], float_weight(model.lm_head, "weight"))
    assert tensors["lm_head.weight"].dtype is torch.bfloat16 and "lm_head.qweight" not in tensors
    found = config(tmp_path / "out")
    assert found["architectures"] == ["LlamaForCausalLM"] and found["dtype"] == "bfloat16"
    names = found["quantization_config"].pop("modules_in_block_to_quantize")[0]
    assert names == content["coded"] and len(names) == 14
    assert found["quantization_config"] == {
        "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, "lm_head": False,
        "checkpoint_format": "gptq", "pack_dtype": "int32", "dynamic": {"-:^lm_head$": {}},
        "meta": {"quantizer": [f"fewbit:{fewbit.__version__}"]},
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["int4_sym", None], ids=["coded", "float"])
def test_a_tied_head_is_stored_once(mode, tmp_path):
    model = llama(tie_word_embeddings=True)
    model = quantized(model, INT4) if mode is None else fewbit.compress_weights(model, mode=mode, group_size=32)
    export(model, tmp_path / "out", format="gptq")
    assert "lm_head.weight" not in files(tmp_path / "out") and config(tmp_path / "out")["tie_word_embeddings"]
    assert manifest.read(tmp_path / "out")["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}


def test_a_head_that_was_parted_from_its_table_is_not_tied_again(tmp_path):
    model = quantized(llama(tie_word_embeddings=True), INT4, {"lm_head": INT8})
    export(model, tmp_path / "out", format="gptq")
    stored = files(tmp_path / "out")
    assert not np.array_equal(stored["lm_head.weight"], stored["model.embed_tokens.weight"])
    assert config(tmp_path / "out")["tie_word_embeddings"] is False


def test_other_bits_and_floats_are_told_by_name(tmp_path):
    first, second = "model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"
    model = quantized(llama(), INT4, {first: None, second: grid(Dtype.int8, 64)})
    export(model, tmp_path / "out", format="gptq")
    found = config(tmp_path / "out")["quantization_config"]
    assert found["dynamic"] == {
        r"-:^model\.layers\.0\.mlp\.up_proj$": {},
        "-:^lm_head$": {},
        r"+:^model\.layers\.1\.self_attn\.q_proj$": {"bits": 8, "group_size": 64},
    }
    assert first not in found["modules_in_block_to_quantize"][0]
    values = gptq_values(files(tmp_path / "out"), second, 8)
    assert np.array_equal(values, get_weight(model.get_submodule(second), "weight").dequantize().numpy())


def test_frozen_models_and_shards_hold_the_same(tmp_path):
    model = quantized(llama(), INT4)
    export(model, tmp_path / "one", format="gptq")
    export(model, tmp_path / "many", format="gptq", shard_bytes=20_000)
    freeze(model)
    export(model, tmp_path / "frozen", format="gptq")
    name = "model.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "frozen" / name).read_bytes()
    whole, parts = files(tmp_path / "one"), files(tmp_path / "many")
    assert whole.keys() == parts.keys() and all(np.array_equal(whole[n], parts[n]) for n in whole)
    index = json.loads((tmp_path / "many" / f"{name}.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2 and index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())


def test_names_are_those_of_checkpoints(tmp_path):
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    options = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_local_experts": 2, "vocab_size": 160}
    model = MixtralForCausalLM(MixtralConfig(hidden_size=64, intermediate_size=96, num_key_value_heads=1, **options))
    model.eval().save_pretrained(tmp_path / "float")
    export(quantized(model, INT4), tmp_path / "out", format="gptq")
    theirs, ours = files(tmp_path / "float"), files(tmp_path / "out")
    coded = {f"model.layers.0.self_attn.{n}_proj" for n in "qkvo"}
    assert theirs.keys() - {f"{name}.weight" for name in coded} == {
        n for n in ours if n.rpartition(".")[0] not in coded
    }
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    assert "model.layers.0.block_sparse_moe.experts.1.w2.weight" in ours


def test_layers_that_lie_the_other_way_round(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=160, n_positions=32)).eval()
    model = fewbit.compress_weights(model, mode="int4_sym", group_size=32)
    folder = export(model, tmp_path / "out", format="gptq")
    assert manifest.read(folder)["dequantized"] == ["transformer.wte.weight", "transformer.wpe.weight"]
    for name in ("attn.c_attn", "mlp.c_proj"):
        layer = model.transformer.h[0].get_submodule(name)  # [in, out]
        assert np.array_equal(gptq_values(files(folder), f"transformer.h.0.{name}", 4).T, layer.weight.numpy())


def damaged(stored, name):
    tensor = stored[name].clone()
    raw = tensor.view(-1).view(torch.uint8)
    raw[-1] ^= 1
    return {**stored, name: tensor}


@pytest.mark.parametrize("suffix", ["qweight", "qzeros", "scales", "g_idx", "bias"])
def test_a_single_bit_is_noticed(suffix, tmp_path):
    model = quantized(llama(attention_bias=True), INT4)
    folder = export(model, tmp_path / "out", format="gptq")
    stored, content = load_file(folder / "model.safetensors"), manifest.read(folder)
    save_file(damaged(stored, f"model.layers.1.self_attn.k_proj.{suffix}"), folder / "model.safetensors")
    with pytest.raises(DataError, match="not what the model holds") as error:
        gptq.check(model, folder, content)
    assert error.value.where.startswith("model.layers.1.self_attn.k_proj")


def test_what_is_missing_or_too_much_is_noticed(tmp_path):
    model = quantized(llama(), INT4)
    folder = export(model, tmp_path / "out", format="gptq")
    stored, content = load_file(folder / "model.safetensors"), manifest.read(folder)
    for change in ({"more": torch.zeros(1)}, {"model.norm.weight": None}):
        save_file({n: t for n, t in (stored | change).items() if t is not None}, folder / "model.safetensors")
        with pytest.raises(DataError) as error:
            gptq.check(model, folder, content)
        assert error.value.where == next(iter(change))
    save_file(stored, folder / "model.safetensors")
    gptq.check(model, folder, content)
    model.model.register_buffer("added", torch.zeros(1))
    with pytest.raises(DataError, match="not what the model holds"):
        gptq.check(model, folder, content)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="cannot be read"):
        gptq.check(model, folder, content)


def weight(scheme, shape=(64, 64), layer="layer", **options):
    return Destined(layer, options.pop("tensor", "weight"), shape, scheme, **options)


FITS = weight(INT4, layer="other")
REFUSED = {
    "5-bit codes": weight(grid(Dtype.int5)),
    "zero points": weight(grid(Dtype.uint4, symmetric=False)),
    "nf4 values": weight(grid(Dtype.nf4)),
    "fp8_e4m3 values": weight(grid(Dtype.fp8_e4m3)),
    "float32 scales": weight(grid(Dtype.int4, scale=ScaleType.float32)),
    "float8_e4m3fn scales": weight(grid(Dtype.int4, scale=ScaleType.float8_e4m3fn)),
    "scales per_tensor": weight(Grid(Dtype.int4, scale_type=ScaleType.float16)),
    "along axis 1": weight(Grid(Dtype.int4, QSchemeType.per_channel, axis=1, scale_type=ScaleType.float16)),
    "48 output features": weight(INT4, (48, 64)),
    "80 input features": weight(grid(Dtype.int4, 16), (64, 80)),
    "groups of 24": weight(grid(Dtype.int4, 24), (64, 96)),
    "groups of 64 do not divide 96": weight(grid(Dtype.int4, 64), (64, 96)),
    "groups of 128 do not divide 64": weight(grid(Dtype.int4, 128)),
    "not the weight of a linear layer": weight(INT4, (4, 64, 64), tensor="gate_up_proj"),
    "a quantized input": weight(INT4, input=grid(Dtype.int8, -1), dynamic=True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_each_reason_is_found_before_anything_is_computed(reason):
    found = gptq.refusals([REFUSED[reason], FITS])
    assert [layer for layer, _ in found] == ["layer"] and reason in found[0][1]


def test_reasons_come_all_at_once():
    found = gptq.refusals([weight(grid(Dtype.int5, 24, ScaleType.float32, symmetric=False), (48, 50)), FITS])
    assert len(found) == 6 and {layer for layer, _ in found} == {"layer"}


def test_tables_heads_and_floats_are_no_reason():
    wide = Grid(Dtype.uint8, QSchemeType.per_channel, symmetric=False)
    table, head = weight(wide, (160, 64), "embed", embedding=True), weight(wide, (160, 64), "head")
    floats = [weight(None, (7, 5), "router"), weight(None, (160, 64), "embed", embedding=True)]
    assert gptq.refusals([table, FITS, head]) == [] and gptq.refusals([*floats, FITS]) == []
    assert gptq.refusals([FITS, weight(wide, (2, 64), "score")]) == []  # the last layer, kept wide
    assert len(gptq.refusals([weight(wide, (2, 64), "score"), FITS])) == 3
    assert gptq.refusals([table, head]) == [("the model", "none of its layers would be codes in gptq")]


def test_bfloat16_scales_are_taken_and_one_that_float16_lacks_is_refused_by_name(tmp_path):
    model = quantized(llama(), grid(Dtype.int4, scale=ScaleType.bfloat16))
    with torch.no_grad():
        layer = model.model.layers[1].mlp.up_proj
        layer.weight_scale[3, 1] = 1.5 * 2.0**-24
    with pytest.raises(UsageError, match="scale that float16 does not have") as error:
        export(model, tmp_path / "out", format="gptq")
    assert error.value.where == "model.layers.1.mlp.up_proj" and "scale_type='float16'" in str(error.value)
    assert not any(tmp_path.iterdir())


def test_a_model_is_refused_with_every_reason_and_nothing_is_left(tmp_path):
    model = quantized(llama(), INT4, {"model.layers.0.mlp.up_proj": grid(Dtype.nf4)})
    model.model.layers[1].mlp.up_proj.input_quantizer = ActivationQuantizer(grid(Dtype.int8, -1))
    whole = encode(llama().model.layers[0].mlp.down_proj.weight, Grid(Dtype.int4))
    set_weight(model.model.layers[0].mlp.down_proj, "weight", whole)
    with pytest.raises(UsageError) as error:
        export(model, tmp_path / "out", format="gptq")
    for part in ("nf4 values", "quantized activation", "scales per_tensor", "mlp.up_proj", "layers.0.mlp.down_proj"):
        assert part in str(error.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("make", [lambda: quantize_linears(mlp()), nn.ReLU, object])
def test_only_hugging_face_models(make, tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        export(make(), tmp_path / "out", format="gptq")


@pytest.mark.parametrize("options", [{"checkpoint_format": "v3"}, {"shard_bytes": 0}])
def test_wrong_options_leave_nothing(options, tmp_path):
    with pytest.raises(UsageError, match=next(iter(options))):
        export(quantized(llama(), INT4), tmp_path / "out", format="gptq", **options)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.filterwarnings("ignore")
def test_transformers_runs_it(bits, version, tmp_path):
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum")
    from transformers import AutoModelForCausalLM, GPTQConfig

    model = quantized(llama().half(), grid(Dtype[f"int{bits}"]), {"model.layers.0.mlp.up_proj": None})
    folder = export(model, tmp_path / "out", format="gptq", checkpoint_format=version)
    how = GPTQConfig(bits=bits, backend="gptq_torch")
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu", quantization_config=how)
    assert isinstance(made.model.layers[0].mlp.up_proj, nn.Linear) and hasattr(
        made.model.layers[0].mlp.gate_proj, "qweight"
    )
    with torch.no_grad():
        assert (made(IDS).logits - model(IDS).logits).abs().max() < 0.005
