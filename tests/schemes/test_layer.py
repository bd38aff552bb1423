# SPDX-License-Identifier: Apache-2.0
import copy
import dataclasses

import pytest

from fewbit import QLayerConfig, QuantizationConfig, QuantizationSpec
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.scales import ScaleType

INT8, INT4 = QuantizationSpec("int8"), QuantizationSpec("int4", group_size=32)


def test_specs_may_be_given_as_objects_or_fields():
    assert QLayerConfig is QuantizationConfig
    assert QuantizationConfig(weight=INT8) == QuantizationConfig(weight={"dtype": "int8"})
    assert QuantizationConfig(weight=INT8).input_tensors is None


def test_inheritance_is_by_slot_and_by_field():
    base = QuantizationConfig(weight=INT4, input_tensors=INT8, bias=INT8)
    over = QuantizationConfig(weight=QuantizationSpec(group_size=16), input_tensors="float").over(base)
    assert over.weight == QuantizationSpec("int4", group_size=16)
    assert over.input_tensors == "float" and over.bias == INT8 and over.output_tensors is None
    back = QuantizationConfig(input_tensors=INT4).over(over)
    assert back.input_tensors == INT4, "what was left in float can be asked for again"
    assert QuantizationConfig(weight=INT8).over(None) == QuantizationConfig(weight=INT8)


def test_complete_says_none_for_float():
    whole = QuantizationConfig(weight=INT4, input_tensors="float", target_device="CPU").complete()
    assert whole.input_tensors is None and whole.target_device == "CPU"
    assert whole.weight.qscheme is QSchemeType.per_group and whole.weight.is_dynamic is False
    assert QuantizationConfig(weight="float").complete() is None


@pytest.mark.parametrize(
    ("slots", "where", "words"),
    [
        ({"weights": INT8}, "weights", "'weight'"),
        ({"weight": "int8"}, "weight", "'float'"),
        ({"weight": 3}, "weight", "a QuantizationSpec"),
        ({"weight": {"dtype": "int8", "group_sise": 3}}, "weight.group_sise", "'group_size'"),
        ({"input_tensors": QuantizationSpec("nf4")}, "input_tensors.dtype", "for weights"),
        ({"output_tensors": QuantizationSpec("nf4")}, "output_tensors.dtype", "for weights"),
        ({"weight": QuantizationSpec("int32")}, "weight.dtype", "for a bias only"),
        ({"input_tensors": QuantizationSpec("int32")}, "input_tensors.dtype", "for a bias only"),
        (
            {"input_tensors": QuantizationSpec("int8", qscheme="per_token", is_dynamic=False)},
            "input_tensors.is_dynamic",
            "tokens to come",
        ),
        (
            {"input_tensors": QuantizationSpec("int8", "histogram", is_dynamic=True)},
            "input_tensors.observer_cls",
            "is_dynamic=False",
        ),
        ({"weight": QuantizationSpec("int4", group_size=32, ch_axis=-1)}, "weight.ch_axis", "ch_axis=0: one scale"),
        ({"weight": QuantizationSpec("mxfp4", ch_axis=-1)}, "weight.ch_axis", "ch_axis=0: one scale"),
        ({"weight": QuantizationSpec("fp8", is_scale_quant=True)}, "weight.is_scale_quant", "second in a list"),
        ({"weight": []}, "weight", "an empty list"),
        ({"weight": [INT8, INT4]}, "weight", "2 stages"),
        ({"weight": [INT4, QuantizationSpec("fp8_e4m3")]}, "weight", "2 stages"),
        ({"weight": [INT4, QuantizationSpec("fp8_e5m2", is_scale_quant=True)]}, "weight", "2 stages"),
        ({"weight": [INT4, INT8, QuantizationSpec("fp8_e4m3", is_scale_quant=True)]}, "weight", "3 stages"),
        ({"weight": [INT4, {"dtype": "x"}]}, "weight[1].dtype", "did you mean"),
    ],
)
def test_faults_name_the_slot(slots, where, words):
    with pytest.raises(UsageError) as error:
        QuantizationConfig(**slots)
    assert error.value.where == f"QuantizationConfig.{where}" and words in str(error.value)


def test_all_faults_come_at_once():
    with pytest.raises(UsageError) as error:
        QuantizationConfig.from_dict({"weight": {"dtype": "x", "group_size": 0}, "input_tensors": {"dtype": "nf4"}})
    text = str(error.value)
    assert text.startswith("3 faults") and "3. QuantizationConfig.input_tensors.dtype" in text


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (QuantizationSpec("int32"), ["bias"], ["weight", "input_tensors", "output_tensors"]),
        (QuantizationSpec("nf4", group_size=64), ["weight", "bias"], ["input_tensors", "output_tensors"]),
        (QuantizationSpec("int8", group_size=32, is_dynamic=False), ["input_tensors", "weight"], []),
        (QuantizationSpec("mxfp4", ch_axis=-1, is_dynamic=True), ["input_tensors"], ["weight"]),
        (QuantizationSpec("int8", "histogram", is_dynamic=True), ["weight"], ["input_tensors"]),
        (QuantizationSpec("int8", ch_axis=-1), ["weight"], []),
    ],
)
def test_what_is_fine_in_one_place_may_be_so_in_that_alone(spec, right, wrong):
    for slot in right:
        config = QuantizationConfig(**{slot: spec})
        assert getattr(config, slot) == spec and config.faults() == [] and config.complete() is not None
    for slot in wrong:
        with pytest.raises(UsageError):
            QuantizationConfig(**{slot: spec})


def test_quarks_list_of_a_spec_and_the_spec_of_its_scales():
    scales = QuantizationSpec("fp8_e4m3", is_scale_quant=True)
    config = QuantizationConfig(weight=[QuantizationSpec("fp4", group_size=16), scales])
    assert config.weight.scale_type is ScaleType.float8_e4m3fn
    assert config.weight.grid() == QuantizationSpec("nvfp4").grid()
    assert QuantizationConfig(weight=[INT4]).weight == INT4


def test_it_cannot_be_changed_and_comes_back_from_text():
    config = QuantizationConfig(weight=INT4, input_tensors="float", target_device="CPU")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.weight = None
    assert QuantizationConfig.from_dict(config.to_dict()) == config == copy.deepcopy(config)
    assert config.to_dict() == {
        "input_tensors": "float",
        "weight": {"dtype": "int4", "group_size": 32},
        "target_device": "CPU",
    }
    assert "group_size=32" in repr(config)
