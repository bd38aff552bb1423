# SPDX-License-Identifier: Apache-2.0
"""The three strategies of the guide, through its own calls: weight-only, static, dynamic."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from fewbit import (
    Config,
    Dtype,
    ModelQuantizer,
    PerChannelMinMaxObserver,
    PerTensorMinMaxObserver,
    QSchemeType,
    QuantizationConfig,
    QuantizationSpec,
    RoundType,
    ScaleType,
)
from fewbit.modules.quantized import get_weight, is_quantized
from small_models import distance, opt, token_ids


def weight_only() -> Config:
    spec = QuantizationSpec(
        dtype=Dtype.uint4,
        observer_cls=PerChannelMinMaxObserver,
        symmetric=False,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        qscheme=QSchemeType.per_group,
        ch_axis=0,
        is_dynamic=False,
        group_size=32,
    )
    return Config(global_quant_config=QuantizationConfig(weight=spec))


def dynamic() -> Config:
    spec = QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=True,
    )
    return Config(global_quant_config=QuantizationConfig(input_tensors=spec, weight=spec))


def static() -> Config:
    spec = QuantizationSpec(
        dtype=Dtype.fp8_e4m3, qscheme=QSchemeType.per_tensor, observer_cls=PerTensorMinMaxObserver, is_dynamic=False
    )
    return Config(global_quant_config=QuantizationConfig(input_tensors=spec, weight=spec))


@pytest.mark.parametrize(("config", "bound"), [(weight_only(), 0.2), (dynamic(), 0.03), (static(), 0.09)])
def test_the_guides_example_runs(config, bound):
    model = opt()
    loader = DataLoader(token_ids())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantizer = ModelQuantizer(config)
    quantized = quantizer.quantize_model(model, loader)
    frozen = quantizer.freeze(quantized)
    ids = token_ids()
    with torch.no_grad():
        reference, result, fast = (m(ids).logits for m in (model, quantized, frozen))
    assert 0 < distance(result, reference) < bound
    assert distance(fast, result) < 0.02
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(is_quantized(module) for module in model.modules())
    assert is_quantized(frozen.get_submodule("model.decoder.layers.1.fc2"))


def test_weight_only_scales_have_the_layout_runtimes_load():
    quantized = ModelQuantizer(weight_only()).quantize_model(opt())
    weight = get_weight(quantized.get_submodule("model.decoder.layers.0.fc1"), "weight")
    assert weight.shape == (128, 64)
    assert weight.scale.shape == weight.zero_point.shape == (128, 64 // 32)
    assert weight.packed.shape == (128, 32)


def test_weight_only_codes_follow_the_min_max_formula():
    model = opt()
    quantized = ModelQuantizer(weight_only()).quantize_model(model)
    for name in ("model.decoder.layers.0.fc1", "model.decoder.layers.1.self_attn.q_proj"):
        groups = model.get_submodule(name).weight.detach().double().unflatten(-1, (-1, 32))
        low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
        scale = ((high - low) / 15).float().double()
        zero = (-low / scale).round().clamp(0, 15)
        codes = ((groups / scale).round() + zero).clamp(0, 15)
        found = get_weight(quantized.get_submodule(name), "weight").codes().unflatten(-1, (-1, 32))
        # float32 and float64 may settle an exact half differently; anything else is a fault
        differ = (codes != found).sum()
        assert differ <= codes.numel() * 1e-3, name
        assert (codes - found).abs().max() <= 1


def test_dynamic_needs_no_data_and_static_scales_come_from_it():
    assert ModelQuantizer(dynamic()).quantize_model(opt(), None) is not None
    model, loader = opt(), DataLoader(token_ids())
    seen = []
    layer = model.get_submodule("model.decoder.layers.0.fc1")
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].abs().max()))
    with torch.no_grad():
        for ids in loader:
            model(ids)
    handle.remove()
    quantized = ModelQuantizer(static()).quantize_model(model, loader)
    found = quantized.get_submodule("model.decoder.layers.0.fc1").input_quantizer.scale
    torch.testing.assert_close(found, torch.stack(seen).max().reshape(1) / 448)


def test_the_weight_of_a_tied_head_is_quantized_once_and_both_users_see_it():
    quantizer = ModelQuantizer(weight_only())
    quantized = quantizer.quantize_model(opt(tied=True))
    head, table = quantized.lm_head, quantized.model.decoder.embed_tokens
    assert head.weight_packed.data_ptr() == table.weight_packed.data_ptr()
    assert torch.equal(head.weight, table.weight)
    untied = ModelQuantizer(weight_only()).quantize_model(opt(tied=False))
    assert not is_quantized(untied.model.decoder.embed_tokens)
    kept = [line for line in ModelQuantizer(weight_only()).plan(opt(tied=False)).kept if "embed_tokens" in line.name]
    assert "asked for by name or type" in kept[0].reason


def test_an_excluded_user_of_a_tied_weight_keeps_it_in_float():
    config = Config(global_quant_config=weight_only().global_quant_config, exclude=["*embed_tokens"])
    quantizer = ModelQuantizer(config)
    model = opt(tied=True)
    quantized = quantizer.quantize_model(model)
    assert not is_quantized(quantized.lm_head)
    assert torch.equal(quantized.lm_head.weight, model.lm_head.weight)
    assert any(line["what"] == "float" and "tied to" in line["reason"] for line in quantizer.record.lines)
