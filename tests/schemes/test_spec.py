# SPDX-License-Identifier: Apache-2.0
import copy
import dataclasses
import pickle

import pytest
import torch

import fewbit
from fewbit import QuantizationSpec as Spec
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.schemes.formats import FORMATS


class OwnObserver:
    """Stands for a class of the user's."""

    name = "own"


def test_the_seeds_specs_mean_what_the_seed_says():
    from fewbit.observers._names import PerChannelMinMaxObserver, PerTensorMinMaxObserver

    weight_only = fewbit.QuantizationSpec(
        dtype=fewbit.Dtype.uint4,
        observer_cls=PerChannelMinMaxObserver,
        symmetric=False,
        scale_type=fewbit.ScaleType.float,
        round_method=fewbit.RoundType.half_even,
        qscheme=fewbit.QSchemeType.per_group,
        ch_axis=0,
        is_dynamic=False,
        group_size=32,
    )
    grid = weight_only.grid()
    assert (grid.dtype, grid.symmetric, grid.group_size, grid.axis) == (Dtype.uint4, False, 32, 0)
    # The layout runtimes load: [out, in/32].
    assert Blocks((48, 96), grid.weight_block((48, 96))).counts == (48, 3)
    assert weight_only.observer == "min_max" and weight_only.weight_algorithm == "rtn"

    dynamic = fewbit.QuantizationSpec(
        dtype=fewbit.Dtype.int8,
        qscheme=fewbit.QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        scale_type=fewbit.ScaleType.float,
        round_method=fewbit.RoundType.half_even,
        is_dynamic=True,
    )
    assert dynamic.dynamic and dynamic.complete("input_tensors").is_dynamic
    assert dynamic.complete("weight").is_dynamic is False, "weights are quantized ahead of time in any case"

    static = fewbit.QuantizationSpec(
        dtype=fewbit.Dtype.fp8_e4m3,
        qscheme=fewbit.QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        is_dynamic=False,
    )
    assert static.grid().dtype is Dtype.fp8_e4m3 and static.grid().symmetric and not static.dynamic
    assert fewbit.QTensorConfig is fewbit.QuantizationSpec


@pytest.mark.parametrize("name", ["uint3", "int5", "fp6_e2m3", "nf4", "bfloat16"])
def test_members_and_their_names_are_the_same(name):
    assert Spec(Dtype[name]) == Spec(name) == Spec(f"Dtype.{name}")
    assert hash(Spec(Dtype[name])) == hash(Spec(name))


def test_other_ways_to_write_a_type():
    assert Spec(torch.int8).dtype is Dtype.int8
    assert Spec(torch.float8_e4m3fn).dtype is Spec("fp8").dtype is Dtype.fp8_e4m3
    assert Spec(torch.bfloat16).dtype is Spec("bf16").dtype is Dtype.bfloat16


def test_enums_of_others_are_read_by_name():
    import enum

    class QuarkDtype(enum.Enum):
        int4 = 17

    assert Spec(QuarkDtype.int4).dtype is Dtype.int4


# OCP MX v1.0 table 1; NVFP4: 16 elements under e4m3; BFP16: 8 elements under an exponent.
BLOCK_FORMATS = {
    "mxfp4": (Dtype.fp4, 32, "float8_e8m0fnu"),
    "mxfp6_e2m3": (Dtype.fp6_e2m3, 32, "float8_e8m0fnu"),
    "mxfp6_e3m2": (Dtype.fp6_e3m2, 32, "float8_e8m0fnu"),
    "mxfp8_e4m3": (Dtype.fp8_e4m3, 32, "float8_e8m0fnu"),
    "mxfp8_e5m2": (Dtype.fp8_e5m2, 32, "float8_e8m0fnu"),
    "mxint8": (Dtype.int8, 32, "float8_e8m0fnu"),
    "nvfp4": (Dtype.fp4, 16, "float8_e4m3fn"),
    "bfp16": (Dtype.int8, 8, "float8_e8m0fnu"),
}


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_block_formats_expand(name):
    grid = Spec(name).grid()
    element, group, scale = BLOCK_FORMATS[name]
    assert (grid.dtype, grid.group_size, grid.scale_type.name) == (element, group, scale)
    assert grid.granularity is QSchemeType.per_group and grid.symmetric
    assert Spec(name, group_size=64).grid().group_size == 64


