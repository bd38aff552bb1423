# SPDX-License-Identifier: Apache-2.0
from enum import Enum

import pytest

from fewbit import CompressWeightsMode
from fewbit.config.preset_config import cache_spec, candidate_specs, preset_config
from fewbit.config.presets import (
    ALIASES,
    FLOAT_PRESETS,
    GGUF_PRESETS,
    TARGET_ALIASES,
    canonical_name,
    parse_preset,
    preset_for_mode,
    preset_names,
    presets_for_bits,
)
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType

# canonical name: element, symmetric, group, activations (type, dynamic), needs data
PRESETS = {
    "w8a8": ("int8", True, None, ("int8", False)),
    "w8a8_dynamic": ("int8", True, None, ("int8", True)),
    "w8a16": ("int8", True, None, None),
    "w8a16_asym": ("uint8", False, None, None),
    "w8a16g64": ("int8", True, 64, None),
    "w4a16": ("int4", True, 128, None),
    "w4a16g32": ("int4", True, 32, None),
    "w4a16_asym": ("uint4", False, 128, None),
    "w4a16g64_asym": ("uint4", False, 64, None),
    "w4a16g-1": ("int4", True, -1, None),
    "w4a8_dynamic": ("int4", True, 128, ("int8", True)),
    "w4a4_dynamic": ("int4", True, 128, ("int4", True)),
    "w3a16": ("int3", True, 32, None),
    "w2a16": ("int2", True, 32, None),
    "w6a16": ("int6", True, 128, None),
    "fp8_static": ("fp8_e4m3", True, None, ("fp8_e4m3", False)),
    "fp8_dynamic": ("fp8_e4m3", True, None, ("fp8_e4m3", True)),
    "fp8_block": ("fp8_e4m3", True, None, ("fp8_e4m3", True)),
    "fp8_a16": ("fp8_e4m3", True, None, None),
    "mxfp4": ("fp4", True, 32, ("fp4", True)),
    "mxfp4_a16": ("fp4", True, 32, None),
    "mxfp6": ("fp6_e2m3", True, 32, ("fp6_e2m3", True)),
    "mxfp8": ("fp8_e4m3", True, 32, ("fp8_e4m3", True)),
    "mxfp8_a16": ("fp8_e4m3", True, 32, None),
    "nvfp4": ("fp4", True, 16, ("fp4", True)),
    "nvfp4_a16": ("fp4", True, 16, None),
    "nf4": ("nf4", True, 64, None),
    "fp16": ("float16", True, None, None),
    "bf16": ("bfloat16", True, None, None),
}


@pytest.mark.parametrize("name", PRESETS)
def test_canonical_presets(name):
    element, symmetric, group, activations = PRESETS[name]
    preset = parse_preset(name)
    assert canonical_name(name) == preset.name == name and len(preset.meaning) <= 90
    layers = preset_config(name).resolve("layer", ["Linear"]).quantization
    weight = layers.weight
    assert (weight.dtype.name, weight.symmetric, weight.group_size) == (element, symmetric, group)
    assert preset.weight_bits == weight.dtype.bits and preset.group_size == group
    inputs = layers.input_tensors and (layers.input_tensors.dtype.name, layers.input_tensors.is_dynamic)
    assert inputs == activations and preset.weights_only == (activations is None)
    assert preset.needs_data == (activations is not None and not activations[1])
    assert weight.grid() and (layers.input_tensors is None or layers.input_tensors.grid())
    weight.grid().weight_block((8, 256))


def test_names_that_are_listed_and_the_table_agree():
    assert {*PRESETS, *GGUF_PRESETS, *TARGET_ALIASES} >= set(preset_names())
    assert set(FLOAT_PRESETS) <= set(PRESETS) and len(set(preset_names())) == len(preset_names())


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("W4A16", "w4a16"), ("w4a16-g32", "w4a16g32"), ("W2A16G64", "w2a16g64"), ("w4a16_asym_g32", "w4a16g32_asym"),
        ("int8_sym", "w8a16"), ("int8_wo", "w8a16"), ("w8", "w8a16"), ("int8_asym", "w8a16_asym"),
        ("uint8", "w8a16_asym"), ("int4-sym", "w4a16"), ("INT4_WO", "w4a16"), ("4bit", "w4a16"), ("w4", "w4a16"),
        ("int4_asym", "w4a16_asym"), ("uint4", "w4a16_asym"), ("int3_sym", "w3a16"), ("int2_sym", "w2a16"),
        ("q4_k", "q4_k_m"), ("Q4_K_M", "q4_k_m"), ("q5_k", "q5_k_m"), ("int8_dynamic", "w8a8_dynamic"),
        ("w8a8-dynamic", "w8a8_dynamic"), ("w4a8", "w4a8_dynamic"), ("half", "fp16"), ("float16", "fp16"),
        ("f16", "fp16"), ("bfloat16", "bf16"), ("mxfp8_e4m3", "mxfp8"), ("f8e4m3", "fp8"), ("float8", "fp8"),
        ("mixed", "w8a8"), ("performance", "w8a8_symmetric"), (" NVFP4 ", "nvfp4"),
    ],
)  # fmt: skip
def test_what_people_type(typed, canonical):
    assert canonical_name(typed) == canonical
    assert parse_preset(typed).name == TARGET_ALIASES.get(canonical, canonical)


