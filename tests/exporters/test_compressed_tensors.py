# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors checkpoints: what transformers makes of them is what our model computes, in every format."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from fewbit import compress_weights, registry
from fewbit.engine.delivering import export
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.errors import DataError, UsageError
from fewbit.exporters import compressed_tensors as member
from fewbit.exporters._base import Destined
from fewbit.exporters._compressed_codes import code_entry, scale_tensors
from fewbit.exporters._compressed_decode import decode
from fewbit.exporters._compressed_scheme import scheme_of
from fewbit.modules import huggingface, manifest
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from fewbit.schemes.presets import preset
from quantized_models import encode, mlp, quantize_linears
from small_models import token_ids
from tiny_models import shaken, tokens, transformer

GROUP, ROW = QSchemeType.per_group, QSchemeType.per_channel
MXFP4 = Grid(Dtype.fp4, GROUP, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
NVFP4 = Grid(Dtype.fp4, GROUP, group_size=16, scale_type=ScaleType.float8_e4m3fn)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the libraries that read


def llama(dtype=torch.float32, *, tied=False, layers=1):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, tie_word_embeddings=tied,
    )  # fmt: skip
    model = shaken(LlamaForCausalLM(config)).to(dtype)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # which a loaded model has in float32
    return model


def projections(model):
    return {name: each for name, each in model.named_modules() if name.rpartition(".")[2] in PROJECTIONS}


def coded(grid, dtype=torch.float32, **options):
    """A Llama whose projections lie on a grid."""
    model = llama(dtype, **options)
    for layer in projections(model).values():
        set_weight(layer, "weight", encode(layer.weight, grid))
    return model


def by_preset(name, dtype=torch.float32, **changes):
    quantizer = ModelQuantizer(preset(name, exclude=["lm_head"], **changes))
    return quantizer.quantize_model(llama(dtype), [token_ids(2)])


def logits(model):
    with torch.no_grad():
        return model(token_ids(2)).logits


def loaded(folder):
    pytest.importorskip("compressed_tensors")
    import transformers

    with huggingface.quiet(transformers), torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder)
        model(torch.ones(1, 2, dtype=torch.int64))  # weights are decoded in the first call
    return model


def written(model, folder, **options):
    return export(model, folder, format="compressed_tensors", **options)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def tensors_of(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def integers(bits):
    return Grid(Dtype[f"int{bits}"], GROUP, group_size=32)


BLOCKS = {"weight": {"block_size": [32, 64]}, "input_tensors": {"group_size": 64}}
BF16 = torch.bfloat16
CASES = {
    **{f"int{b}": ("pack-quantized", lambda b=b: coded(integers(b))) for b in range(2, 9)},
    "int3 signed scales": ("pack-quantized", lambda: coded(Grid(Dtype.int3, GROUP, group_size=32, full_range=True))),
    "int4 bfloat16": ("pack-quantized", lambda: by_preset("w4a16", BF16, group_size=32)),
    "uint4 asym": ("pack-quantized", lambda: coded(Grid(Dtype.uint4, GROUP, group_size=64, symmetric=False))),
    "int4 asym": ("pack-quantized", lambda: coded(Grid(Dtype.int4, GROUP, group_size=32, symmetric=False))),
    "uint8 asym rows": ("pack-quantized", lambda: coded(Grid(Dtype.uint8, ROW, symmetric=False))),
    "uint4 tensor": ("pack-quantized", lambda: coded(Grid(Dtype.uint4))),
    "mxint8": ("pack-quantized", lambda: coded(Grid(Dtype.int8, GROUP, group_size=32, scale_type=ScaleType.pof2))),
    "w8a8 static": ("int-quantized", lambda: by_preset("w8a8")),
    "w8a8 dynamic": ("int-quantized", lambda: by_preset("w8a8_dynamic")),
    "w4a8 dynamic": ("int-quantized", lambda: by_preset("w4a8_dynamic", group_size=32)),
    "fp8 rows": ("float-quantized", lambda: by_preset("fp8_a16")),
    "fp8 static": ("float-quantized", lambda: by_preset("fp8")),
    "fp8 dynamic": ("float-quantized", lambda: by_preset("fp8_dynamic")),
    "nvfp4": ("nvfp4-pack-quantized", lambda: coded(NVFP4, BF16)),
    "mxfp4": ("mxfp4-pack-quantized", lambda: coded(MXFP4, BF16)),
    "mxfp4 both": ("mxfp4-pack-quantized", lambda: by_preset("mxfp4", BF16)),
    "mxfp8": ("mxfp8-quantized", lambda: coded(MXFP4.replace(dtype=Dtype.fp8_e4m3), BF16)),
    "fp8 blocks": ("float-quantized", lambda: by_preset("fp8_block", **BLOCKS)),
    "uint3 asym": ("pack-quantized", lambda: coded(Grid(Dtype.uint3, GROUP, group_size=32, symmetric=False))),
}  # fmt: skip
NOT_FOR_VLLM = ("nvfp4", "fp8 blocks", "uint3 asym")


@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_what_our_model_does(case, tmp_path):
    format, make = CASES[case]
    model = make()
    options = {"runtime": "transformers"} if case in NOT_FOR_VLLM else {}
    folder = written(model, tmp_path / "out", **options)
    assert config_of(folder)["format"] == format
    made = loaded(folder)
    for name, layer in projections(model).items():
        theirs, ours = made.get_submodule(name).weight, layer.weight
        if case == "nvfp4":  # readers divide by a reciprocal
            torch.testing.assert_close(theirs, ours, rtol=2**-7, atol=0)
            assert (theirs != ours).float().mean() < 0.1
        else:
            assert torch.equal(theirs, ours), name
    if case == "mxfp4 both":  # in bfloat16 a last bit decides about codes of four: layer by layer instead
        x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(3)).to(BF16)
        name = "model.layers.0.self_attn.q_proj"
        torch.testing.assert_close(made.get_submodule(name)(x), model.get_submodule(name)(x))
    else:
        slack = 1e-5 if model.dtype is torch.float32 else 0.03
        torch.testing.assert_close(logits(made), logits(model), rtol=slack, atol=slack)