@pytest.mark.parametrize("element", ["fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_mx_with_an_element_is_the_format(element):
    spec = Spec(fewbit.Dtype.mx, mx_element_dtype=element)
    assert spec == Spec(f"mx{element}") and spec.mx_element_dtype is Dtype[element]
    assert Spec("int8").mx_element_dtype is None


def test_bfp16_steps_the_exponent_up_when_an_element_would_round_to_128():
    grid = Spec("bfp16").grid()
    for top in (1.0, 1.5, 1.98, 1.9921, 1.9922, 1.999, 2.0):
        block = torch.tensor([top, -0.3, 0.01, 0.0, 1.0, -top, 0.7, 0.125])
        exponent = 0 if top < 2 else 1
        if round(top * 64 / 2**exponent) >= 128:
            exponent += 1
        expected = torch.round(block * 64 / 2**exponent)
        found = quantize(block, from_range(block.amin()[None], block.amax()[None], grid, (8,)))
        assert torch.equal(found.float(), expected), top


@pytest.mark.parametrize(
    ("word", "kind"),
    [("e8m0", "float8_e8m0fnu"), ("e4m3", "float8_e4m3fn"), ("e5m3", "float8_e5m3"), ("float32", "float32")],
)
def test_scale_format_is_another_word_for_scale_type(word, kind):
    said = Spec("fp4", group_size=32, scale_type=ScaleType.float, scale_format=word)
    assert said == Spec("fp4", group_size=32, scale_type=kind) and said.scale_format == word
    assert Spec("mxfp4").scale_format == "e8m0" and Spec("int8").scale_format is None


def test_defaults():
    full = Spec("int8").complete()
    assert (full.qscheme, full.is_dynamic, full.symmetric) == (QSchemeType.per_tensor, False, True)
    assert (full.round_method, full.scale_type) == (RoundType.half_even, ScaleType.float32)
    assert Spec("uint8").grid().symmetric is False and Spec("uint8", symmetric=True).grid().symmetric is True
    assert Spec("int4", group_size=32).grid().granularity is QSchemeType.per_group
    assert Spec("int4", block_size=[16, 8]).grid().block_size == (16, 8)
    assert Spec("int4", ch_axis=1).grid().granularity is QSchemeType.per_channel
    assert Spec("int8", qscheme="per_token").dynamic


def test_every_field_reaches_the_grid():
    grid = Spec(
        "uint5",
        qscheme="per_channel",
        ch_axis=1,
        symmetric=False,
        round_method="stochastic",
        scale_type="float16",
        zero_point_type="float32",
        seed=7,
    ).grid()
    assert (grid.axis, grid.rounding, grid.scale_type) == (1, RoundType.stochastic, ScaleType.float16)
    assert grid.float_zero and grid.seed == 7
    assert Spec("int4", full_range=True).grid().full_range
    assert Spec("mxfp4", scale_calculation_mode="floor").grid().scale_mode is ScaleMode.floor


def test_casts_need_no_scale():
    assert Spec("float16").is_cast and Spec("bf16").is_cast and not Spec("fp8").is_cast
    assert Spec("float16").grid().granularity is QSchemeType.per_tensor


def test_the_granularity_of_an_observers_name_counts_where_none_is_said():
    from fewbit.observers._names import PerChannelMinMaxObserver

    assert Spec("int8", PerChannelMinMaxObserver).qscheme is QSchemeType.per_channel
    assert Spec("int8", "PerChannelMinMaxObserver") == Spec("int8", PerChannelMinMaxObserver)
    assert Spec("int8", PerChannelMinMaxObserver, group_size=32).grid().granularity is QSchemeType.per_group
    assert Spec(observer_cls=PerChannelMinMaxObserver).qscheme is None, "an override only changes what it says"


def test_observers():
    assert Spec("int8", "min_max").observer == Spec("int8", "PerTensorMinMaxObserver").observer == "min_max"
    assert Spec("int8", "PerTensorMSEObserver").observer == "mse" and Spec("int8", "MSE").observer == "mse"
    assert Spec("int8", "/a/b.py:Mine").observer == "/a/b.py:Mine"
    assert Spec("int8", OwnObserver).observer_cls is OwnObserver
    assert Spec("int8").observer is None and Spec("int8").weight_algorithm == "scale_search"


def test_a_subclass_of_a_members_class_stays_the_users():
    from fewbit.observers.min_max import MinMaxObserver

    class Mine(MinMaxObserver):
        pass

    assert Spec("int8", Mine).observer_cls is Mine and Spec("int8", MinMaxObserver).observer_cls == "min_max"


def test_a_users_class_is_written_by_name_and_found_again(monkeypatch):
    import sys
    import types

    module = types.ModuleType("somebodys_observers")
    module.OwnObserver = OwnObserver
    monkeypatch.setitem(sys.modules, "somebodys_observers", module)
    monkeypatch.setattr(OwnObserver, "__module__", "somebodys_observers")
    spec = Spec("int8", OwnObserver)
    assert spec.to_dict()["observer_cls"] == spec.observer == "somebodys_observers:OwnObserver"
    assert Spec.from_dict(spec.to_dict()) == spec
    from fewbit.observers._base import observer_class

    with pytest.raises(UsageError, match="not an observer"):
        observer_class(spec.observer)  # found, and refused only because it observes nothing
    monkeypatch.delitem(sys.modules, "somebodys_observers")
    with pytest.raises(UsageError, match="import somebodys_observers first"):
        Spec.from_dict({"dtype": "int8", "observer_cls": "somebodys_observers:OwnObserver"})


def test_reading_a_configuration_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\nclass Observer: pass")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="imported already"):
        Spec.from_dict({"dtype": "int8", "observer_cls": "trap:Observer"})
    assert Spec.from_dict({"dtype": "int8", "observer_cls": str(tmp_path / "trap.py:Observer")}).dtype is Dtype.int8


def test_a_class_nobody_could_find_again_is_not_written():
    class Local:
        pass

    with pytest.raises(UsageError, match="cannot be written down"):
        Spec("int8", Local).to_dict()


@pytest.mark.parametrize(
    ("fields", "where", "words"),
    [
        ({"dtype": "int9000"}, "dtype", "int"),
        ({"dtype": "fp8", "symmetric": False}, "symmetric", "no zero point"),
        ({"dtype": "nf4", "symmetric": False}, "symmetric", "no zero point"),
        ({"dtype": "int4", "qscheme": "per_channel", "group_size": 32}, "group_size", "qscheme=per_group"),
        ({"dtype": "int4", "qscheme": "per_group", "block_size": [8, 8]}, "block_size", "qscheme=per_block"),
        ({"dtype": "int4", "group_size": 8, "block_size": [8, 8]}, "block_size", "one of the two"),
        ({"dtype": "int4", "group_size": 0}, "group_size", "from 1 up, or -1"),
        ({"dtype": "int4", "group_size": -2}, "group_size", "from 1 up, or -1"),
        ({"dtype": "int4", "group_size": True}, "group_size", "a whole number"),
        ({"dtype": "int4", "group_size": 32.0}, "group_size", "a whole number"),
        ({"dtype": "int4", "block_size": [8]}, "block_size", "two whole numbers"),
        ({"dtype": "int4", "block_size": [8, 0]}, "block_size", "two whole numbers"),
        ({"dtype": "int8", "qscheme": "per_tensor", "ch_axis": 0}, "ch_axis", "per_channel or per_group"),
        ({"dtype": "int8", "ch_axis": 0, "block_size": [8, 8]}, "ch_axis", "per_channel or per_group"),
        ({"dtype": "uint4", "full_range": True}, "full_range", "a signed integer"),
        ({"dtype": "int4", "symmetric": False, "full_range": True}, "full_range", "a signed integer"),
        ({"dtype": "fp4", "full_range": True}, "full_range", "a signed integer"),
        ({"dtype": "int4", "full_range": True, "scale_type": "pof2"}, "full_range", "has no sign"),
        ({"dtype": "mxint8", "full_range": True}, "full_range", "has no sign"),
        ({"dtype": "int8", "symmetric": "yes"}, "symmetric", "True or False"),
        ({"dtype": "int8", "observer_cls": "minmax"}, "observer_cls", "min_max"),
        ({"dtype": "int8", "observer_cls": 3}, "observer_cls", "an observer's class"),
        ({"dtype": "int8", "algorithm": "magic"}, "algorithm", "Known"),
        ({"dtype": "int8", "observer_cls": "mse", "observer_parameters": 3}, "observer_parameters", "an object"),
        ({"dtype": "int8", "observer_parameters": {"a": float("nan")}}, "observer_parameters", "finite"),
        ({"dtype": "int8", "observer_parameters": {"a": {1}}}, "observer_parameters", "numbers, text"),
        ({"dtype": "int8", "observer_parameters": {1: 2}}, "observer_parameters", "text for keys"),
        ({"dtype": "int8", "zero_point_type": "int8"}, "zero_point_type", "float32"),
        ({"dtype": "int8", "symmetric": True, "zero_point_type": "float32"}, "zero_point_type", "symmetric=False"),
        ({"dtype": "fp8", "zero_point_type": "float32"}, "zero_point_type", "an integer type"),
        ({"dtype": "mx"}, "mx_element_dtype", "fp4"),
        ({"dtype": "mx", "mx_element_dtype": "int4"}, "mx_element_dtype", "an element type of an MX format"),
        ({"dtype": "int8", "mx_element_dtype": "fp4"}, "mx_element_dtype", "dtype='mx'"),
        ({"dtype": "mxfp4", "scale_type": "float32"}, "scale_type", "dtype='fp4', group_size=32"),
        ({"dtype": "mxfp4", "qscheme": "per_channel"}, "qscheme", "per_group"),
        ({"dtype": "mxfp4", "block_size": [8, 8]}, "qscheme", "per_group"),
        ({"dtype": "fp4", "scale_type": "float16", "scale_format": "e8m0"}, "scale_format", "one of the two"),
        ({"dtype": "fp4", "scale_format": "e9m9"}, "scale_format", "e8m0"),
        ({"dtype": "nvfp4", "scale_calculation_mode": "floor"}, "scale_calculation_mode", "float8_e8m0fnu"),
        (
            {"dtype": "int8", "scale_format": "e8m0", "symmetric": False, "scale_calculation_mode": "floor"},
            "scale_calculation_mode",
            "symmetric=True",
        ),
        ({"dtype": "float16", "group_size": 32}, "group_size", "a plain cast"),
        ({"dtype": "bfloat16", "qscheme": "per_channel"}, "qscheme", "a plain cast"),
        ({"dtype": "bfloat16", "scale_type": "float16"}, "scale_type", "a plain cast"),
        ({"dtype": "int8", "seed": -1}, "seed", "from 0 up"),
        ({"dtype": "int8", "rounding": "floor"}, "rounding", "round_method"),
    ],
)
def test_faults_name_the_field_and_the_remedy(fields, where, words):
    with pytest.raises(UsageError) as error:
        Spec(**fields)
    assert error.value.where == f"QuantizationSpec.{where}"
    assert words in str(error.value)
    with pytest.raises(UsageError) as other:
        Spec.from_dict(fields)
    assert str(other.value) == str(error.value)


def test_all_faults_come_at_once():
    with pytest.raises(UsageError) as error:
        Spec("int9000", group_size=0, symmetrical=True, qscheme="per_channl", round_method="up")
    text = str(error.value)
    assert text.startswith("5 faults in a QuantizationSpec")
    for number, field in enumerate(("dtype", "qscheme", "group_size", "round_method", "symmetrical"), 1):
        assert f"{number}. QuantizationSpec.{field}: " in text
    assert "'symmetric'" in text and "'per_channel'" in text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "dtype"),
        ({"dtype": "int4", "qscheme": "per_group"}, "group_size"),
        ({"dtype": "int4", "qscheme": "per_block"}, "block_size"),
        ({"dtype": "int4", "observer_parameters": {"bins": 8}}, "observer_parameters"),
        ({"dtype": "int8", "scale_calculation_mode": "floor"}, "scale_calculation_mode"),
    ],
)
def test_what_is_missing_is_said_when_a_whole_is_needed(fields, field):
    spec = Spec(**fields)  # as an override it is fine
    with pytest.raises(UsageError) as error:
        spec.grid()
    assert error.value.where == f"QuantizationSpec.{field}"


