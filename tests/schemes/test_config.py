# SPDX-License-Identifier: Apache-2.0
import copy
import dataclasses
import json
import pickle
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit import Config, QConfig, QuantizationConfig, QuantizationSpec
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.schemes.config import Resolved

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
        min_kv_scale=0.125,
        optional=["head"],
    )


def test_the_seeds_calls():
    assert QConfig is Config
    config = Config(global_quant_config=QuantizationConfig(input_tensors=INT8, weight=INT8))
    found = config.resolve("model.fc1", LINEAR)
    assert found.source == "global" and found.quantization.weight.dtype is Dtype.int8
    assert found.quantization.output_tensors is None and found.quantization.bias is None


def test_name_over_type_over_global_field_by_field():
    config = Config(
        GLOBAL,
        {"Linear": {"weight": {"group_size": 64}}},
        {"*.fc1": {"weight": {"dtype": "uint4"}, "input_tensors": "float"}},
    )
    usual = config.resolve("a", ("Conv2d", "Module"))
    assert (usual.source, usual.quantization.weight.group_size) == ("global", 32)
    by_type = config.resolve("a.fc2", LINEAR)
    assert (by_type.source, by_type.quantization.weight.group_size) == ("type", 64)
    assert by_type.quantization.input_tensors.dtype is Dtype.int8
    by_name = config.resolve("a.fc1", LINEAR)
    weight = by_name.quantization.weight
    assert (by_name.source, weight.dtype, weight.group_size) == ("name", Dtype.uint4, 64)
    assert by_name.quantization.input_tensors is None
    assert by_name.why == 'layer_quant_config["*.fc1"] over layer_type_quant_config["Linear"] over global_quant_config'


def test_types_are_classes_or_names_and_hold_for_subclasses():
    import torch

    class MyLinear(torch.nn.Linear):
        pass

    config = Config(None, {torch.nn.Linear: QuantizationConfig(weight=INT8), "Conv2d": QuantizationConfig(weight=INT4)})
    names = [c.__name__ for c in MyLinear.__mro__]
    assert config.resolve("a", names).quantization.weight.dtype is Dtype.int8
    assert config.resolve("a", ["Conv2d", "Module"]).quantization.weight.dtype is Dtype.int4
    assert config.resolve("a", ["LayerNorm", "Module"]) == Resolved(
        None, "none", "nothing in the configuration names it or its type"
    )
    special = Config(None, {"Linear": {"weight": INT8}, "MyLinear": {"weight": INT4}})
    assert special.resolve("a", names).quantization.weight.dtype is Dtype.int4
    with pytest.raises(UsageError, match="given twice"):
        Config(None, {torch.nn.Linear: {"weight": INT8}, "Linear": {"weight": INT8}})


def test_the_most_specific_name_counts():
    bits = {"*": 2, "*.fc1": 3, r"re:layers\.\d+\.fc1": 5, "layers.0.fc1": 6}
    config = Config(None, None, {name: {"weight": {"dtype": f"int{bits[name]}"}} for name in bits})
    found = {
        n: config.resolve(n, ()).quantization.weight.dtype.bits for n in ("x", "x.fc1", "layers.1.fc1", "layers.0.fc1")
    }
    assert found == {"x": 2, "x.fc1": 3, "layers.1.fc1": 5, "layers.0.fc1": 6}


@pytest.mark.parametrize("name", ["lm_head", "lm_head.inner", "a.norm", "a.norm.b.c", "x.gate", "x.gate.w"])
def test_excluded_layers_stay_in_float_with_all_inside_them(name):
    found = everything().resolve(name, LINEAR)
    assert found.quantization is None and found.source == "excluded" and found.why.startswith('exclude "')


@pytest.mark.parametrize("name", ["lm_heads", "norm", "a.gates", "gate"])
def test_similar_names_are_not_excluded(name):
    assert everything().resolve(name, LINEAR).source != "excluded"


def test_exclusion_comes_before_an_entry_by_name():
    config = Config(GLOBAL, layer_quant_config={"a.b": {"weight": INT8}}, exclude=["a"])
    assert config.resolve("a.b", LINEAR).source == "excluded"


def test_float_by_name_leaves_one_layer_alone():
    found = everything().resolve("head", LINEAR)
    assert found.quantization is None and found.source == "name"


def test_use_leaves_the_configuration_as_it_was():
    # Two defects of others: one layer without a bias took the bias out of the global configuration for all later
    # layers, and the exclusions were overwritten with one model's names.
    config = everything()
    before, text, mark = copy.deepcopy(config), config.to_json(), config.fingerprint
    for name in ("no_bias", "lm_head", "a.norm.x", "a.fc1", "head"):
        config.resolve(name, LINEAR)
        config.unused([name], LINEAR)
        config.kv_cache(name)
    config.excluding(["more"])
    config.with_layers({"more": GLOBAL})
    assert config == before and config.to_json() == text and config.fingerprint == mark
    assert config.exclude == ("lm_head", "*.norm", r"re:.*\.gate")
    assert config.global_quant_config.bias == QuantizationSpec("int32")
    assert config.resolve("with_bias", LINEAR).quantization.bias.dtype is Dtype.int32