def test_every_alias_leads_to_a_preset():
    for name in ALIASES:
        assert parse_preset(name).name in (*PRESETS, *GGUF_PRESETS, "w8a8_symmetric")
    for name in GGUF_PRESETS:
        assert parse_preset(name).is_gguf and parse_preset(name).weights_only
    assert preset_config("performance").global_quant_config.input_tensors.symmetric is True
    assert preset_config("mixed").global_quant_config.input_tensors.symmetric is False


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("gptq", "preset-algorithm", "algorithm"),
        ("awq", "preset-algorithm", "awq"),
        ("fp4", "preset-ambiguous", "nvfp4"),
        ("w4a61", "preset-unknown", "w4a16"),
        ("w9a16", "preset-unknown", "w"),
        ("w4a16_dynamic", "preset-unknown", "no scales"),
        ("nonsense!", "preset-unknown", "int8"),
    ],
)
def test_names_that_mean_nothing(name, code, text):
    with pytest.raises(UsageError) as caught:
        parse_preset(name)
    assert caught.value.code == code and text in str(caught.value)
    assert "--preset" in caught.value.text("cli") and "--preset" not in caught.value.text("python")


def test_groups():
    preset = parse_preset("w4a16")
    assert preset.chooses_group and not preset.with_group_size(64).chooses_group
    assert parse_preset("w4a16_asym").with_group_size(64).name == "w4a16g64_asym"
    assert preset.with_group_size(-1).name == "w4a16g-1"
    assert parse_preset("nf4").with_group_size(32).group_size == 32
    assert preset_config("mxfp4", group_size=16).global_quant_config.weight.group_size == 16
    assert preset_config("fp8_a16", group_size=64).global_quant_config.weight.grid().group_size == 64
    with pytest.raises(UsageError, match="plain cast"):
        preset_config("bf16", group_size=64)


def test_scales_of_groups_are_exact_in_16_bits_and_symmetric_ones_use_every_integer():
    for name in ("w4a16", "w3a16", "w2a16g64"):
        grid = preset_config(name).global_quant_config.weight.grid()
        assert grid.scale_type.name == "bfloat16" and grid.full_range
    assert not preset_config("w4a8").global_quant_config.weight.grid().full_range


def test_changes():
    config = preset_config("w4a16", group_size=64, algorithm="rtn", ignore=["lm_head"], scale_type="float16")
    weight = config.global_quant_config.weight
    assert (weight.group_size, weight.algorithm, weight.scale_type.name) == (64, "rtn", "float16")
    assert config.exclude == ("lm_head",)
    static = preset_config("w8a8", input_tensors={"observer_cls": "histogram"}, output_tensors={"dtype": "int8"})
    layers = static.global_quant_config
    assert layers.input_tensors.observer == "histogram" and layers.input_tensors.dtype is Dtype.int8
    assert layers.output_tensors.dtype is Dtype.int8
    assert preset_config("w8a8", input_tensors="float").global_quant_config.input_tensors == "float"
    with pytest.raises(UsageError, match="grop_size"):
        preset_config("w4a16", grop_size=3)
    with pytest.raises(UsageError, match="GGUF"):
        preset_config("q4_k_m")


@pytest.mark.parametrize("name", ["w4a16", "w4a16_asym", "w3a16", "nf4", "mxfp4_a16", "nvfp4", "w4a8"])
def test_backup_precision_of_narrow_presets(name):
    layers = {"embed": ["Embedding", "Module"], "bag": ["EmbeddingBag"], "lm_head": ["Linear"]}
    weights = {}
    for precision in ("int8", "same", "none"):
        config = preset_config(name, backup_precision=precision, output_layer="lm_head", algorithm="rtn")
        assert config.unused(["fc", "lm_head"], ["Linear"]) == []
        resolved = {layer: config.resolve(layer, types).quantization for layer, types in layers.items()}
        weights[precision] = {layer: q and q.weight for layer, q in resolved.items()}
        own = config.resolve("fc", ["Linear"]).quantization
        assert own.weight.algorithm == "rtn"
        assert precision == "none" or resolved["embed"].input_tensors is None, "there is nothing to read but indices"
    for weight in weights["int8"].values():
        assert (weight.dtype, weight.symmetric, weight.qscheme) == (Dtype.uint8, False, QSchemeType.per_channel)
        assert weight.group_size is None and weight.scale_type.name == "float32" and weight.algorithm == "rtn"
    assert all(weight == own.weight for weight in weights["same"].values())
    assert weights["none"]["lm_head"] is None
    if name == "w4a16":
        embedding = preset_config(name).resolve("embed", ["Embedding", "Module"])
        assert embedding.source == "global", "which types a backend quantizes at all is its plan's decision"


