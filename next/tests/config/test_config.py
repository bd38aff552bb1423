# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit
from fewbit import Config, QuantizationConfig, QuantizationSpec
from fewbit.config.config import ResolvedConfig
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS
from fewbit.numerics.scales import ScaleType
from fewbit.settings import SettingsError

INT8 = QuantizationSpec("int8", qscheme="per_tensor", symmetric=True)
INT4 = QuantizationSpec("int4", group_size=32)
GLOBAL = QuantizationConfig(weight=INT4, input_tensors=INT8, bias=QuantizationSpec("int32"))
LINEAR = ("MyLinear", "Linear", "Module")


def everything():
    """A configuration that uses every part."""
    return Config(
        GLOBAL,
        layer_type_quant_config={"Linear": QuantizationConfig(weight=QuantizationSpec(group_size=64))},
        layer_quant_config={"*.fc1": {"weight": {"symmetric": True}}, "head": "float"},
        exclude=["lm_head", "*.norm", r"re:.*\.gate"],
        kv_cache_quant_config={"*.k_proj": QuantizationSpec("fp8"), "*.v_proj": QuantizationSpec("int8")},
        kv_cache_post_rope=False,
        algo_config=["rtn", {"name": "gptq", "damping": 0.01, "order": ["a"]}],
        min_kv_scale=0.125,
        optional=["head"],
    )


def problems(make):
    with pytest.raises(SettingsError) as caught:
        make()
    return dict(caught.value.problems)


# One layer


def test_specs_may_be_objects_or_fields():
    assert fewbit.QLayerConfig is QuantizationConfig and fewbit.QConfig is Config
    assert QuantizationConfig(weight=QuantizationSpec("int8")) == QuantizationConfig(weight={"dtype": "int8"})
    assert QuantizationConfig(weight=INT8).input_tensors is None


def test_inheritance_is_by_slot_and_by_field():
    base = QuantizationConfig(weight=INT4, input_tensors=INT8, bias=INT8)
    over = QuantizationConfig(weight=QuantizationSpec(group_size=16), input_tensors="float").over(base)
    assert over.weight == QuantizationSpec("int4", group_size=16)
    assert over.input_tensors == "float" and over.bias == INT8 and over.output_tensors is None
    assert QuantizationConfig(input_tensors=INT4).over(over).input_tensors == INT4
    assert QuantizationConfig(weight=INT8).over(None) == QuantizationConfig(weight=INT8)
    complete = QuantizationConfig(weight=INT4, input_tensors="float", target_device="CPU").complete()
    assert complete.input_tensors is None and complete.target_device == "CPU"
    assert complete.weight.qscheme is QSchemeType.per_group and complete.weight.is_dynamic is False
    assert QuantizationConfig(weight="float").complete() is None


