# SPDX-License-Identifier: Apache-2.0
import copy
import enum
import pickle
import sys
import types

import pytest
import torch

import fewbit
from fewbit import QuantizationSpec as Spec
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.settings import SettingsError


class OwnObserver:
    """A class of a user."""


@pytest.mark.parametrize("name", ["uint3", "int5", "fp6_e2m3", "nf4", "bfloat16"])
def test_members_and_their_names_are_the_same(name):
    assert Spec(Dtype[name]) == Spec(name) == Spec(f"Dtype.{name}") and hash(Spec(Dtype[name])) == hash(Spec(name))


def test_other_ways_to_write_a_type():
    class QuarkDtype(enum.Enum):
        int4 = 17

    assert Spec(torch.int8).dtype is Dtype.int8 and Spec(QuarkDtype.int4).dtype is Dtype.int4
    assert Spec(torch.float8_e4m3fn).dtype is Spec("fp8").dtype is Dtype.fp8_e4m3
    assert Spec(torch.bfloat16).dtype is Spec("bf16").dtype is Dtype.bfloat16
    assert fewbit.QTensorConfig is fewbit.QuantizationSpec


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_block_formats_expand(name):
    grid, block = Spec(name).grid(), BLOCK_FORMATS[name]
    assert (grid.dtype, grid.group_size, grid.scale_type) == (block.element, block.group_size, block.scale_type)
    assert grid.granularity is QSchemeType.per_group and grid.symmetric
    assert Spec(name, group_size=64).grid().group_size == 64