BASE = Spec("int4", "histogram", False, group_size=128, ch_axis=0, symmetric=True, observer_parameters={"bins": 64})


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, BASE.to_dict()),
        ({"group_size": 32}, {**BASE.to_dict(), "group_size": 32}),
        ({"dtype": "uint4", "symmetric": False}, {**BASE.to_dict(), "dtype": "uint4", "symmetric": False}),
        # What the override rules out is not inherited.
        ({"qscheme": "per_channel"}, {k: v for k, v in BASE.to_dict().items() if k != "group_size"}),
        ({"qscheme": "per_tensor"}, {k: v for k, v in BASE.to_dict().items() if k not in ("group_size", "ch_axis")}),
        ({"block_size": [8, 8]}, {k: v for k, v in BASE.to_dict().items() if k not in ("group_size", "ch_axis")}),
        # An observer comes with its parameters, and belongs to ranges found beforehand.
        ({"observer_cls": "mse"}, {k: v for k, v in BASE.to_dict().items() if k != "observer_parameters"}),
        ({"observer_parameters": {"bins": 8}}, {**BASE.to_dict(), "observer_parameters": {"bins": 8}}),
        ({"is_dynamic": True}, {k: v for k, v in BASE.to_dict().items() if not k.startswith("observer")}),
        ({"is_dynamic": False}, BASE.to_dict()),
        ({"qscheme": "per_token"}, {"dtype": "int4", "symmetric": True}),
    ],
)
def test_fields_are_inherited_one_by_one(over, expected):
    before = BASE.to_dict()
    assert Spec(**over).over(BASE).to_dict() == {**expected, **Spec(**over).to_dict()}
    assert BASE.to_dict() == before