@pytest.mark.parametrize(
    ("slots", "path", "text"),
    [
        ({"weights": INT8}, "weights", "'weight'"),
        ({"weight": "int8"}, "weight", "'float'"),
        ({"weight": 3}, "weight", "QuantizationSpec"),
        ({"weight": {"dtype": "int8", "group_sise": 3}}, "weight.group_sise", "'group_size'"),
        ({"input_tensors": QuantizationSpec("nf4")}, "input_tensors.dtype", "codebooks are for weights"),
        ({"output_tensors": QuantizationSpec("nf4")}, "output_tensors.dtype", "codebooks are for weights"),
        ({"weight": QuantizationSpec("int32")}, "weight.dtype", "for a bias"),
        ({"input_tensors": QuantizationSpec("int32")}, "input_tensors.dtype", "for a bias"),
        (
            {"input_tensors": QuantizationSpec("int8", qscheme="per_token", is_dynamic=False)},
            "input_tensors.is_dynamic",
            "tokens to come",
        ),
        (
            {"input_tensors": QuantizationSpec("int8", "histogram", is_dynamic=True)},
            "input_tensors.observer_cls",
            "is_dynamic False",
        ),
        ({"weight": QuantizationSpec("int4", group_size=32, ch_axis=-1)}, "weight.ch_axis", "try 0"),
        ({"weight": QuantizationSpec("mxfp4", ch_axis=-1)}, "weight.ch_axis", "try 0"),
        ({"weight": QuantizationSpec("fp8", is_scale_quant=True)}, "weight.is_scale_quant", "second in a list"),
        ({"weight": []}, "weight", "0 specs"),
        ({"weight": [INT8, INT4]}, "weight", "2 specs"),
        ({"weight": [INT4, QuantizationSpec("fp8_e5m2", is_scale_quant=True)]}, "weight", "2 specs"),
        ({"weight": [INT4, INT8, QuantizationSpec("fp8_e4m3", is_scale_quant=True)]}, "weight", "3 specs"),
        ({"weight": [INT4, {"dtype": "x"}]}, "weight", "spec 1: dtype: unknown dtype"),
    ],
)
def test_errors_name_the_slot(slots, path, text):
    found = problems(lambda: QuantizationConfig(**slots))
    assert text in found[path]


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
def test_what_fits_one_slot_may_not_fit_another(spec, right, wrong):
    for slot in right:
        config = QuantizationConfig(**{slot: spec})
        assert config.problems() == [] and config.complete() is not None
    for slot in wrong:
        with pytest.raises(UsageError):
            QuantizationConfig(**{slot: spec})


def test_quarks_list_of_a_spec_and_the_spec_of_its_scales():
    scales = QuantizationSpec("fp8_e4m3", is_scale_quant=True)
    config = QuantizationConfig(weight=[QuantizationSpec("fp4", group_size=16), scales])
    assert config.weight.scale_type is ScaleType.float8_e4m3fn
    assert config.weight.grid() == QuantizationSpec("nvfp4").grid()
    assert QuantizationConfig(weight=[INT4]).weight == INT4


# A model


def test_name_over_type_over_global_field_by_field():
    config = Config(
        GLOBAL,
        {"Linear": {"weight": {"group_size": 64}}},
        {"*.fc1": {"weight": {"dtype": "uint4"}, "input_tensors": "float"}},
    )
    plain = config.resolve("a", ("Conv2d", "Module"))
    assert (plain.source, plain.quantization.weight.group_size) == ("global", 32)
    by_type = config.resolve("a.fc2", LINEAR)
    assert (by_type.source, by_type.quantization.weight.group_size) == ("type", 64)
    by_name = config.resolve("a.fc1", LINEAR)
    weight = by_name.quantization.weight
    assert (by_name.source, weight.dtype, weight.group_size) == ("name", Dtype.uint4, 64)
    assert by_name.quantization.input_tensors is None
    assert (
        by_name.reason == 'layer_quant_config["*.fc1"] over layer_type_quant_config["Linear"] over global_quant_config'
    )


def test_types_are_classes_or_names_and_hold_for_subclasses():
    class MyLinear(torch.nn.Linear):
        pass

    config = Config(None, {torch.nn.Linear: QuantizationConfig(weight=INT8), "Conv2d": QuantizationConfig(weight=INT4)})
    names = [base.__name__ for base in MyLinear.__mro__]
    assert config.resolve("a", names).quantization.weight.dtype is Dtype.int8
    assert config.resolve("a", ["Conv2d", "Module"]).quantization.weight.dtype is Dtype.int4
    nothing = ResolvedConfig(None, "none", "nothing in the configuration names it or its type")
    assert config.resolve("a", ["LayerNorm", "Module"]) == nothing
    special = Config(None, {"Linear": {"weight": INT8}, "MyLinear": {"weight": INT4}})
    assert special.resolve("a", names).quantization.weight.dtype is Dtype.int4
    assert "twice" in problems(lambda: Config(None, {torch.nn.Linear: {}, "Linear": {}}))["layer_type_quant_config"]