def test_backup_precision_changes_nothing_at_eight_bits():
    config = preset_config("w8a16", backup_precision="int8", output_layer="head")
    own = config.resolve("fc", ["Linear"]).quantization.weight
    assert config.resolve("head", ["Linear"]).quantization.weight == own
    assert config.resolve("embed", ["Embedding"]).quantization.weight == own


def test_the_cache():
    static, dynamic = cache_spec("fp8"), cache_spec("int8", dynamic=True)
    assert static.dtype is Dtype.fp8_e4m3 and not static.dynamic and dynamic.qscheme is QSchemeType.per_token
    assert preset_config("w4a16", kv_cache="int8").kv_cache("any").dtype is Dtype.int8
    with pytest.raises(UsageError, match="fp8"):
        cache_spec("int3")


FAMILY = ("w2a16", "w3a16", "w4a16", "w8a16")


@pytest.mark.parametrize(
    ("preset", "bits", "expected"),
    [
        (None, 2, ("w2a16",)),
        (None, 3.0, ("w3a16",)),
        (None, 4, ("w4a16",)),
        (None, 8, ("w8a16",)),
        ("w4a16_asym", 4, ("w4a16_asym",)),
        ("mxfp4", 4, ("mxfp4",)),
        (None, 4.5, FAMILY),
        (None, 5, FAMILY),
        ("w8a16", 6, FAMILY),
        ("w4a16_asym", 4.5, ("w4a16_asym", "w8a16_asym")),
        (["int8_sym", "nf4"], 4.5, ("nf4", "w8a16")),
        ("w8a16,w4a16", 4.5, ("w4a16", "w8a16")),
    ],
)
def test_bits_are_a_preset_or_several(preset, bits, expected):
    assert presets_for_bits(preset, bits) == expected


@pytest.mark.parametrize(
    ("preset", "bits", "text"),
    [
        ("w4a16", 8, "which has 4"),
        ("nf4", 4.5, "several presets"),
        (None, True, "number"),
        (None, 0.5, "number"),
        (None, "4", "number"),
        (None, float("nan"), "number"),
    ],
)
def test_bits_that_cannot_be(preset, bits, text):
    with pytest.raises(UsageError, match=text):
        presets_for_bits(preset, bits)


def test_eight_bits_get_the_groups_of_the_presets_next_to_them():
    specs = candidate_specs(FAMILY)
    assert [specs[name].group_size for name in FAMILY] == [32, 32, 128, 128]
    wide = specs["w8a16"].over(specs["w4a16"]).grid()  # as the entry of a layer inherits from the rest of a model
    assert (wide.group_size, wide.full_range, wide.scale_type.name) == (128, False, "bfloat16")
    assert {spec.group_size for spec in candidate_specs(FAMILY, group_size=64).values()} == {64}
    assert all(spec.grid().group_size == -1 for spec in candidate_specs(["w8a16", "w8a16_asym"]).values())


@pytest.mark.parametrize(
    ("mode", "preset"),
    [
        ("INT8_SYM", "w8a16"), ("INT8_ASYM", "w8a16_asym"), ("INT4_SYM", "w4a16"), ("INT4_ASYM", "w4a16_asym"),
        ("INT3_SYM", "w3a16"), ("INT2_SYM", "w2a16"), ("NF4", "nf4"), ("FP8_E4M3", "fp8_a16"), ("MXFP4", "mxfp4_a16"),
        ("MXFP8_E4M3", "mxfp8_a16"), ("NVFP4", "nvfp4_a16"),
    ],
)  # fmt: skip
def test_nncfs_modes_are_weight_only_presets(mode, preset):
    theirs = Enum("Theirs", {mode: mode.lower()})
    for given in (CompressWeightsMode[mode], theirs[mode], mode, mode.lower()):
        assert preset_for_mode(given) == preset
    assert parse_preset(preset).weights_only
    assert {member.name for member in CompressWeightsMode} >= {mode}


def test_modes_that_do_not_exist():
    assert preset_for_mode("int8") == "w8a16_asym"
    for mode in ("codebook", "cb4_f8e4m3", "int4sym?"):
        with pytest.raises(UsageError):
            preset_for_mode(mode)