def test_negative_scales_are_kept(tmp_path):
    model = coded(Grid(Dtype.int3, GROUP, group_size=32, full_range=True))
    scale = tensors_of(written(model, tmp_path / "out"))["model.layers.0.mlp.up_proj.weight_scale"]
    assert (scale < 0).any() and (scale > 0).any()


def slow_words(codes, bits):
    """Codes of a row from 0 up as words, bit by bit."""
    words = [0] * -(-len(codes) * bits // 32)
    for index, code in enumerate(codes):
        for bit in range(bits):
            place = index * bits + bit
            words[place // 32] |= (code >> bit & 1) << (place % 32)
    return np.array(words, np.uint32).astype(np.int32)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 8), st.integers(1, 20), st.integers(1, 3), st.sampled_from([1, 3, 8, 32]), st.booleans(), st.data()
)
def test_words_hold_every_bit(bits, out, groups, size, symmetric, data):
    dtype, width = Dtype[f"uint{bits}"], groups * size
    grid = Grid(dtype, GROUP, group_size=size, symmetric=symmetric)
    seed = data.draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (out, width), generator=generator).to(torch.uint8)
    zeros = torch.randint(0, 1 << bits, (out, groups), generator=generator).float()
    zeros = torch.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros
    scale = torch.rand(out, groups, generator=generator) + 0.1
    weight = QTensor.from_codes(codes, QParams(grid, (1, size), scale, zeros))
    scheme = scheme_of(grid, (out, width), None, dynamic=False)
    entry = code_entry(scheme, (out, width), lambda: weight)
    packed = entry.read()
    assert (tuple(packed.shape), packed.dtype) == (entry.shape, entry.dtype)
    assert np.array_equal(packed.numpy(), [slow_words(row, bits) for row in codes.tolist()])
    beside = scale_tensors(scheme, weight, torch.float32)
    assert beside["weight_shape"].tolist() == [out, width]
    if not symmetric:
        columns = [slow_words(column, bits) for column in zeros.int().T.tolist()]
        assert np.array_equal(beside["weight_zero_point"].numpy(), np.stack(columns, 1))
    found = decode(scheme.to_dict(["Linear"]), {"weight_packed": packed, **beside})
    middle = 1 << (bits - 1)
    assert np.array_equal(found.elements, codes.int().numpy() - middle)
    assert np.array_equal(np.broadcast_to(found.zeros, zeros.shape), zeros.numpy() - middle)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("width", [32, 44])
def test_the_library_unpacks_our_words(bits, width):
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    grid = Grid(Dtype[f"int{bits}"], ROW)
    weight = encode(torch.randn(5, width, generator=torch.Generator().manual_seed(bits)), grid)
    packed = code_entry(scheme_of(grid, (5, width), None, dynamic=False), (5, width), lambda: weight).read()
    assert torch.equal(helpers.unpack_from_int32(packed, bits, torch.Size((5, width))), weight.codes())