def test_the_most_specific_name_counts():
    bits = {"*": 2, "*.fc1": 3, r"re:layers\.\d+\.fc1": 5, "layers.0.fc1": 6}
    config = Config(None, None, {name: {"weight": {"dtype": f"int{width}"}} for name, width in bits.items()})
    names = ("x", "x.fc1", "layers.1.fc1", "layers.0.fc1")
    assert [config.resolve(name, ()).quantization.weight.dtype.bits for name in names] == [2, 3, 5, 6]


def test_excluded_layers_stay_in_float_with_everything_inside_them():
    config = everything()
    for name in ("lm_head", "lm_head.inner", "a.norm", "a.norm.b.c", "x.gate", "x.gate.w"):
        resolved = config.resolve(name, LINEAR)
        assert resolved.quantization is None and resolved.source == "excluded" and resolved.reason.startswith("exclude")
    for name in ("lm_heads", "norm", "a.gates", "gate"):
        assert config.resolve(name, LINEAR).source != "excluded"
    both = Config(GLOBAL, layer_quant_config={"a.b": {"weight": INT8}}, exclude=["a"])
    assert both.resolve("a.b", LINEAR).source == "excluded"
    assert config.resolve("head", LINEAR) == ResolvedConfig(None, "name", config.resolve("head", LINEAR).reason)


def test_use_leaves_the_configuration_as_it_was():
    """In Quark one layer without a bias removed the bias of the global configuration for all later layers."""
    config = everything()
    before, text, mark = copy.deepcopy(config), config.to_json(), config.fingerprint()
    for name in ("no_bias", "lm_head", "a.norm.x", "a.fc1", "head"):
        config.resolve(name, LINEAR)
        config.unused([name], LINEAR)
        config.kv_cache(name)
    config.excluding(["more"])
    config.with_layers({"more": GLOBAL})
    assert config == before and config.to_json() == text and config.fingerprint() == mark
    assert config.resolve("with_bias", LINEAR).quantization.bias.dtype is Dtype.int32


def test_nothing_in_it_can_be_changed():
    config = everything()
    with pytest.raises(Exception, match="frozen"):
        config.exclude = ()
    for mapping in (config.layer_quant_config, config.layer_type_quant_config, config.kv_cache_quant_config):
        with pytest.raises(TypeError):
            mapping["x"] = GLOBAL
        with pytest.raises(TypeError):
            mapping.clear()
    held, names = {"*.fc1": QuantizationConfig(weight=INT8)}, ["a"]
    config = Config(GLOBAL, layer_quant_config=held, exclude=names)
    held.clear()
    names.append("b")
    assert list(config.layer_quant_config) == ["*.fc1"] and config.exclude == ("a",)


def test_copies_are_equal_and_have_the_same_fingerprint(tmp_path):
    config = everything()
    copies = [copy.deepcopy(config), pickle.loads(pickle.dumps(config)), Config.from_yaml(config.to_yaml())]
    copies += [Config.from_yaml(config.to_json())]
    copies += [Config.load(config.save(tmp_path / name)) for name in ("c.json", "c.yaml")]
    for other in copies:
        assert other == config and hash(other) == hash(config) and other.fingerprint() == config.fingerprint()
    assert len(list(tmp_path.iterdir())) == 2 and len(repr(config)) <= 120
    entries = {"*.fc1": {"weight": INT8}, "*.fc2": {"weight": INT4}}
    one, two = Config(GLOBAL, {}, entries), Config(GLOBAL, {}, dict(reversed(entries.items())))
    assert one == two and one.fingerprint() == two.fingerprint() != Config(GLOBAL).fingerprint()
    whole = Config({"weight": QuantizationSpec("int8", "histogram", observer_parameters={"bins": 8})})
    same = Config({"weight": QuantizationSpec("int8", "histogram", observer_parameters={"bins": 8.0})})
    assert whole == same and whole.fingerprint() == same.fingerprint()