def test_changing_a_block_format_to_a_type_leaves_nothing_of_it_behind():
    assert Spec("int8").over(Spec("mxfp4")).grid() == Spec("int8").grid()
    assert Spec(group_size=16).over(Spec("mxfp4")).grid().group_size == 16
    assert Spec(mx_element_dtype="int8").over(Spec("mxfp4")) == Spec("mxint8")
    assert Spec("mxint8").over(Spec("int8", symmetric=False, qscheme="per_channel")).grid() == Spec("mxint8").grid()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "base",
    [
        Spec("int4", qscheme="per_group", ch_axis=0, group_size=128, scale_type="bfloat16"),
        Spec("uint4", group_size=64, symmetric=False, zero_point_type="float32"),
        Spec("int3", group_size=128, full_range=True),
        Spec("fp8", qscheme="per_block", block_size=[128, 128]),
        Spec("fp4", group_size=8, scale_type="float8_e8m0fnu"),
    ],
    ids=repr,
)
def test_a_block_format_brings_its_own_groups_and_scales(name, base):
    """What a base says of groups and scales, it says of another type."""
    assert Spec(name).over(base).grid() == Spec(name).grid()
    assert Spec(name, group_size=48).over(base).grid() == Spec(name, group_size=48).grid()
    other, same = (Spec(named, group_size=64) for named in ("mxfp6_e3m2" if name != "mxfp6_e3m2" else "bfp16", name))
    assert Spec(name).over(other).grid() == Spec(name).grid()
    assert Spec(name, algorithm="rtn").over(same).group_size == 64, "the type was said again, not changed"