def test_one_scheme_is_said_of_the_class(tmp_path):
    folder = written(compress_weights(llama(), mode="int4_sym", group_size=32), tmp_path / "out")
    assert config_of(folder) == {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "dynamic": False,
                    "group_size": 32,
                },
                "input_activations": None,
                "output_activations": None,
                "format": "pack-quantized",
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def mixed_schemes():
    """Attention in four bits, the rest in fp8, one layer in float."""
    model = llama(layers=2)
    for name, layer in projections(model).items():
        grid = Grid(Dtype.int4, GROUP, group_size=32) if "self_attn" in name else Grid(Dtype.fp8_e4m3, ROW)
        if name != "model.layers.1.mlp.down_proj":
            set_weight(layer, "weight", encode(layer.weight, grid))
    return model


def test_several_schemes_are_said_layer_by_layer(tmp_path):
    library = pytest.importorskip("compressed_tensors.quantization")
    model = mixed_schemes()
    folder = written(model, tmp_path / "out")
    config = config_of(folder)
    assert config["format"] == "mixed-precision"
    assert config["ignore"] == ["model.layers.1.mlp.down_proj", "lm_head"]
    groups = config["config_groups"]
    assert [group["format"] for group in groups.values()] == ["pack-quantized", "float-quantized"]
    assert groups["group_0"]["targets"] == [name for name in projections(model) if "self_attn" in name]
    parsed = library.QuantizationConfig(**config)  # keys it does not know are refused
    assert {scheme.weights.num_bits for scheme in parsed.config_groups.values()} == {4, 8}
    torch.testing.assert_close(logits(loaded(folder)), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tables_and_heads_are_written_as_floats_and_tied_ones_once(tied, tmp_path):
    model = compress_weights(llama(tied=tied), mode="int8_asym")
    folder = written(model, tmp_path / "out")
    names = set(tensors_of(folder))
    assert ("lm_head.weight" in names) is not tied and "model.embed_tokens.weight" in names
    content = manifest.read(folder)
    assert "model.embed_tokens.weight" in content["dequantized"]
    assert (
        content["notes"][0]
        == "model.embed_tokens.weight is written as the floats its codes (uint8 per_channel) stand for"
    )
    made = loaded(folder)
    assert torch.equal(made.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert torch.equal(made.lm_head.weight, model.lm_head.weight)


def test_a_head_with_values_of_its_own_is_not_tied_again(tmp_path):
    model = llama(tied=True)
    quantize_linears(model, Grid(Dtype.int8, ROW))  # the head too, the table not
    made = loaded(written(model, tmp_path / "out"))
    assert torch.equal(made.lm_head.weight, model.lm_head.weight)
    assert torch.equal(made.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_many_files_have_an_index(tmp_path):
    model = coded(Grid(Dtype.int4, GROUP, group_size=32))
    folder = written(model, tmp_path / "out", shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    sizes = [path.stat().st_size for path in folder.glob("model-*.safetensors")]
    assert len(sizes) > 2 and set(index["weight_map"].values()) == {path.name for path in folder.glob("model-*")}
    torch.testing.assert_close(logits(loaded(folder)), logits(model), rtol=1e-5, atol=1e-5)


def test_frozen_layers_are_written_with_the_same_bytes(tmp_path):
    quantizer = ModelQuantizer(preset("w4a16", group_size=32))
    model = quantizer.quantize_model(llama(BF16))
    folders = [written(each, tmp_path / name) for name, each in (("a", model), ("b", quantizer.freeze(model)))]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1


def test_scales_the_model_cannot_hold_stay_exact(tmp_path):
    model = coded(Grid(Dtype.int8, ROW), BF16)
    folder = written(model, tmp_path / "out")
    name = "model.layers.0.mlp.up_proj"
    scale = tensors_of(folder)[f"{name}.weight_scale"]
    assert scale.dtype is torch.float32
    assert torch.equal(scale, get_weight(model.get_submodule(name), "weight").qparams.scale)
    assert any("float32, which readers may round" in note for note in manifest.read(folder)["notes"])
    theirs, ours = loaded(folder).get_submodule(name).weight, model.get_submodule(name).weight
    torch.testing.assert_close(theirs, ours, rtol=2**-6, atol=0)


def damaged(folder, change):
    tensors = tensors_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def flip(name):
    def change(tensors):
        flat = tensors[name].view(torch.uint8).reshape(-1)
        flat[-1] ^= 1

    return change


LAYER = "model.layers.0.mlp.up_proj"
DAMAGE = {
    "a code": flip(f"{LAYER}.weight_packed"),
    "a scale": flip(f"{LAYER}.weight_scale"),
    "a zero point": flip(f"{LAYER}.weight_zero_point"),
    "a norm": flip("model.norm.weight"),
    "a table": flip("model.embed_tokens.weight"),
    "codes missing": lambda tensors: tensors.pop(f"{LAYER}.weight_packed"),
    "a norm missing": lambda tensors: tensors.pop("model.norm.weight"),
    "one too many": lambda tensors: tensors.update(stray=torch.ones(1)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_check_finds_damage(damage, tmp_path):
    model = coded(Grid(Dtype.uint4, GROUP, group_size=32, symmetric=False))
    folder = written(model, tmp_path / "out")
    damaged(folder, lambda tensors: None)
    member.check(model, folder, manifest.read(folder))
    damaged(folder, DAMAGE[damage])
    with pytest.raises(
        DataError, match=LAYER if "code" in damage or "scale" in damage or "zero" in damage else "model|stray"
    ):
        member.check(model, folder, manifest.read(folder))


@pytest.mark.parametrize("change", [{"ignore": []}, {"ignore": ["lm_head", LAYER]}])
def test_the_check_reads_the_configuration(change, tmp_path):
    model = coded(Grid(Dtype.int4, GROUP, group_size=32))
    folder = written(model, tmp_path / "out")
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"config\.json"):
        member.check(model, folder, manifest.read(folder))


def destined(grid, shape=(64, 64), layer="a.o_proj", **more):
    return Destined(layer, "weight", shape, grid, **more)


TOKEN = Grid(Dtype.int8, QSchemeType.per_token)
FP8 = Grid(Dtype.fp8_e4m3, ROW)
REFUSED = {  # by the format
    "nf4": (destined(Grid(Dtype.nf4, GROUP, group_size=64)), "nf4 per_group of 64"),
    "nine bits": (destined(Grid(Dtype.int9, ROW)), "int9"),
    "e5m2": (destined(FP8.replace(dtype=Dtype.fp8_e5m2)), "fp8_e5m2"),
    "fp6": (destined(Grid(Dtype.fp6_e3m2, ROW)), "fp6_e3m2"),
    "fp8 groups": (destined(Grid(Dtype.fp8_e4m3, GROUP, group_size=32)), "per_group of 32, float32 scales"),
    "fp4 of 16 with e8m0": (destined(MXFP4.replace(group_size=16)), "fp4 per_group of 16"),
    "groups that do not divide": (destined(Grid(Dtype.int4, GROUP, group_size=48)), "groups of 48 do not divide 64"),
    "columns": (destined(Grid(Dtype.int8, ROW, axis=1)), "along axis 1"),
    "integer blocks": (destined(Grid(Dtype.int8, QSchemeType.per_block, block_size=(32, 32))), "per_block"),
    "float zero": (destined(Grid(Dtype.uint4, ROW, symmetric=False, float_zero=True)), "float_zero"),
    "kernels": (destined(Grid(Dtype.int4, ROW), (64, 64, 3)), "not the matrix"),
    "asym experts": (Destined("a.o_proj", "up", (4, 64, 64), Grid(Dtype.uint4, ROW, symmetric=False)), "experts as"),
    "asym beside integers": (destined(Grid(Dtype.uint8, ROW, symmetric=False), input=TOKEN, dynamic=True), "symmetric"),
    "fp8 inputs of integers": (destined(Grid(Dtype.int8, ROW), input=FP8), "inputs of fp8_e4m3 beside int-quantized"),
    "integer groups": (destined(Grid(Dtype.int8, ROW), input=integers(8), dynamic=True), "in groups"),
    "a scale a feature": (destined(FP8, input=FP8), "a scale a feature"),
    "nvfp4 inputs": (destined(NVFP4, input=NVFP4, dynamic=True), "global scale found beforehand"),
    "other inputs of mxfp4": (destined(MXFP4, input=FP8, dynamic=True), "the same kind"),
    "float inputs": (destined(None, input=TOKEN), "beside a weight in float"),
}  # fmt: skip
REFUSED_BY_VLLM = {
    "asym of three bits": (destined(Grid(Dtype.uint3, GROUP, group_size=32, symmetric=False)), "4 and 8 bits"),
    "groups of 16": (destined(Grid(Dtype.int4, GROUP, group_size=16)), "32, 64, 128"),
    "words": (destined(Grid(Dtype.int4, ROW), (64, 60)), "60 codes of 4 bits do not fill"),
    "zero points in words": (destined(Grid(Dtype.uint4, ROW, symmetric=False), (60, 64)), "60 codes of 4 bits"),
    "w6a8": (destined(Grid(Dtype.int6, ROW), input=TOKEN, dynamic=True), "6-bit weights a channel"),
    "static w4a8": (destined(Grid(Dtype.int4, ROW), input=Grid(Dtype.int8)), "4-bit weights"),
    "w8a4": (destined(Grid(Dtype.int8, ROW), input=TOKEN.replace(dtype=Dtype.int4), dynamic=True), "4-bit inputs"),
    "a tensor in each call": (destined(FP8, input=Grid(Dtype.fp8_e4m3), dynamic=True), "one a token in each call"),
    "small blocks": (destined(FP8.replace(granularity=QSchemeType.per_block, block_size=(32, 32))), "128 x 128"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_BY_VLLM])
def test_every_reason_is_told_before_any_work(case):
    weight, reason = {**REFUSED, **REFUSED_BY_VLLM}[case]
    table = destined(Grid(Dtype.nf4, GROUP, group_size=64), (96, 64), "embed", embedding=True)
    head = destined(Grid(Dtype.nf4, GROUP, group_size=64), (96, 64), "lm_head")
    found = member.refusals([table, weight, destined(Grid(Dtype.int4, ROW), layer="a.fine"), head])
    assert {layer for layer, _ in found} == {"a.o_proj"} and any(reason in why for _, why in found), found
    assert bool(member.refusals([weight], runtime="transformers")) is (case in REFUSED)


def test_layers_that_vllm_fuses_have_one_scheme():
    eight, four = Grid(Dtype.int8, ROW), Grid(Dtype.int4, ROW)
    mixed = [destined(eight, layer=f"a.{name}") for name in ("q_proj", "k_proj")] + [destined(four, layer="a.v_proj")]
    floats = [destined(four, layer="b.gate_proj"), destined(None, layer="b.up_proj"), destined(None, layer="c.up_proj")]
    found = member.refusals([*mixed, *floats])
    assert {layer for layer, _ in found} == {"a.q_proj", "a.k_proj", "a.v_proj", "b.gate_proj", "b.up_proj"}
    assert any("vLLM fuses b.gate_proj, b.up_proj" in why for _, why in found)
    assert not member.refusals([*mixed, *floats], runtime="transformers")


def with_super_scales(*factors):
    """A Llama in nvfp4 whose q, k and v have super scales that stand in given ratios."""
    model = llama(BF16)
    for name, layer in projections(model).items():
        weight = layer.weight.detach().float()
        blocks = Blocks(tuple(weight.shape), NVFP4.weight_block(tuple(weight.shape)))
        reach = blocks.rows(weight).abs().amax(1).reshape(blocks.counts)
        factor = dict(zip(PROJECTIONS, factors)).get(name.rpartition(".")[2], 1.0)
        qparams = from_range(-reach, reach, NVFP4, blocks.block, super_scale=torch.tensor(2.0**-10 * factor))
        set_weight(layer, "weight", QTensor.encode(weight, qparams))
    return model


def test_fused_nvfp4_layers_share_a_scale_where_that_changes_nothing(tmp_path):
    model = with_super_scales(1.0, 4.0, 0.5)
    before = logits(model)
    folder = written(model, tmp_path / "out")
    tensors = tensors_of(folder)
    attention = "model.layers.0.self_attn."
    shared = {float(tensors[f"{attention}{name}.weight_global_scale"]) for name in ("q_proj", "k_proj", "v_proj")}
    assert shared == {2.0**8}
    made = loaded(folder)
    for name, layer in projections(model).items():
        assert torch.equal(made.get_submodule(name).weight, layer.weight), name
    assert torch.equal(logits(model), before)


def test_fused_nvfp4_layers_that_cannot_share_a_scale_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"vLLM fuses .*q_proj.* \(model.layers.0.self_attn.q_proj") as caught:
        written(with_super_scales(1.0, 1.1, 1.1), tmp_path / "out")
    assert "runtime='transformers'" in str(caught.value)
    assert "up_proj" not in str(caught.value)


def test_a_cache_of_keys_and_values_is_written(tmp_path):
    cache = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
    config = preset("w4a16", group_size=32, exclude=["lm_head"], kv_cache_quant_config=cache)
    model = ModelQuantizer(config).quantize_model(llama(), [token_ids(2)])
    folder = written(model, tmp_path / "out")
    assert config_of(folder)["kv_cache_scheme"] == {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor",
        "dynamic": False,
    }
    plain = ModelQuantizer(preset("w4a16", group_size=32, exclude=["lm_head"])).quantize_model(llama())
    made = logits(loaded(folder))
    torch.testing.assert_close(made, logits(model), rtol=1e-5, atol=1e-5)
    assert (made - logits(plain)).abs().max() > 1e-4
    with pytest.raises(UsageError, match="a cache is fp8 e4m3"):
        spec = {"dtype": "int8", "qscheme": "per_token", "is_dynamic": True}
        config = preset("w4a16", group_size=32, kv_cache_quant_config=spec)
        written(ModelQuantizer(config).quantize_model(llama()), tmp_path / "other")


def test_a_quantized_input_of_the_head_is_told(tmp_path):
    model = ModelQuantizer(preset("w8a8_dynamic")).quantize_model(llama())
    notes = manifest.read(written(model, tmp_path / "out"))["notes"]
    assert "the input of lm_head, which the model quantizes, stays in float" in notes


@pytest.mark.parametrize("name", ["qwen3", "opt", "phi3", "neox", "mixtral", "qwen3_moe"])
def test_other_builds(name, tmp_path):
    model = transformer(name)
    for path, layer in model.named_modules():
        if type(layer) is torch.nn.Linear and path.rpartition(".")[2] not in ("lm_head", "embed_out", "gate"):
            set_weight(layer, "weight", encode(layer.weight, Grid(Dtype.int8, ROW)))
    same_outputs(loaded(written(model, tmp_path / "out", runtime="transformers")), model)


def same_outputs(made, model):
    with torch.no_grad():
        torch.testing.assert_close(made(tokens()).logits, model(tokens()).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["int8_sym", "fp8_e4m3", "int3_sym"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_stacked_experts_are_written_one_by_one(name, mode, tmp_path):
    groups = {"group_size": 4} if mode == "int3_sym" else {}
    model = compress_weights(transformer(name), mode=mode, **groups)
    folder = written(model, tmp_path / "out", runtime="transformers" if groups else "vllm")
    last = "block_sparse_moe.experts.3.w2" if name == "mixtral" else "mlp.experts.3.down_proj"
    codes = "weight" if mode == "fp8_e4m3" else "weight_packed"
    assert f"model.layers.0.{last}.{codes}" in tensors_of(folder)
    same_outputs(loaded(folder), model)


def test_float_experts_have_the_names_that_a_runtime_looks_for(tmp_path):
    model = transformer("mixtral")
    set_weight(model.model.layers[0].self_attn.o_proj, "weight", encode(torch.ones(16, 16), Grid(Dtype.int8, ROW)))
    stack, first = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    for runtime, there, elsewhere in (("vllm", first, stack), ("transformers", stack, first)):
        names = tensors_of(written(model, tmp_path / runtime, runtime=runtime))
        assert there in names and elsewhere not in names
        notes = manifest.read(tmp_path / runtime)["notes"]
        assert any("does not find experts in float" in note for note in notes) is (runtime == "vllm")


def test_what_cannot_be_written_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="Sequential"):
        written(quantize_linears(mlp()), tmp_path / "out")
    with pytest.raises(UsageError, match="none of its linear layers is quantized"):
        written(llama(), tmp_path / "out")
    with pytest.raises(UsageError, match=r"a Conv1D.*transformer\.h\.0\.attn\.c_attn"):
        written(compress_weights(transformer("gpt2"), mode="int8_sym"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"experts as pack-quantized"):
        written(compress_weights(transformer("mixtral"), mode="int8_asym"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"GptOssExperts.*model\.layers\.0\.mlp\.experts"):
        written(compress_weights(transformer("gpt_oss"), mode="int8_sym"), tmp_path / "out")
    with pytest.raises(UsageError, match="runtime"):
        written(llama(), tmp_path / "out", runtime="vlm")
    with pytest.raises(UsageError, match="shard_bytes"):
        written(llama(), tmp_path / "out", shard_bytes=0)
    assert not any(tmp_path.iterdir())


def test_it_is_a_member():
    assert "compressed_tensors" in registry.names("exporters")
    assert not hasattr(member, "read")
