# SPDX-License-Identifier: Apache-2.0
"""Whole models as GGUF files: names, types, order and values, read back by the gguf library and by transformers."""

import numpy as np
import pytest
import torch
import transformers

import fewbit
from fewbit.engine.delivering import export
from fewbit.errors import DataError, UsageError
from fewbit.exporters import gguf as exporter
from fewbit.exporters._base import Destined
from fewbit.modules import manifest
from fewbit.modules.freezing import freeze, unfreeze
from fewbit.modules.quantized import get_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from gguf_models import ARCHITECTURES, byte_level, tiny

gguf = pytest.importorskip("gguf")


def opened(model, folder, **options):
    """The tensors, decoded, and their types by name; the fields; the manifest."""
    options = {"tokenizer": False, **options}
    export(model, folder, format="gguf", **options)
    content = manifest.read(folder)
    reader = gguf.GGUFReader(folder / content["file"])
    values = {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in reader.tensors}
    types = {each.name: each.tensor_type.name for each in reader.tensors}
    return values, types, {name: field.contents() for name, field in reader.fields.items()}, content


def compressed(name="llama", mode="int4_sym", **options):
    options = options if mode.startswith("int8") else {"group_size": 32, **options}
    return fewbit.compress_weights(tiny(name), mode=mode, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")
def test_every_tensor_of_every_architecture_is_there_once(name, tmp_path):
    model = tiny(name)
    values, types, fields, content = opened(model, tmp_path / "out")
    parameters = dict(model.named_parameters())  # tied ones once
    assert set(content["tensors"]) == set(parameters)
    assert sum(each.size for each in values.values()) - values.get("rope_freqs.weight", np.empty(0)).size == sum(
        each.numel() for each in parameters.values()
    )
    assert set(types.values()) == {"F32"} and all(each["exact"] for each in content["tensors"].values())
    arch = fields["general.architecture"]
    assert fields[f"{arch}.block_count"] == model.config.num_hidden_layers
    assert fields[f"{arch}.attention.head_count"] == 4 and fields["general.file_type"] == 0


def test_rows_of_queries_and_keys_are_pairs(tmp_path):
    """Row 2i and 2i + 1 of a head are what was i and i + half."""
    model = tiny("llama-biases")
    values, *_ = opened(model, tmp_path / "out")
    layer = model.model.layers[1].self_attn
    for name, weight, heads in (("q", layer.q_proj.weight, 4), ("k", layer.k_proj.weight, 2)):
        theirs, size = values[f"blk.1.attn_{name}.weight"], len(weight) // heads
        for row in range(len(weight)):
            head, place = divmod(row, size)
            source = head * size + place // 2 + (size // 2) * (place % 2)
            assert np.array_equal(theirs[row], weight[source].detach().numpy())
    assert np.array_equal(values["blk.1.attn_v.weight"], layer.v_proj.weight.detach().numpy())
    bias = layer.q_proj.bias.detach().numpy()
    assert np.array_equal(values["blk.1.attn_q.bias"].reshape(4, 8, 2), bias.reshape(4, 2, 8).swapaxes(1, 2))


@pytest.mark.parametrize("name", ["gemma", "gemma3"])
def test_norms_that_add_one_have_it_in_the_file(name, tmp_path):
    model = tiny(name)
    values, *_ = opened(model, tmp_path / "out")
    assert np.array_equal(values["output_norm.weight"], (model.model.norm.weight + 1).detach().numpy())


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("int4_sym", "Q4_0"), ("int4_asym", "Q4_1"), ("int3_sym", "Q4_0"), ("int8_sym", "Q8_0"), ("int8_asym", "Q8_0")],
)
def test_codes_are_kept(mode, kind, tmp_path):
    model = compressed(mode=mode)
    values, types, fields, content = opened(model, tmp_path / "out")
    layer = model.model.layers[0].mlp.down_proj
    wanted = get_weight(layer, "weight").dequantize().numpy()
    noted = content["tensors"]["model.layers.0.mlp.down_proj.weight"]
    assert types["blk.0.ffn_down.weight"] == noted["type"] == kind
    assert noted["exact"] is (not mode.startswith("int8"))
    np.testing.assert_allclose(values["blk.0.ffn_down.weight"], wanted, atol=np.abs(wanted).max() / 127)
    if noted["exact"]:
        assert np.array_equal(values["blk.0.ffn_down.weight"], wanted)
    assert types["token_embd.weight"] == "Q8_0" and "output.weight" not in types
    assert content["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    assert fields["general.file_type"] == gguf.LlamaFileType[f"MOSTLY_{kind}"]


def test_frozen_layers_give_the_same_file(tmp_path):
    model = compressed()
    freeze(model)
    opened(model, tmp_path / "one")
    unfreeze(model)
    opened(model, tmp_path / "two")
    assert (tmp_path / "one/model.gguf").read_bytes() == (tmp_path / "two/model.gguf").read_bytes()


def test_linear_layers_of_gpt2_are_turned(tmp_path):
    """GPT-2 keeps weights as `[in, out]`, whether float or codes."""
    model = tiny("gpt2")
    wanted = model.transformer.h[0].attn.c_attn.weight.detach().t().numpy()
    values, *_ = opened(model, tmp_path / "float")
    assert np.array_equal(values["blk.0.attn_qkv.weight"], wanted)
    values, types, *_ = opened(compressed("gpt2", "int4_asym"), tmp_path / "codes")
    assert types["blk.0.attn_qkv.weight"] == "Q4_1" and types["position_embd.weight"] == "Q8_0"
    assert np.abs(values["blk.0.attn_qkv.weight"] - wanted).max() < 0.1 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16", "BF16"])
def test_a_type_for_all_layers(kind, tmp_path):
    model = tiny("llama", hidden_size=256, intermediate_size=512)
    values, types, _, content = opened(model, tmp_path / "out", type=kind)
    assert types["blk.1.ffn_up.weight"] == kind and types["blk.0.attn_norm.weight"] == "F32"
    assert types["token_embd.weight"] == (kind if "F" in kind else "Q8_0")
    limit = {"Q4": 0.01, "Q5": 0.003, "Q6": 0.0005, "Q8": 1e-4, "F1": 1e-6, "BF": 1e-5}[kind[:2]]
    weight = model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    error = np.square(values["blk.1.ffn_up.weight"] - weight).sum() / np.square(weight).sum()
    noted = content["tensors"]["model.layers.1.mlp.up_proj.weight"]
    assert 0 < error < limit and error == pytest.approx(noted["error"], rel=1e-3) and not noted["exact"]


def test_rows_too_short_for_a_type_take_the_next(tmp_path):
    model = tiny("llama", hidden_size=96, head_dim=24, intermediate_size=512)
    _, types, *_ = opened(model, tmp_path / "out", type="Q4_K", embedding_type="Q6_K")
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("Q4_K", "Q5_0")
    assert types["token_embd.weight"] == "Q8_0"


def test_half_precision_stays_what_it_is(tmp_path):
    model = tiny("qwen2").bfloat16()
    _, types, _, content = opened(model, tmp_path / "out")
    assert types["blk.0.attn_q.weight"] == "BF16" and types["blk.0.attn_q.bias"] == "F32"
    assert all(each["exact"] for each in content["tensors"].values())


def test_importance_goes_to_its_layer(tmp_path):
    model, name = tiny("llama"), "model.layers.0.mlp.gate_proj"
    h = torch.randn(64, generator=torch.Generator().manual_seed(0)).mul(2).exp()
    weight = model.get_submodule(name).weight.detach().numpy()
    files = [
        opened(model, tmp_path / str(number), type="Q4_0", importance=importance)[0]
        for number, importance in enumerate((None, {name: h}))
    ]
    losses = [float((np.square(each["blk.0.ffn_gate.weight"] - weight) * h.numpy()).sum()) for each in files]
    assert np.array_equal(files[0]["blk.0.ffn_up.weight"], files[1]["blk.0.ffn_up.weight"])
    assert losses[1] < 0.95 * losses[0]
    with pytest.raises(UsageError, match=r"a layer there is not; importance of shape \[3\]"):
        opened(model, tmp_path / "no", type="Q4_0", importance={"nowhere": h, name: h[:3]})


def test_the_factors_of_llama_3(tmp_path):
    """Slow wavelengths are stretched by the factor, fast ones stay; as transformers' formula has it."""
    values, *_ = opened(tiny("llama-3"), tmp_path / "out")
    factors = values["rope_freqs.weight"]
    assert factors.shape == (16,) and factors[0] == 1 and factors[-1] == pytest.approx(8)
    assert (np.diff(factors) >= -1e-6).all()


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2", "qwen3", "gemma2", "phi3", "gpt2"])
@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_the_same_weights(name, tmp_path):
    """It turns rows, norms and names back by itself."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = compressed(name, "int4_asym")
    byte_level(tmp_path / "tokenizer")
    export(model, tmp_path / "out", format="gguf", tokenizer=tmp_path / "tokenizer")
    other, content = tiny(name), manifest.read(tmp_path / "out")
    found = load_gguf_checkpoint(str(tmp_path / "out/model.gguf"), return_tensors=True, model_to_load=other)
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"):
        named = other.config.attribute_map.get(key, key)
        assert found["config"].get(named, getattr(other.config, key)) == getattr(other.config, key)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.zero_()
    missing, extra = other.load_state_dict(found["tensors"], strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}
    for key, tensor in other.named_parameters():
        layer, _, own = key.rpartition(".")
        ours = getattr(model.get_submodule(layer), own)
        if content["tensors"][key]["exact"]:
            torch.testing.assert_close(tensor, ours, rtol=0, atol=1e-6 if "norm" in key else 0)  # they add one
        else:
            assert "emb" in key or "wte" in key or "wpe" in key or "lm_head" in key
            torch.testing.assert_close(tensor, ours, rtol=0, atol=float(ours.abs().max()) / 127)


def test_what_is_changed_is_noticed(tmp_path):
    model = compressed()
    unfreeze(model)
    opened(model, tmp_path / "out")
    content = manifest.read(tmp_path / "out")
    exporter.check(model, tmp_path / "out", content)
    places = {
        "model.norm.weight": lambda: model.model.norm.weight,
        "model.layers.0.mlp.up_proj.weight": lambda: model.model.layers[0].mlp.up_proj.weight_packed,
        "model.embed_tokens.weight": lambda: model.model.embed_tokens.weight_scale,
    }
    for name, tensor in places.items():
        kept = tensor().detach().clone()
        with torch.no_grad():
            tensor()[:1] += 1
            with pytest.raises(DataError) as error:
                exporter.check(model, tmp_path / "out", content)
            tensor().copy_(kept)
        assert error.value.where == name
    exporter.check(model, tmp_path / "out", content)


def test_a_damaged_file_is_noticed(tmp_path):
    model = compressed()
    opened(model, tmp_path / "out")
    path = tmp_path / "out/model.gguf"
    content = bytearray(path.read_bytes())
    content[-300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError):
        exporter.check(model, tmp_path / "out", manifest.read(tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "relu"}, "'relu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_llama_cpp_computes_differently_is_refused(changes, reason, tmp_path):
    with pytest.raises(UsageError, match=reason):
        opened(tiny("llama", **changes), tmp_path / "out")


def test_gemma_with_other_scales_or_windows_is_refused(tmp_path):
    layers = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match=r"scaled by 64.*another pattern"):
        opened(tiny("gemma2", query_pre_attn_scalar=64, layer_types=layers), tmp_path / "out")


def test_a_window_llama_cpp_does_not_keep_is_noted(tmp_path):
    *_, content = opened(tiny("mistral", sliding_window=16), tmp_path / "out")
    assert "beyond 16 positions" in content["notes"][0]


@pytest.mark.parametrize("kind", ["OPTForCausalLM", "LlamaModel"])
def test_other_architectures_are_refused_by_name(kind, tmp_path):
    sizes = {"hidden_size": 32, "ffn_dim": 64, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 96}
    made = getattr(transformers, kind)
    with pytest.raises(UsageError, match=kind):
        opened(made(made.config_class(**sizes, num_hidden_layers=1, word_embed_proj_dim=32)), tmp_path / "out")


def test_tensors_without_a_place_are_named(tmp_path):
    with pytest.raises(UsageError) as error:
        opened(tiny("qwen3", attention_bias=True), tmp_path / "out")
    assert "o_proj.bias" in error.value.where
    model = tiny("llama")
    model.value_head = torch.nn.Linear(64, 1)
    with pytest.raises(UsageError) as error:
        opened(model, tmp_path / "out")
    assert error.value.where == "value_head.weight, value_head.bias"


def destined(grid, shape=(64, 64), **fields):
    return Destined("layer", "weight", shape, grid, **fields)


def test_refusals_name_every_layer_before_anything_is_computed():
    group = {"granularity": QSchemeType.per_group}
    good = [destined(None), destined(Grid(Dtype.int4, **group, group_size=64)), destined(Grid(Dtype.int8))]
    assert exporter.refusals(good) == []
    bad = {
        "nf4": destined(Grid(Dtype.nf4, **group, group_size=32)),
        "groups of 16": destined(Grid(Dtype.int4, **group, group_size=16)),
        "shape": destined(Grid(Dtype.int4, **group, group_size=32), (64, 40)),
        "input becomes int8": destined(Grid(Dtype.int8), input=Grid(Dtype.int8), dynamic=True),
    }
    found = exporter.refusals(good + list(bad.values()))
    assert len(found) == len(bad) and {layer for layer, _ in found} == {"layer"}
    assert all(any(part in reason for _, reason in found) for part in bad)
    assert [reason for _, reason in exporter.refusals(list(bad.values()), type="Q4_K")] == [
        "its input becomes int8; GGUF keeps weights alone"
    ]


def test_a_model_gguf_cannot_hold(tmp_path):
    model = fewbit.compress_weights(tiny("llama"), mode="nf4")
    with pytest.raises(UsageError, match="nf4"):
        opened(model, tmp_path / "out")
    _, types, *_ = opened(model, tmp_path / "out", type="Q5_1")
    assert types["blk.0.ffn_up.weight"] == "Q5_1"


@pytest.mark.parametrize(
    "options", [{"type": "Q4_Z"}, {"embedding_type": "int4"}, {"tokenizer": None}, {"name": "../x"}]
)
def test_wrong_options(options, tmp_path):
    with pytest.raises(UsageError):
        opened(tiny("llama"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_beside_the_model_is_taken(tmp_path):
    tokenizer = byte_level(tmp_path / "model")
    tiny("llama").save_pretrained(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    *_, fields, _ = opened(model, tmp_path / "out", tokenizer=None)
    assert fields["tokenizer.ggml.tokens"] == tokenizer.convert_ids_to_tokens(range(320))
    *_, fields, _ = opened(model, tmp_path / "given", tokenizer=tokenizer)
    assert fields["tokenizer.ggml.pre"] == "gpt-2" and fields["general.name"] == "model"