def test_nothing_in_it_can_be_changed():
    config = everything()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.exclude = ()
    for mapping in (config.layer_quant_config, config.layer_type_quant_config, config.kv_cache_quant_config):
        with pytest.raises(TypeError):
            mapping["x"] = GLOBAL
        with pytest.raises((AttributeError, TypeError)):
            mapping.clear()
    held = {"*.fc1": QuantizationConfig(weight=INT8)}
    names = ["a"]
    config = Config(GLOBAL, layer_quant_config=held, exclude=names)
    held.clear()
    names.append("b")
    assert list(config.layer_quant_config) == ["*.fc1"] and config.exclude == ("a",)


def test_copies_are_equal_and_hash_alike():
    config = everything()
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), dataclasses.replace(config)):
        assert other == config and hash(other) == hash(config) and other.fingerprint == config.fingerprint
    assert "exclude=('lm_head', '*.norm'" in repr(config) and "optional=('head',)" in repr(config)


def test_the_order_of_writing_does_not_matter():
    entries = {"*.fc1": {"weight": INT8}, "*.fc2": {"weight": INT4}}
    other = dict(reversed(entries.items()))
    one, two = Config(GLOBAL, layer_quant_config=entries), Config(GLOBAL, layer_quant_config=other)
    assert one == two and hash(one) == hash(two) and one.fingerprint == two.fingerprint


def test_the_fingerprint_hashes_the_content_and_nothing_else():
    config = Config({"weight": {"dtype": "int8"}}, exclude=["b", "a"])
    content = b'{"exclude":["b","a"],"global_quant_config":{"weight":{"dtype":"int8"}},"version":1}'
    assert config.fingerprint == sha256(content).hexdigest()
    assert config.fingerprint != config.excluding(["c"]).fingerprint
    assert len({config.fingerprint, Config({"weight": {"dtype": "int4"}}, exclude=["b", "a"]).fingerprint}) == 2


def test_copies_with_more():
    config = everything().excluding(["x", "lm_head"]).with_layers({"y": GLOBAL, "z": None})
    assert config.exclude == ("lm_head", "*.norm", r"re:.*\.gate", "x")
    assert set(config.layer_quant_config) == {"*.fc1", "head", "y"}
    wide = QuantizationConfig(weight={"dtype": "uint8", "qscheme": "per_channel", "symmetric": False})
    weight = Config(GLOBAL).with_layers({"a": wide}).resolve("a", ()).quantization.weight
    assert weight.dtype is Dtype.uint8 and weight.group_size is None, "a channel has no groups to inherit"


def test_entries_that_match_nothing():
    config = everything()
    layers = ["a.fc1", "a.norm.x", "lm_head", "a.gate", "a.k_proj", "a.v_proj"]
    assert config.unused(layers, ["Linear"]) == []
    assert config.unused(["a.fc2", "lm_head"], ["Conv2d"]) == [
        "*.fc1",
        "Linear",
        "*.norm",
        r"re:.*\.gate",
        "*.k_proj",
        "*.v_proj",
    ]
    assert Config(GLOBAL, exclude="lm_head").unused(["lm_head.inner"], []) == []
    assert Config(GLOBAL, layer_quant_config={"a": {}}).unused(["a.b"], []) == ["a"], "only exclusion implies children"


def test_the_cache():
    assert Config(GLOBAL).kv_cache("x") is None
    one = Config(kv_cache_quant_config=QuantizationSpec("fp8"))
    assert one.kv_cache("anything").dtype is Dtype.fp8_e4m3 and one.resolve("anything", ()).source == "none"
    config = everything()
    assert config.kv_cache("a.k_proj").dtype is Dtype.fp8_e4m3 and config.kv_cache("a.v_proj").dtype is Dtype.int8
    assert config.kv_cache("a.q_proj") is None
    quark = Config(kv_cache_quant_config={"*": QuantizationConfig(output_tensors=INT8)})
    assert quark.kv_cache("x").dtype is Dtype.int8
    assert Config(kv_cache_quant_config={}) == Config(exclude=None, algo_config=[]) == Config()