@pytest.mark.parametrize("element", ["fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_mx_with_an_element_is_the_format(element):
    assert Spec(fewbit.Dtype.mx, mx_element_dtype=element) == Spec(f"mx{element}")
    assert Spec(mx_element_dtype=Dtype[element]) == Spec(f"mx{element}")


@pytest.mark.parametrize(
    ("word", "kind"),
    [("e8m0", "float8_e8m0fnu"), ("e4m3", "float8_e4m3fn"), ("e5m3", "float8_e5m3"), ("float32", "float32")],
)
def test_scale_format_is_another_word_for_scale_type(word, kind):
    spec = Spec("fp4", group_size=32, scale_type=ScaleType.float, scale_format=word)
    assert spec == Spec("fp4", group_size=32, scale_type=kind)


def test_defaults():
    full = Spec("int8").complete()
    assert (full.qscheme, full.is_dynamic, full.symmetric) == (QSchemeType.per_tensor, False, True)
    assert (full.round_method, full.scale_type) == (RoundType.half_even, ScaleType.float32)
    assert Spec("uint8").grid().symmetric is False and Spec("uint8", symmetric=True).grid().symmetric is True
    assert Spec("int4", group_size=32).grid().granularity is QSchemeType.per_group
    assert Spec("int4", block_size=[16, 8]).grid().block_size == (16, 8)
    assert Spec("int4", ch_axis=1).grid().granularity is QSchemeType.per_channel
    assert Spec("int8", qscheme="per_token").dynamic and Spec("mxfp4").bits == 4
    assert Spec("float16").is_cast and not Spec("fp8").is_cast


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
    assert BlockShape((48, 96), Spec("uint4", group_size=32).grid().weight_block((48, 96))).counts == (48, 3)


def test_observers_are_stored_by_name():
    assert Spec("int8", "min_max").observer == Spec("int8", "PerTensorMinMaxObserver").observer == "min_max"
    assert Spec("int8", "PerTensorMSEObserver").observer == "mse" and Spec("int8", "MSE").observer == "mse"
    assert Spec("int8", "/a/b.py:Own").observer == "/a/b.py:Own"
    assert Spec("int8", OwnObserver).observer == f"{OwnObserver.__module__}:OwnObserver"
    assert Spec("int8").observer is None and Spec("int8").weight_algorithm == "scale_search"
    assert Spec("int8", "min_max").weight_algorithm == "rtn"

    class Local:
        pass

    with pytest.raises(SettingsError, match="outside functions"):
        Spec("int8", Local)


def test_the_granularity_in_an_observers_name_counts_if_none_is_set():
    assert Spec("int8", "PerChannelMinMaxObserver").qscheme is QSchemeType.per_channel
    assert Spec("int8", "PerChannelMinMaxObserver", group_size=32).grid().granularity is QSchemeType.per_group
    assert Spec(observer_cls="PerChannelMinMaxObserver").qscheme is None, "an override changes only what it sets"


def test_reading_settings_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\nclass Observer: pass")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="imports nothing"):
        Spec.from_dict({"dtype": "int8", "observer_cls": "trap:Observer"})
    assert Spec.from_dict({"dtype": "int8", "observer_cls": str(tmp_path / "trap.py:Observer")}).observer
    module = types.ModuleType("imported_before")
    module.OwnObserver = OwnObserver
    monkeypatch.setitem(sys.modules, "imported_before", module)
    spec = Spec.from_dict({"dtype": "int8", "observer_cls": "imported_before:OwnObserver"})
    assert Spec.from_dict(spec.to_dict()) == spec


WRONG = [
    ({"dtype": "int9000"}, "dtype", "unknown dtype"),
    ({"dtype": "fp8", "symmetric": False}, "symmetric", "no zero point"),
    ({"dtype": "nf4", "symmetric": False}, "symmetric", "no zero point"),
    ({"dtype": "int4", "qscheme": "per_channel", "group_size": 32}, "group_size", "qscheme per_group"),
    ({"dtype": "int4", "qscheme": "per_group", "block_size": [8, 8]}, "block_size", "qscheme per_block"),
    ({"dtype": "int4", "group_size": 8, "block_size": [8, 8]}, "block_size", "one of the two"),
    ({"dtype": "int4", "group_size": 0}, "group_size", "from 1 up, or -1"),
    ({"dtype": "int4", "group_size": -2}, "group_size", "from 1 up, or -1"),
    ({"dtype": "int4", "group_size": True}, "group_size", "integer"),
    ({"dtype": "int4", "group_size": 32.0}, "group_size", "integer"),
    ({"dtype": "int4", "block_size": [8]}, "block_size[1]", "required"),
    ({"dtype": "int4", "block_size": [8, 0]}, "block_size[1]", "greater than or equal to 1"),
    ({"dtype": "int8", "qscheme": "per_tensor", "ch_axis": 0}, "ch_axis", "per_channel or per_group"),
    ({"dtype": "int8", "ch_axis": 0, "block_size": [8, 8]}, "ch_axis", "per_channel or per_group"),
    ({"dtype": "uint4", "full_range": True}, "full_range", "signed integer"),
    ({"dtype": "int4", "symmetric": False, "full_range": True}, "full_range", "signed integer"),
    ({"dtype": "fp4", "full_range": True}, "full_range", "signed integer"),
    ({"dtype": "int4", "full_range": True, "scale_type": "pof2"}, "full_range", "no sign"),
    ({"dtype": "mxint8", "full_range": True}, "full_range", "no sign"),
    ({"dtype": "int8", "symmetric": "yes"}, "symmetric", "boolean"),
    ({"dtype": "int8", "observer_cls": 3}, "observer_cls", "an observer's class"),
    ({"dtype": "int8", "algorithm": "magic"}, "algorithm", "unknown algorithm"),
    ({"dtype": "int8", "observer_cls": "mse", "observer_parameters": 3}, "observer_parameters", "FrozenMapping"),
    ({"dtype": "int8", "observer_parameters": {"a": float("nan")}}, "observer_parameters", "finite"),
    ({"dtype": "int8", "observer_parameters": {"a": {1}}}, "observer_parameters", "numbers, texts"),
    ({"dtype": "int8", "observer_parameters": {1: 2}}, "observer_parameters", "text for keys"),
    ({"dtype": "int8", "zero_point_type": "int8"}, "zero_point_type", "float32"),
    ({"dtype": "int8", "symmetric": True, "zero_point_type": "float32"}, "zero_point_type", "symmetric False"),
    ({"dtype": "fp8", "zero_point_type": "float32"}, "zero_point_type", "an integer type"),
    ({"dtype": "mx"}, "mx_element_dtype", "mxfp4"),
    ({"dtype": "mx", "mx_element_dtype": "int4"}, "mx_element_dtype", "no element of an MX format"),
    ({"dtype": "int8", "mx_element_dtype": "fp4"}, "mx_element_dtype", "other than mx"),
    ({"dtype": "mxfp4", "scale_type": "float32"}, "scale_type", "dtype fp4 with group_size 32"),
    ({"dtype": "mxfp4", "qscheme": "per_channel"}, "qscheme", "per_group"),
    ({"dtype": "mxfp4", "block_size": [8, 8]}, "qscheme", "per_group"),
    ({"dtype": "fp4", "scale_type": "float16", "scale_format": "e8m0"}, "scale_format", "float16"),
    ({"dtype": "fp4", "scale_format": "e9m9"}, "scale_format", "e8m0"),
    ({"dtype": "nvfp4", "scale_calculation_mode": "floor"}, "scale_calculation_mode", "float8_e8m0fnu"),
    (
        {"dtype": "int8", "scale_format": "e8m0", "symmetric": False, "scale_calculation_mode": "floor"},
        "scale_calculation_mode",
        "symmetric True",
    ),
    ({"dtype": "float16", "group_size": 32}, "group_size", "a plain cast"),
    ({"dtype": "bfloat16", "qscheme": "per_channel"}, "qscheme", "a plain cast"),
    ({"dtype": "bfloat16", "scale_type": "float16"}, "scale_type", "a plain cast"),
    ({"dtype": "int8", "seed": -1}, "seed", "greater than or equal to 0"),
    ({"dtype": "int8", "rounding": "floor"}, "rounding", "unknown setting"),
]


@pytest.mark.parametrize(("fields", "path", "text"), WRONG)
def test_errors_name_the_field_and_what_is_expected(fields, path, text):
    for make in (lambda: Spec(**fields), lambda: Spec.from_dict(fields)):
        with pytest.raises(SettingsError) as caught:
            make()
        assert path in dict(caught.value.problems) and text in dict(caught.value.problems)[path]


def test_all_errors_at_once():
    with pytest.raises(SettingsError) as caught:
        Spec("int9000", group_size=0, symmetrical=True, qscheme="per_channl", round_method="up")
    assert {path for path, _ in caught.value.problems} == {
        "dtype",
        "qscheme",
        "group_size",
        "round_method",
        "symmetrical",
    }
    assert "'symmetric'" in str(caught.value) and "'per_channel'" in str(caught.value)


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
def test_what_is_missing_is_an_error_only_in_a_complete_spec(fields, field):
    spec = Spec(**fields)
    with pytest.raises(SettingsError) as caught:
        spec.grid()
    assert field in dict(caught.value.problems)


BASE = Spec("int4", "histogram", False, group_size=128, ch_axis=0, symmetric=True, observer_parameters={"bins": 64})


def without(*names):
    return {name: value for name, value in BASE.to_dict().items() if name not in names}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, BASE.to_dict()),
        ({"group_size": 32}, BASE.to_dict()),
        ({"dtype": "uint4", "symmetric": False}, BASE.to_dict()),
        # What the override excludes is not inherited.
        ({"qscheme": "per_channel"}, without("group_size")),
        ({"qscheme": "per_tensor"}, without("group_size", "ch_axis")),
        ({"block_size": [8, 8]}, without("group_size", "ch_axis")),
        # An observer comes with its parameters, and belongs to ranges computed beforehand.
        ({"observer_cls": "mse"}, without("observer_parameters")),
        ({"observer_parameters": {"bins": 8}}, BASE.to_dict()),
        ({"is_dynamic": True}, without("observer_cls", "observer_parameters")),
        ({"is_dynamic": False}, BASE.to_dict()),
        ({"qscheme": "per_token"}, {"dtype": "int4", "symmetric": True}),
    ],
)
def test_fields_are_inherited_one_by_one(over, expected):
    before = BASE.to_dict()
    assert Spec(**over).over(BASE).to_dict() == {**expected, **Spec(**over).to_dict()}
    assert BASE.to_dict() == before


