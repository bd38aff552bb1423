# SPDX-License-Identifier: Apache-2.0
from enum import Enum

import pytest

from fewbit import CompressWeightsMode, QuantizationSpec
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.schemes.modes import MODES, compression_config, mode_name, mode_spec

# name: element, bits, symmetric, group (None: one scale an output)
EXPECTED = {
    "int8_sym": (Dtype.int8, True, None),
    "int8_asym": (Dtype.uint8, False, None),
    "int4_sym": (Dtype.int4, True, 128),
    "int4_asym": (Dtype.uint4, False, 128),
    "int3_sym": (Dtype.int3, True, 128),
    "int2_sym": (Dtype.int2, True, 32),
    "nf4": (Dtype.nf4, True, 64),
    "fp8_e4m3": (Dtype.fp8_e4m3, True, None),
    "mxfp4": (Dtype.fp4, True, 32),
    "mxfp8": (Dtype.fp8_e4m3, True, 32),
    "nvfp4": (Dtype.fp4, True, 16),
}


def test_the_enum_and_the_table_have_the_same_modes():
    assert {m.value for m in CompressWeightsMode} == set(MODES) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_modes(name):
    spec = mode_spec(name).complete("weight")
    assert (spec.dtype, spec.symmetric, spec.group_size) == EXPECTED[name]
    assert spec.qscheme is (QSchemeType.per_group if spec.group_size else QSchemeType.per_channel)
    assert mode_spec(CompressWeightsMode[name.upper()]) == mode_spec(name.upper()) == mode_spec(name)
    assert mode_spec(name, group_size=48).complete("weight").group_size == 48


def test_names_of_others():
    class Theirs(Enum):
        INT8 = "int8"

    assert mode_name(Theirs.INT8) == "int8_asym" and mode_name("mxfp8_e4m3") == "mxfp8"
    with pytest.raises(UsageError, match="int4_sym"):
        mode_name("int4sym")


@pytest.mark.parametrize("name", EXPECTED)
def test_embeddings_and_the_last_layer_stay_at_eight_bits(name):
    config = compression_config(name, last_layer="lm_head")
    narrow = EXPECTED[name][0].bits <= 4
    usual = mode_spec(name).complete("weight")
    for layer, types in (("embed", ["Embedding", "Module"]), ("bag", ["EmbeddingBag"]), ("lm_head", ["Linear"])):
        weight = config.resolve(layer, types).quantization.weight
        if narrow:
            assert (weight.dtype, weight.symmetric, weight.qscheme) == (Dtype.uint8, False, QSchemeType.per_channel)
            assert weight.group_size is None and weight.scale_type.name == "float32"
        else:
            assert weight == usual
    assert config.resolve("fc", ["Linear"]).quantization.weight == usual
    every = compression_config(name, last_layer="lm_head", all_layers=True)
    assert every.resolve("lm_head", ["Linear"]).quantization.weight == usual
    assert every.resolve("embed", ["Embedding"]).quantization.weight == usual


def test_a_model_without_embeddings_or_last_layer_is_fine():
    config = compression_config("int4_sym", last_layer=None)
    assert config.unused(["fc"], ["Linear"]) == []
    assert config.resolve("fc", ["Linear"]).source == "global"
    assert config.resolve("embed", ["Embedding"]).source == "type", "a global scheme alone leaves embeddings in float"


def test_a_group_size_is_for_the_mode_not_for_what_stays_wide():
    config = compression_config("int4_asym", group_size=64, last_layer="head")
    assert config.resolve("fc", ["Linear"]).quantization.weight.group_size == 64
    assert config.resolve("head", ["Linear"]).quantization.weight.qscheme is QSchemeType.per_channel


def test_the_algorithm_reaches_every_layer(monkeypatch):
    from fewbit import registry

    monkeypatch.setattr(registry, "names", lambda kind: ["rtn", "scale_search"])
    config = compression_config("int4_sym", algorithm="rtn", last_layer="head")
    for layer, types in (("fc", ["Linear"]), ("head", ["Linear"]), ("e", ["Embedding"])):
        assert config.resolve(layer, types).quantization.weight.weight_algorithm == "rtn"
    assert mode_spec("nf4").weight_algorithm == "scale_search"
    assert isinstance(mode_spec("nf4"), QuantizationSpec)