def test_copies_with_more():
    config = everything().excluding(["x", "lm_head"]).with_layers({"y": GLOBAL, "z": None})
    assert config.exclude == ("lm_head", "*.norm", r"re:.*\.gate", "x")
    assert set(config.layer_quant_config) == {"*.fc1", "head", "y"}
    wide = QuantizationConfig(weight={"dtype": "uint8", "qscheme": "per_channel", "symmetric": False})
    weight = Config(GLOBAL).with_layers({"a": wide}).resolve("a", ()).quantization.weight
    assert weight.dtype is Dtype.uint8 and weight.group_size is None, "a channel has no groups to inherit"


def test_entries_that_match_nothing():
    config = everything()
    assert config.unused(["a.fc1", "a.norm.x", "lm_head", "a.gate", "a.k_proj", "a.v_proj"], ["Linear"]) == []
    unmatched = ["*.fc1", "Linear", "*.norm", r"re:.*\.gate", "*.k_proj", "*.v_proj"]
    assert config.unused(["a.fc2", "lm_head"], ["Conv2d"]) == unmatched
    assert Config(GLOBAL, exclude="lm_head").unused(["lm_head.inner"], []) == []
    assert Config(GLOBAL, layer_quant_config={"a": {}}).unused(["a.b"], []) == ["a"], "only exclusion implies children"


def test_the_cache():
    assert Config(GLOBAL).kv_cache("x") is None
    one = Config(kv_cache_quant_config=QuantizationSpec("fp8"))
    assert one.kv_cache("anything").dtype is Dtype.fp8_e4m3 and one.resolve("anything", ()).source == "none"
    assert Config(kv_cache_quant_config={"dtype": "fp8"}) == one
    config = everything()
    assert config.kv_cache("a.k_proj").dtype is Dtype.fp8_e4m3 and config.kv_cache("a.v_proj").dtype is Dtype.int8
    assert config.kv_cache("a.q_proj") is None
    quark = Config(kv_cache_quant_config={"*": QuantizationConfig(output_tensors=INT8)})
    assert quark.kv_cache("x").dtype is Dtype.int8
    assert Config(kv_cache_quant_config={}) == Config(exclude=None, algo_config=[]) == Config()


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"global_config": GLOBAL}, "global_config", "'global_quant_config'"),
        ({"global_quant_config": INT8}, "global_quant_config", "QuantizationConfig"),
        ({"layer_quant_config": [1]}, "layer_quant_config", "dictionary"),
        ({"layer_quant_config": {0: GLOBAL}}, 'layer_quant_config[0]["[key]"]', "string"),
        ({"layer_quant_config": {"re:(": GLOBAL}}, 'layer_quant_config["re:("]', "no regular expression"),
        (
            {"layer_quant_config": {"*.fc1": {"weight": {"dtype": "int4", "group_size": 0}}}},
            'layer_quant_config["*.fc1"].weight.group_size',
            "from 1 up",
        ),
        (
            {"layer_quant_config": {"*.fc1": {"weight": {"group_size": 32}}}},
            'layer_quant_config["*.fc1"].weight.dtype',
            "no dtype",
        ),
        (
            {"global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group"}}},
            "global_quant_config.weight.group_size",
            "without a group_size",
        ),
        (
            {
                "global_quant_config": {"weight": {"dtype": "fp8"}},
                "layer_type_quant_config": {"L": {"weight": {"symmetric": False}}},
            },
            "layer_type_quant_config.L.weight.symmetric",
            "no zero point",
        ),
        (
            {
                "global_quant_config": {"input_tensors": {"dtype": "int8", "qscheme": "per_token"}},
                "layer_quant_config": {"a": {"input_tensors": {"is_dynamic": False}}},
            },
            "layer_quant_config.a.input_tensors.is_dynamic",
            "tokens to come",
        ),
        ({"exclude": [3]}, "exclude[0]", "string"),
        ({"exclude": ["a", "re:["]}, "exclude[1]", "no regular expression"),
        ({"kv_cache_quant_config": 3}, "kv_cache_quant_config", "QuantizationSpec"),
        ({"kv_cache_quant_config": {"dtype": "nf4"}}, "kv_cache_quant_config.dtype", "for weights"),
        (
            {"kv_cache_quant_config": {"*": {"dtype": "int8", "is_dynamic": True}}},
            'kv_cache_quant_config["*"].qscheme',
            "a new token would change",
        ),
        (
            {"kv_cache_quant_config": QuantizationSpec("nvfp4", is_dynamic=True)},
            "kv_cache_quant_config.scale_type",
            "would change with each token",
        ),
        ({"kv_cache_post_rope": 1}, "kv_cache_post_rope", "boolean"),
        ({"min_kv_scale": -1}, "min_kv_scale", "greater than or equal to 0"),
        ({"min_kv_scale": float("nan")}, "min_kv_scale", "finite"),
        ({"min_kv_scale": True}, "min_kv_scale", "number"),
        ({"algo_config": [{"alpha": 1}]}, "algo_config[0]", "`name`"),
        ({"algo_config": ["magic"]}, "algo_config[0]", "unknown algorithm"),
        ({"version": 2}, "version", "1"),
    ],
)
def test_errors_name_the_field(fields, path, text):
    found = problems(lambda: Config(**fields))
    assert path in found, found
    assert text in found[path], found