@pytest.mark.parametrize(
    ("fields", "where", "words"),
    [
        ({"global_config": GLOBAL}, "global_config", "'global_quant_config'"),
        ({"self": 1}, "self", "there is no field 'self'"),
        ({"global_quant_config": INT8}, "global_quant_config", "QuantizationConfig(weight=…)"),
        ({"layer_quant_config": [1]}, "layer_quant_config", "an object of names"),
        ({"layer_quant_config": {0: GLOBAL}}, 'layer_quant_config["0"]', "in quotes"),
        ({"layer_quant_config": {"re:(": GLOBAL}}, 'layer_quant_config["re:("]', "not a regular expression"),
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
            "per_group without a group_size",
        ),
        (
            {
                "global_quant_config": {"weight": {"dtype": "fp8"}},
                "layer_type_quant_config": {"L": {"weight": {"symmetric": False}}},
            },
            'layer_type_quant_config["L"].weight.symmetric',
            "no zero point",
        ),
        (
            {
                "global_quant_config": {"input_tensors": {"dtype": "int8", "qscheme": "per_token"}},
                "layer_quant_config": {"a": {"input_tensors": {"is_dynamic": False}}},
            },
            'layer_quant_config["a"].input_tensors.is_dynamic',
            "tokens to come",
        ),
        ({"exclude": [3]}, "exclude", "a list of names"),
        ({"exclude": ["a", "re:["]}, "exclude[1]", "not a regular expression"),
        ({"kv_cache_quant_config": 3}, "kv_cache_quant_config", "specs by layer"),
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
        ({"kv_cache_quant_config": {"*": GLOBAL}}, 'kv_cache_quant_config["*"].output_tensors', "no spec"),
        ({"kv_cache_post_rope": 1}, "kv_cache_post_rope", "True or False"),
        ({"min_kv_scale": -1}, "min_kv_scale", "from 0 up"),
        ({"min_kv_scale": float("nan")}, "min_kv_scale", "from 0 up"),
        ({"min_kv_scale": True}, "min_kv_scale", "from 0 up"),
        ({"min_kv_scale": "0.1"}, "min_kv_scale", "from 0 up"),
        ({"algo_config": [{"alpha": 1}]}, "algo_config[0]", "`name`"),
        ({"algo_config": ["magic"]}, "algo_config[0]", "Known"),
    ],
)
def test_faults_name_the_field(fields, where, words):
    with pytest.raises(UsageError) as error:
        Config(**fields)
    assert error.value.where == where and words in str(error.value)


def test_all_faults_come_at_once_with_their_paths():
    with pytest.raises(UsageError) as error:
        Config.from_yaml(
            """
            global_quant_config:
              weight: {dtype: int4, qscheme: per_group}
              input_tensors: {dtype: nf4}
            layer_quant_config:
              "*.fc1": {weight: {grop_size: 32}}
            excludes: [a]
            """
        )
    lines = [line.split(":")[0].strip() for line in str(error.value).splitlines() if line.strip()[0].isdigit()]
    assert lines == [
        "4 faults in the configuration",
        "1. global_quant_config.input_tensors.dtype",
        '2. layer_quant_config["*.fc1"].weight.grop_size',
        "3. excludes",
        "4. global_quant_config.weight.group_size",
    ]


def test_an_entry_by_name_may_need_what_only_a_type_says():
    config = Config(None, {"Linear": {"weight": INT4}}, {"*.fc1": {"weight": {"group_size": 64}}})
    assert config.resolve("a.fc1", LINEAR).quantization.weight.group_size == 64
    with pytest.raises(UsageError) as error:
        config.resolve("b.fc1", ("Conv2d", "Module"))
    assert error.value.where == 'b.fc1 (layer_quant_config["*.fc1"]).weight.dtype'


def test_algorithms_are_kept_with_their_parameters(monkeypatch):
    from fewbit import registry

    monkeypatch.setattr(registry, "names", lambda kind: ["gptq", "rtn"])
    config = Config(GLOBAL, algo_config=["rtn", {"name": "gptq", "damp": 0.01, "order": ["a"]}])
    assert config.algo_config[1] == {"name": "gptq", "damp": 0.01, "order": ("a",)}
    assert Config.from_json(config.to_json()) == config


def test_text_both_ways(tmp_path):
    config = everything()
    assert Config.from_json(config.to_json()) == config == Config.from_yaml(config.to_yaml())
    for name in ("c.json", "c.yaml", "c.yml"):
        assert Config.load(config.save(tmp_path / name)) == config
    assert json.loads((tmp_path / "c.json").read_text())["version"] == 1
    assert list(tmp_path.iterdir()).__len__() == 3, "nothing is left behind"