@pytest.mark.parametrize("name", BLOCK_FORMATS)
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
    assert Spec(name).over(base).grid() == Spec(name).grid()
    assert Spec(name, group_size=48).over(base).grid() == Spec(name, group_size=48).grid()
    other = Spec("mxfp6_e3m2" if name != "mxfp6_e3m2" else "bfp16", group_size=64)
    assert Spec(name).over(other).grid() == Spec(name).grid()
    assert Spec(name, algorithm="rtn").over(Spec(name, group_size=64)).group_size == 64, "the type was not changed"
    assert Spec("int8").over(Spec(name)).grid() == Spec("int8").grid(), "and takes them away"


def test_a_contradiction_with_an_inherited_type_is_reported():
    merged = Spec(symmetric=False).over(Spec("fp8"))
    assert merged.dtype is Dtype.fp8_e4m3
    with pytest.raises(SettingsError, match="no zero point"):
        merged.complete("weight")


def test_an_algorithm_is_not_mixed_with_an_inherited_observer():
    assert Spec(algorithm="scale_search").over(Spec("int8", "min_max")).observer is None
    assert Spec(observer_cls="min_max").over(Spec("int8", algorithm="scale_search")).weight_algorithm == "rtn"
    assert Spec("int8", algorithm="scale_search+gptq").algorithm == "scale_search+gptq"


def test_slots_adapt_a_spec():
    token = Spec("int8", qscheme="per_token")
    assert token.complete("weight").qscheme is QSchemeType.per_channel and not token.complete("weight").is_dynamic
    assert token.complete("input_tensors").qscheme is QSchemeType.per_token
    # Quark says per token like this: dynamic, per channel, the token axis.
    quark = Spec("fp8", qscheme="per_channel", ch_axis=1, is_dynamic=True)
    assert quark.complete("input_tensors").qscheme is QSchemeType.per_token
    assert quark.complete("weight").qscheme is QSchemeType.per_channel
    for slot in ("weight", "input_tensors", "bias", None):
        once = Spec("mxfp8").complete(slot)
        assert once.complete(slot) == once and once.grid() == Spec("mxfp8").grid()


def test_a_spec_cannot_be_changed_and_can_be_copied():
    spec = Spec("int8", "histogram", observer_parameters={"bins": [1, {"a": 2}]})
    with pytest.raises(Exception, match="frozen"):
        spec.dtype = Dtype.int4
    with pytest.raises(TypeError):
        spec.observer_parameters["bins"] = 3
    with pytest.raises(TypeError):
        spec.observer_parameters.update(bins=3)
    assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec and hash(copy.deepcopy(spec)) == hash(spec)
    assert repr(spec).startswith("QuantizationSpec(dtype='int8', observer_cls='histogram'") and len(repr(BASE)) <= 120
    given = {"bins": 3}
    held = Spec("int8", "histogram", observer_parameters=given)
    given["bins"] = 4
    assert held.observer_parameters == {"bins": 3} and Spec.from_yaml(held.to_yaml()) == held
    with pytest.raises(TypeError, match="twice"):
        Spec("int8", dtype="int4")