def test_a_contradiction_with_an_inherited_type_is_reported_not_settled():
    merged = Spec(symmetric=False).over(Spec("fp8"))
    assert merged.dtype is Dtype.fp8_e4m3
    with pytest.raises(UsageError, match="no zero point"):
        merged.complete("weight")


def test_an_algorithm_of_its_own_is_not_mixed_with_an_inherited_observer(monkeypatch):
    from fewbit import registry

    monkeypatch.setattr(registry, "names", lambda kind: ["rtn", "scale_search"])
    base = Spec("int8", "min_max")
    assert Spec(algorithm="scale_search").over(base).observer is None
    assert Spec(observer_cls="min_max").over(Spec("int8", algorithm="scale_search")).weight_algorithm == "rtn"


def test_places_bring_a_spec_into_line():
    token = Spec("int8", qscheme="per_token")
    assert token.complete("weight").qscheme is QSchemeType.per_channel and not token.complete("weight").is_dynamic
    assert token.complete("input_tensors").qscheme is QSchemeType.per_token
    # Quark's way to say per token: dynamic, per channel, the axis of tokens.
    quark = Spec("fp8", qscheme="per_channel", ch_axis=1, is_dynamic=True)
    assert quark.complete("input_tensors").qscheme is QSchemeType.per_token
    assert dataclasses.replace(quark, ch_axis=-1).complete("input_tensors").qscheme is QSchemeType.per_channel
    assert quark.complete("weight").qscheme is QSchemeType.per_channel


def test_completing_twice_changes_nothing():
    for slot in ("weight", "input_tensors", "bias", None):
        once = Spec("mxfp8").complete(slot)
        assert once.complete(slot) == once and once.grid() == Spec("mxfp8").grid()


def test_a_spec_cannot_be_changed_and_can_be_copied():
    spec = Spec("int8", "histogram", observer_parameters={"bins": [1, {"a": 2}]})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.dtype = Dtype.int4
    with pytest.raises(TypeError):
        spec.observer_parameters["bins"] = 3
    with pytest.raises(AttributeError):
        spec.observer_parameters.bins = 3
    assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec
    assert dataclasses.replace(spec, dtype="int4").dtype is Dtype.int4
    assert repr(spec).startswith("QuantizationSpec(dtype='int8', observer_cls='histogram'")
    given = {"bins": 3}
    held = Spec("int8", "histogram", observer_parameters=given)
    given["bins"] = 4
    assert held.observer_parameters == {"bins": 3}