def test_all_errors_at_once_with_their_paths():
    text = """
    global_quant_config:
      weight: {dtype: int4, group_size: 0}
      input_tensors: {dtype: nf4}
    layer_quant_config:
      "*.fc1": {weight: {grop_size: 32}}
    excludes: [a]
    """
    assert set(problems(lambda: Config.from_yaml(text))) == {
        "global_quant_config.weight.group_size",
        'layer_quant_config["*.fc1"].weight.grop_size',
        "excludes",
    }
    text = (
        text.replace("group_size: 0", "group_size: 32")
        .replace("grop_size", "group_size")
        .replace("excludes", "exclude")
    )
    assert set(problems(lambda: Config.from_yaml(text))) == {"global_quant_config.input_tensors.dtype"}


def test_an_entry_by_name_may_need_what_only_a_type_has():
    config = Config(None, {"Linear": {"weight": INT4}}, {"*.fc1": {"weight": {"group_size": 64}}})
    assert config.resolve("a.fc1", LINEAR).quantization.weight.group_size == 64
    assert "no dtype" in problems(lambda: config.resolve("b.fc1", ("Conv2d", "Module")))["weight.dtype"]


SPECS = st.builds(
    lambda dtype, scheme, dynamic, scale: {"dtype": dtype, **scheme, **dynamic, **scale},
    st.sampled_from([*(d.name for d in Dtype if d.is_integer and d.bits <= 16), "fp8_e4m3", "fp4"]),
    st.sampled_from([{}, {"group_size": 32}, {"qscheme": "per_channel", "ch_axis": 0}, {"block_size": [8, 16]}]),
    st.sampled_from([{}, {"is_dynamic": True}, {"is_dynamic": False}]),
    st.sampled_from([{}, {"scale_type": "bfloat16"}, {"round_method": "floor"}, {"seed": 3}]),
)


@settings(max_examples=60, deadline=None)
@given(SPECS, SPECS, st.dictionaries(st.text("abc.*", min_size=1, max_size=4), SPECS, max_size=3))
def test_any_configuration_survives_yaml(weight, inputs, layers):
    config = Config(
        {"weight": weight, "input_tensors": inputs}, layer_quant_config={n: {"weight": s} for n, s in layers.items()}
    )
    again = Config.from_yaml(config.to_yaml())
    assert again == config and again.fingerprint() == config.fingerprint() and hash(again) == hash(config)


def test_block_formats_survive_yaml():
    for name in BLOCK_FORMATS:
        config = Config({"weight": {"dtype": name}})
        assert Config.from_yaml(config.to_yaml()) == config
