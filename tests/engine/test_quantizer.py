# SPDX-License-Identifier: Apache-2.0
"""What a run promises: clear refusals, nothing of the caller's changed, padding left out, one record."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fewbit import (
    Config,
    DataError,
    Dataset,
    IgnoredScope,
    ModelQuantizer,
    QuantizationConfig,
    QuantizationSpec,
    UsageError,
    compress_weights,
    plan,
    quantize,
)
from fewbit.modules.quantized import is_quantized
from fewbit.schemes.presets import preset
from fewbit.schemes.scope import Subgraph
from small_models import distance, images, mixed, opt, token_ids


def states(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(token_ids()),
        lambda: [{"input_ids": token_ids(2)} for _ in range(3)],
        lambda: ({"input_ids": token_ids(2)} for _ in range(3)),
        lambda: Dataset([{"input_ids": token_ids(2)}]),
        lambda: [(token_ids(2),)],
    ],
    ids=["loader", "dicts", "generator", "dataset", "tuples"],
)
@pytest.mark.filterwarnings("ignore::fewbit.data.objects.spool.SpoolWarning", "ignore:a generator can be read once")
def test_calibration_inputs_of_every_kind(make):
    quantized = ModelQuantizer("w8a8").quantize_model(opt(), make())
    assert quantized.get_submodule("model.decoder.layers.0.fc1").input_quantizer.scale is not None


@pytest.mark.parametrize("empty", [[], DataLoader(torch.zeros(0, 9, dtype=torch.long))], ids=["list", "loader"])
def test_an_empty_loader_is_an_error(empty):
    with pytest.raises(DataError, match="empty"):
        ModelQuantizer("w8a8").quantize_model(opt(), empty)


def test_static_activations_without_data_are_refused_and_named():
    with pytest.raises(UsageError) as caught:
        ModelQuantizer("w8a8").quantize_model(mixed())
    assert "conv:input" in str(caught.value) and "is_dynamic" in str(caught.value)


def test_a_nan_is_named_with_layer_and_sample():
    inputs = images()
    inputs[3][0, 1, 2, 2] = float("nan")
    with pytest.raises(DataError) as caught:
        ModelQuantizer("w8a8").quantize_model(mixed(), inputs)
    assert "conv:input from sample 3 (list, sample 3) on" in str(caught.value)


def test_nothing_of_the_callers_is_changed():
    model = mixed().train()
    config = preset("w8a8")
    fingerprint, before, mode = config.fingerprint, states(model), [m.training for m in model.modules()]
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    inputs = images()
    kept = [x.clone() for x in inputs]
    ModelQuantizer(config).quantize_model(model, inputs)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept))
    assert [m.training for m in model.modules()] == mode
    assert config.fingerprint == fingerprint
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model._forward_hooks and not any(m._forward_pre_hooks for m in model.modules())


def test_inplace_changes_the_callers_model():
    model = mixed()
    assert ModelQuantizer("w4a16").quantize_model(model, inplace=True) is model
    assert is_quantized(model.first)


def test_a_config_serves_several_models_alike():
    quantizer = ModelQuantizer("w8a8_dynamic")
    first, second = quantizer.quantize_model(mixed()), quantizer.quantize_model(mixed())
    x = images()[0]
    assert torch.equal(first(x), second(x))


def test_padding_does_not_touch_the_statistics():
    ids = token_ids(4, 8)
    mask = torch.ones_like(ids)
    mask[:, 5:] = 0
    other = ids.clone()
    other[:, 5:] = 7
    scales = []
    for padded in (ids, other):
        quantized = ModelQuantizer("w8a8").quantize_model(opt(), [{"input_ids": padded, "attention_mask": mask}])
        layers = (m.input_quantizer for m in quantized.modules() if is_quantized(m))
        scales.append(torch.cat([q.scale for q in layers if q is not None]))
    # Keys of padded tokens are masked, so what real tokens carry is the same; what padded ones carry is not.
    torch.testing.assert_close(scales[0], scales[1], rtol=1e-5, atol=0)


def test_the_record_accounts_for_every_layer():
    quantizer = ModelQuantizer("w8a8_dynamic")
    frozen = quantizer.freeze(quantizer.quantize_model(mixed()))
    lines = quantizer.record.lines
    assert {line["where"] for line in lines if line["what"] == "quantized"} >= {
        "conv.weight",
        "first.weight",
        "second.weight",
    }
    kernels = {line["where"]: line["kernel"] for line in lines if line["what"] == "kernel"}
    assert set(kernels) == {name for name, module in frozen.named_modules() if is_quantized(module)}
    assert copy.deepcopy(frozen)(images()[0]).shape == (4, 10)


def test_quantize_and_compress_weights_are_the_same_engine():
    model, inputs = mixed(), images()
    with torch.no_grad():
        reference = model(inputs[0])
        assert distance(quantize(model, inputs)(inputs[0]), reference) < 0.05
        assert distance(compress_weights(model)(inputs[0]), reference) < 0.02
        assert distance(compress_weights(model, mode="int4_sym", group_size=32)(inputs[0]), reference) < 0.2


def test_ratio_moves_the_sensitive_layers_to_eight_bits():
    model = opt(layers=1)
    narrow = compress_weights(model, mode="int4_sym", group_size=32)
    four = {n: m for n, m in narrow.named_modules() if is_quantized(m) and m.coded["weight"].grid.dtype.bits == 4}
    size = {n: m.weight.numel() for n, m in four.items()}
    for ratio in (0.0, 0.4, 0.8, 1.0):
        mixed_bits = compress_weights(model, mode="int4_sym", group_size=32, ratio=ratio)
        stay = [n for n in four if mixed_bits.get_submodule(n).coded["weight"].grid.dtype.bits == 4]
        assert ratio * sum(size.values()) <= sum(size[n] for n in stay) + 1e-6
        lines = [line for line in mixed_bits.fewbit_record.lines if line["what"] == "format"]
        lost = {line["where"]: line["harm"]["int4_sym"] for line in lines}
        kept = sum(lost[line["where"]] for line in lines if line["format"] == "int4_sym")
        sizes = {where: sum(size[n] for n in where.split(", ")) for where in lost}
        # No other choice of layers that makes as many weights narrow loses less.
        for chosen in product((False, True), repeat=len(lost)):
            mine = [where for where, narrow in zip(lost, chosen) if narrow]
            if sum(sizes[where] for where in mine) >= ratio * sum(size.values()):
                wide = sum(line["harm"]["int8_asym"] for line in lines if line["where"] not in mine)
                best = kept + sum(line["harm"]["int8_asym"] for line in lines if line["format"] == "int8_asym")
                assert best <= sum(lost[where] for where in mine) + wide + 1e-12
    assert len(stay) == len(four)


def test_a_plan_says_what_will_happen_before_data_is_read():
    made = plan(opt(), config=preset("w4a16"), time=False)
    quantized = ModelQuantizer("w4a16").quantize_model(opt())
    layers = {n: m for n, m in quantized.named_modules() if is_quantized(m)}
    assert {w.point.layer for w in made.weights} <= set(layers)
    held = {t.data_ptr(): t.numel() * t.element_size() for t in [*quantized.parameters(), *quantized.buffers()]}
    assert made.bytes_after == pytest.approx(sum(held.values()), rel=0.01)
    assert "calibration data: not needed" in made.text()


def test_a_name_that_matches_nothing_is_refused():
    layer = {"*.fc9": preset("w8a8").global_quant_config}
    config = Config(global_quant_config=preset("w4a16").global_quant_config, layer_quant_config=layer)
    with pytest.raises(UsageError, match="fc9"):
        ModelQuantizer(config).quantize_model(opt())


def test_names_of_layers_without_weights_to_quantize_can_be_excluded_and_not_quantized():
    kept = compress_weights(opt(), ignored_scope=IgnoredScope(names=["lm_head"], types=["LayerNorm"]))
    assert not is_quantized(kept.lm_head) and is_quantized(kept.model.decoder.layers[0].fc1)
    norm = "*.final_layer_norm"
    config = Config(preset("w4a16").global_quant_config, exclude=[norm], layer_quant_config={"*_norm": "float"})
    assert is_quantized(ModelQuantizer(config).quantize_model(opt()).model.decoder.layers[0].fc1)
    config = Config(layer_quant_config={norm: preset("w4a16").global_quant_config})
    with pytest.raises(UsageError, match="nothing to quantize"):
        ModelQuantizer(config).plan(opt())


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_module_that_is_used_twice_answers_to_both_names(name):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.Linear(8, 8)
            self.third = nn.Linear(8, 8)

        def forward(self, x):
            return self.third(self.second(self.first(x)))

    kept = ModelQuantizer(Config(preset("w8a16").global_quant_config, exclude=[name])).quantize_model(Twice().eval())
    assert not is_quantized(kept.first) and kept.second is kept.first and is_quantized(kept.third)
    config = Config(layer_quant_config={name: preset("w8a16").global_quant_config})
    assert is_quantized(ModelQuantizer(config).quantize_model(Twice().eval()).first)


def test_a_subgraph_is_refused_where_there_is_no_graph():
    scope = IgnoredScope(subgraphs=[Subgraph(inputs=["conv"], outputs=["first"])])
    with pytest.raises(UsageError, match="graph"):
        compress_weights(mixed(), ignored_scope=scope)


def test_plan_and_record_name_activations_without_a_weight():
    cache = QuantizationSpec("int8", qscheme="per_token", is_dynamic=True)
    int8 = QuantizationSpec("int8", is_dynamic=True)
    config = Config(QuantizationConfig(output_tensors=int8), kv_cache_quant_config=cache)
    quantizer = ModelQuantizer(config)
    text = quantizer.plan(opt()).text()
    assert "self_attn:key" in text and "fc{1-2}:output" in text and "int8 sym per token dynamic" in text
    quantizer.quantize_model(opt())
    noted = {line["where"] for line in quantizer.record.lines if line["what"] == "activation"}
    assert {"model.decoder.layers.0.self_attn:key", "model.decoder.layers.1.fc2:output"} <= noted


def test_the_smallest_scale_of_a_cache_keeps_its_sign():
    spec = QuantizationSpec("int8", qscheme="per_tensor", is_dynamic=False, full_range=True)
    for least in (0.0, 0.5):
        config = Config(kv_cache_quant_config=spec, min_kv_scale=least)
        quantized = ModelQuantizer(config).quantize_model(opt(), [{"input_ids": token_ids(2)}])
        scales = torch.cat([c.value.quantizer.scale for c in quantized.fewbit_cache.values()])
        assert (scales.abs() >= max(least, 1e-8)).all()
    dynamic = QuantizationSpec("int8", qscheme="per_token", is_dynamic=True)
    with pytest.raises(UsageError, match="min_kv_scale"):
        ModelQuantizer(Config(kv_cache_quant_config=dynamic, min_kv_scale=0.1)).plan(opt())


def test_the_record_says_nothing_of_a_judge_where_nothing_is_judged():
    quantizer = ModelQuantizer(
        specs(weight=QuantizationSpec("int8", algorithm="rtn"), input_tensors=QuantizationSpec("int8"))
    )
    quantizer.quantize_model(mixed(), images(2))
    assert not any(line["what"] == "no-held-out" for line in quantizer.record.lines)
    ModelQuantizer.quantize_model(quantizer := ModelQuantizer("w8a8"), mixed(), images(2))
    assert any(line["what"] == "no-held-out" for line in quantizer.record.lines)


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_a_cache_scheme_reaches_the_cache(dynamic):
    scheme = "per_token" if dynamic else "per_tensor"
    spec = QuantizationSpec("fp8_e4m3", qscheme=scheme, is_dynamic=dynamic)
    config = Config(kv_cache_quant_config=spec)
    model, ids = opt(), token_ids(2)
    quantized = ModelQuantizer(config).quantize_model(model, [{"input_ids": ids}])
    with torch.no_grad():
        reference, coded = (m(ids, use_cache=True) for m in (model, quantized))
    assert 0 < distance(coded.logits, reference.logits) < 0.05
    records = coded.past_key_values.layers[1].values
    assert records.dtype is torch.uint8 and records.shape[-1] == 16 + 4 * dynamic
    assert not hasattr(model, "fewbit_cache") and not model._forward_pre_hooks
    if not dynamic:
        found = quantized.fewbit_cache["1"].value.quantizer.scale
        torch.testing.assert_close(found, reference.past_key_values.layers[1].values.abs().max().reshape(1) / 448)


def test_keys_alone_by_the_name_of_their_projection():
    spec = QuantizationSpec("int8", qscheme="per_token", is_dynamic=True)
    quantized = ModelQuantizer(Config(kv_cache_quant_config={"*k_proj": spec})).quantize_model(opt())
    layer = quantized(token_ids(1), use_cache=True).past_key_values.layers[0]
    assert layer.keys.dtype is torch.uint8 and layer.values.dtype is torch.float32


def test_a_cache_scheme_for_a_model_without_cache_is_refused():
    spec = QuantizationSpec("int8", qscheme="per_token", is_dynamic=True)
    with pytest.raises(UsageError, match="kv_cache_quant_config"):
        ModelQuantizer(Config(kv_cache_quant_config=spec)).quantize_model(mixed())


def test_a_quantized_model_is_not_quantized_again():
    quantizer = ModelQuantizer("w8a8_dynamic")
    quantized = quantizer.quantize_model(mixed())
    for call in (quantizer.quantize_model, quantizer.plan, plan):
        with pytest.raises(UsageError, match="already"):
            call(quantized)


def specs(**slots: object) -> Config:
    return Config(global_quant_config=QuantizationConfig(**slots))


def test_biases_and_outputs_are_quantized_when_asked_for_with_and_without_data():
    int8 = QuantizationSpec("int8", qscheme="per_tensor", is_dynamic=True)
    config = specs(weight=int8, bias=int8, output_tensors=int8)
    for data in (None, images()):
        quantized = ModelQuantizer(config).quantize_model(mixed(), data)
        assert set(quantized.second.coded) == {"weight", "bias"} and set(quantized.first.coded) == {"weight"}
        assert quantized.second.output_quantizer is not None
        assert torch.unique(quantized.second(torch.randn(4, 32))).numel() <= 256
    assert config.global_quant_config.bias is not None  # one layer without a bias does not take it from the others


def test_activations_alone_are_quantized_when_asked_for():
    model = mixed()
    quantized = ModelQuantizer(specs(input_tensors=QuantizationSpec("int4", is_dynamic=True))).quantize_model(model)
    x = images()[0]
    assert not quantized.first.coded and torch.equal(quantized.first.weight, model.first.weight)
    assert 0.01 < distance(quantized(x), model(x)) < 0.5


def test_one_weight_is_not_asked_to_be_two_things():
    def of(bits: int) -> QuantizationConfig:
        return QuantizationConfig(weight=QuantizationSpec(f"int{bits}", qscheme="per_channel"))

    with pytest.raises(UsageError, match="two things"):
        config = Config(layer_quant_config={"*embed_tokens": of(8), "lm_head": of(4)})
        ModelQuantizer(config).quantize_model(opt())
    config = Config(of(4), layer_type_quant_config={"Embedding": of(8)})
    quantized = ModelQuantizer(config).quantize_model(opt())
    assert quantized.lm_head.coded["weight"].grid.dtype.bits == 8  # an entry by type comes before the global one


def test_a_tied_weight_is_named_in_plan_and_record():
    quantizer = ModelQuantizer("w8a16")
    quantizer.quantize_model(opt())
    assert "embed_tokens.weight" in quantizer.plan(opt()).text()
    assert any(line["what"] == "note" and "same tensor" in line["reason"] for line in quantizer.record.lines)


@pytest.mark.parametrize(
    "items",
    [[torch.zeros(0, 3, 4, 4)], []],
    ids=["no samples", "no items"],
)
def test_data_without_a_single_position_is_an_error(items):
    with pytest.raises(DataError):
        ModelQuantizer("w8a8").quantize_model(mixed(), items)


def test_an_attention_mask_that_keeps_nothing_is_an_error():
    item = {"input_ids": token_ids(2), "attention_mask": torch.zeros(2, 9, dtype=torch.long)}
    with pytest.raises(DataError, match="nothing to observe"):
        ModelQuantizer("w8a8").quantize_model(opt(), [item])


def test_a_weight_that_is_not_finite_is_refused_before_anything_changes():
    model = mixed()
    with torch.no_grad():
        model.second.weight[0, 0] = float("inf")
    with pytest.raises(DataError, match="not finite") as caught:
        ModelQuantizer("w4a16").quantize_model(model, inplace=True)
    assert "second.weight" in str(caught.value)
    assert not any(is_quantized(module) for module in model.modules())


def test_a_model_without_weights_can_be_planned_and_not_quantized():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64))
    assert plan(model, preset="w4a16").bytes_before == 16640
    with pytest.raises(UsageError, match="meta"):
        ModelQuantizer("w4a16").quantize_model(model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"advanced_parameters": {"foo": 1}},
        {"model_type": "banana"},
        {"target": "moon"},
        {"preset": "w8a9"},
        {"ignored_scope": ["first"]},
        {"subset_size": 0},
    ],
)
def test_wrong_arguments_are_told_before_the_work(wrong):
    with pytest.raises(UsageError):
        quantize(mixed(), images(), **wrong)


def test_an_axis_that_a_weight_does_not_have_is_refused():
    with pytest.raises(UsageError, match="ch_axis=5"):
        ModelQuantizer(specs(weight=QuantizationSpec("int8", qscheme="per_channel", ch_axis=5))).plan(mixed())


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int2", "uint3"])
def test_every_width_goes_all_the_way(dtype):
    spec = QuantizationSpec(dtype, qscheme="per_channel", ch_axis=0)
    quantizer = ModelQuantizer(specs(weight=spec))
    frozen = quantizer.freeze(quantizer.quantize_model(mixed()))
    bound = {"uint16": 1e-3, "int16": 1e-3}.get(dtype, 1.0)
    assert distance(frozen(images()[0]), mixed()(images()[0])) < bound