def test_what_could_not_be_read_back_is_not_written():
    class Local:
        pass

    config = Config({"weight": QuantizationSpec("int8", Local)})
    assert config.fingerprint
    with pytest.raises(UsageError, match="cannot be written down"):
        config.to_json()


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UsageError, match="neither JSON nor YAML"):
        Config.load(tmp_path / "c.txt")
    with pytest.raises(UsageError, match="neither JSON nor YAML"):
        everything().save(tmp_path / "c")
    with pytest.raises(UsageError, match="cannot read"):
        Config.load(tmp_path / "missing.json")
    (tmp_path / "c.yaml").write_text("exclude: 3")
    with pytest.raises(UsageError, match=r"c\.yaml") as error:
        Config.load(tmp_path / "c.yaml")
    assert error.value.where == "exclude"
    with pytest.raises(UsageError, match="version 2"):
        Config.from_dict({"version": 2})


# --- any valid configuration -----------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda t: not t.startswith("re:")
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | names
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


@st.composite
def specs(draw, slot="weight"):
    """Any valid spec of a slot, fields left out at random."""
    made = {}

    def maybe(field, strategy):
        if draw(st.booleans()):
            made[field] = draw(strategy)

    integer = [f"{sign}int{bits}" for bits in (2, 3, 4, 8, 16) for sign in ("", "u")]
    dtype = made["dtype"] = draw(
        st.sampled_from([*integer, "fp8_e4m3", "fp4", "fp6_e3m2", "mxfp4", "mxint8", "nvfp4", "bfloat16", "float16"])
    )
    maybe("round_method", st.sampled_from(["half_even", "round", "floor", "stochastic"]))
    maybe("seed", st.integers(0, 2**31))
    maybe("observer_cls", st.just("min_max"))
    if "observer_cls" in made:
        maybe("observer_parameters", st.dictionaries(names, values, max_size=3))
    if dtype in ("bfloat16", "float16"):
        return QuantizationSpec(**made)
    if dtype.startswith(("mx", "nv")):
        maybe("group_size", st.integers(1, 512))
    else:
        scheme = draw(st.sampled_from(["per_tensor", "per_channel", "per_group", "per_block", "per_token"]))
        made["qscheme"] = scheme
        if scheme == "per_group":
            made["group_size"] = draw(st.integers(1, 512) | st.just(-1))
        if scheme == "per_block":
            made["block_size"] = draw(st.tuples(st.integers(1, 512), st.integers(1, 512)))
        if scheme in ("per_channel", "per_group"):
            maybe("ch_axis", st.integers(0, 1))
        maybe("scale_type", st.sampled_from(["float32", "float16", "bfloat16"]))
        if dtype in integer:
            maybe("symmetric", st.booleans())
        if dtype in integer and made.get("symmetric") is False:
            maybe("zero_point_type", st.sampled_from(["int32", "float32"]))
        if dtype.startswith("int") and made.get("symmetric") is not False:
            maybe("full_range", st.booleans())
    if slot == "weight" or made.get("qscheme") != "per_token":
        maybe("is_dynamic", st.booleans())
    return QuantizationSpec(**made)


def slots(slot):
    return st.none() | st.just("float") | specs(slot)


layers = st.builds(
    QuantizationConfig,
    slots("input_tensors"),
    slots("output_tensors"),
    slots("weight"),
    slots("bias"),
    st.none() | names,
)
configs = st.builds(
    Config,
    st.none() | layers,
    st.dictionaries(names, layers, max_size=2),
    st.dictionaries(names | st.just(r"re:a\.\d+"), layers, max_size=3),
    st.lists(names, max_size=3),
    kv_cache_post_rope=st.booleans(),
    min_kv_scale=st.floats(0, 1e6),
    optional=st.lists(names, max_size=2),
)


@settings(max_examples=60)
@given(configs)
def test_any_configuration_survives_json_and_yaml(config):
    for other in (
        Config.from_json(config.to_json()),
        Config.from_yaml(config.to_yaml()),
        Config.from_dict(config.to_dict()),
    ):
        assert other == config and hash(other) == hash(config) and other.fingerprint == config.fingerprint


@settings(max_examples=60)
@given(configs, names, st.lists(names, max_size=2))
def test_any_configuration_resolves_to_whole_specs(config, layer, types):
    mark = config.fingerprint
    for name in (layer, *config.layer_quant_config, *config.exclude):
        found = config.resolve(name, [*types, *config.layer_type_quant_config])
        if found.quantization is None:
            continue
        for slot in ("input_tensors", "output_tensors", "weight", "bias"):
            spec = getattr(found.quantization, slot)
            if spec is not None:
                assert isinstance(spec.dtype, Dtype) and spec.complete(slot) == spec
                assert spec.grid().dtype is spec.dtype
    assert config.fingerprint == mark


@settings(max_examples=60)
@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["", "global_quant_config", "layer_quant_config"]))
def test_any_nonsense_is_a_usage_error_or_a_configuration(nonsense, where):
    try:
        Config.from_dict({where: nonsense} if where else nonsense)
    except UsageError as error:
        assert error.what
