# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest
import torch

from fewbit import Config, QuantizationSpec
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.schemes.presets import PRESETS, preset, preset_names


def resolved(name, **changes):
    return preset(name, **changes).resolve("layer", ["Linear"]).quantization


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_plain_data_and_whole(name):
    assert json.loads(json.dumps(PRESETS[name])) == PRESETS[name]
    config = preset(name)
    assert config == preset(name) and Config.from_json(config.to_json()) == config
    assert resolved(name).weight is not None
    assert preset_names().count(name) == 1


@pytest.mark.parametrize("name", preset_names())
def test_every_presets_weight_can_be_coded(name):
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    spec = resolved(name).weight
    grid = spec.grid()
    blocks = Blocks((8, 256), grid.weight_block((8, 256)))
    rows = blocks.rows(weight)
    qparams = from_range(rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts), grid, blocks.block)
    coded = QTensor.encode(weight, qparams)
    if spec.is_cast:
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
        assert coded.scale.flatten().unique().tolist() == [1.0]
        assert torch.equal(coded.packed, weight.to(kind)) and torch.equal(coded.dequantize(), weight.to(kind).float())
    error = (coded.dequantize() - weight).square().mean() / weight.square().mean()
    # Four bits and more lose little of a normal weight; three and two lose more, and less than everything.
    assert error < {2: 0.2, 3: 0.06, 4: 0.03}.get(grid.dtype.bits, 0.005)


def test_what_the_names_promise():
    w8a8 = resolved("w8a8")
    assert (w8a8.weight.dtype, w8a8.weight.qscheme, w8a8.weight.symmetric) == (
        Dtype.int8,
        QSchemeType.per_channel,
        True,
    )
    assert (w8a8.input_tensors.dtype, w8a8.input_tensors.symmetric) == (Dtype.int8, False)
    assert w8a8.input_tensors.qscheme is QSchemeType.per_tensor and not w8a8.input_tensors.is_dynamic
    dynamic = resolved("w8a8_dynamic").input_tensors
    assert dynamic.is_dynamic and dynamic.qscheme is QSchemeType.per_token and dynamic.symmetric
    fp8 = resolved("fp8")
    assert {fp8.weight.qscheme, fp8.input_tensors.qscheme} == {QSchemeType.per_tensor}
    assert not fp8.input_tensors.is_dynamic
    block = resolved("fp8_block")
    assert block.weight.block_size == (128, 128) and block.input_tensors.group_size == 128
    for name in preset_names():
        bits = re.match(r"w(\d)", name)
        if bits:
            assert resolved(name).weight.dtype.bits == int(bits[1])
        if "a16" in name or name in ("bf16", "fp16", "nf4", "fp6"):
            assert resolved(name).input_tensors is None
        else:
            assert resolved(name).input_tensors is not None
        if name.endswith("_dynamic") or name.startswith(("mx", "nv", "bfp")):
            assert resolved(name).input_tensors is None or resolved(name).input_tensors.is_dynamic


def test_changes():
    assert resolved("w4a16", group_size=64).weight.group_size == 64
    assert resolved("w4a16", group_size=-1).weight.group_size == -1
    assert resolved("w4a16", qscheme="per_channel").weight.group_size is None
    assert resolved("w4a16", dtype="mxfp4").weight == resolved("mxfp4").weight
    assert resolved("w4a16_asym", weight={"dtype": "nvfp4"}).weight == resolved("nvfp4").weight
    assert preset("w4a16").global_quant_config.weight.group_size == 128, "the data stays what it is"
    assert resolved("w8a8", input_tensors={"observer_cls": "percentile"}).input_tensors.observer == "percentile"
    assert resolved("w8a8", input_tensors="float").input_tensors is None
    assert resolved("w8a8", output_tensors=QuantizationSpec("int8")).output_tensors.dtype is Dtype.int8
    assert resolved("w8a8", weight={"dtype": "int4"}, group_size=32).weight.group_size == 32
    config = preset(
        "w8a8", exclude=["lm_head"], layer_quant_config={"*.fc1": "float"}, kv_cache_quant_config={"dtype": "fp8"}
    )
    assert config.exclude == ("lm_head",) and config.resolve("a.fc1", []).quantization is None
    assert config.kv_cache("x").dtype is Dtype.fp8_e4m3


def test_an_entry_that_names_a_block_format_gets_its_groups():
    entries = {"*.fc1": {"weight": {"dtype": "mxfp4"}}, "*.fc2": {"weight": {"dtype": "nvfp4", "group_size": 32}}}
    config = preset("w4a16", layer_quant_config=entries)
    one, two, rest = (config.resolve(name, ["Linear"]).quantization.weight for name in ("a.fc1", "a.fc2", "a.out"))
    assert one.grid() == QuantizationSpec("mxfp4").grid() and one.group_size == 32
    assert two.grid() == QuantizationSpec("nvfp4", group_size=32).grid()
    assert rest.group_size == 128


def test_what_does_not_exist_is_said_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'w4a16'") as error:
        preset("w4a61")
    assert error.value.try_ == "`fewbit list presets`"  # for those who cannot import what we call it
    with pytest.raises(UsageError, match="'group_size'"):
        preset("w4a16", grp_size=3)
    with pytest.raises(UsageError, match="from 1 up"):
        preset("w4a16", group_size=0)
