# SPDX-License-Identifier: Apache-2.0
"""Local and arriving errors of layers, against the same sums written out."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import fewbit
from fewbit.engine.comparing import compare
from quantized_models import mlp, numbers, quantize_linears
from tiny_models import transformer


def off(wanted, found):
    return float((found - wanted).double().square().sum() / wanted.double().square().sum())


def by_layer(record):
    return {line["where"]: line for line in record.lines if line["what"] == "layer"}


def items(count=5):
    return list(numbers(count, 1, 40))


@torch.no_grad()
def test_local_and_arriving_errors_of_two_layers():
    model = mlp()
    made = quantize_linears(deepcopy(model))
    x = torch.cat(items())
    inner = model[0](x).relu()
    found = by_layer(compare(model, made, items()))
    wanted = {"0": off(model[0](x), x @ made[0].weight.T + model[0].bias)}
    wanted["2"] = off(model[2](inner), inner @ made[2].weight.T + model[2].bias)
    for name, local in wanted.items():
        assert found[name]["local_error"] == pytest.approx(local, rel=1e-4)
        assert found[name]["share"] == pytest.approx(local / sum(wanted.values()), rel=1e-4)
        assert found[name]["scheme"] == "int4 sym per group of 16" and found[name]["algorithm"] is None
    assert list(found) == sorted(wanted, key=wanted.get, reverse=True)
    assert found["0"]["arriving_error"] == 0
    assert found["2"]["arriving_error"] == pytest.approx(off(inner, made[0](x).relu()), rel=1e-4)


@torch.no_grad()
def test_the_rounding_of_inputs_counts():
    model = mlp()
    made = fewbit.quantize(model, items(), preset="w8a8", fast_bias_correction=False)
    x = torch.cat(items())
    found = by_layer(compare(model, made, items()))["0"]
    scale = float(made[0].input_quantizer.scale)
    zero = float(made[0].input_quantizer.zero_point)
    rounded = ((x / scale).round() + zero).clamp(-128, 127).sub(zero) * scale
    assert found["input_rounding"] == pytest.approx(off(x, rounded), rel=1e-3)
    assert found["algorithm"] == "scale_search" and "input int8" in found["scheme"]
    weights_alone = off(model[0](x), x @ made[0].weight.T + model[0].bias)
    assert found["local_error"] > 1.1 * weights_alone


def test_a_layer_that_was_spoilt_is_found_and_the_others_are_not_blamed():
    model = transformer("llama")
    made = deepcopy(model)
    made.model.layers[1].self_attn.o_proj.weight.data.add_(0.05)
    record = compare(model, made, texts())
    assert list(by_layer(record)) == ["model.layers.1.self_attn.o_proj"]
    assert by_layer(record)["model.layers.1.self_attn.o_proj"]["share"] == 1.0
    stream = {each["layer"]: each["error"] for each in record.facts["layers"]["stream"]}
    assert stream["model.layers.1.self_attn.o_proj"] == 0 < stream["model.layers.1.mlp.gate_proj"] < stream["lm_head"]


def texts(count=3, padding=0):
    draw = torch.Generator().manual_seed(3)
    ids = [torch.randint(4, 40, (2, 12), generator=draw) for _ in range(count)]
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 12 - padding :] = 0
    return [{"input_ids": each, "attention_mask": mask.clone()} for each in ids]


def test_padding_is_left_out():
    model = transformer("llama")
    made = quantize_linears(deepcopy(model))
    padded = texts(padding=5)
    alone = [{"input_ids": item["input_ids"][row : row + 1, : 12 - 5 * row]} for item in padded for row in range(2)]
    one, other = by_layer(compare(model, made, padded)), by_layer(compare(model, made, alone))
    assert one.keys() == other.keys() and len(one) == 15
    for name, line in one.items():
        assert line["local_error"] == pytest.approx(other[name]["local_error"], rel=1e-3)
        assert line["arriving_error"] == pytest.approx(other[name]["arriving_error"], rel=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "opt", "t5", "mixtral", "qwen3_moe", "gpt_oss"])
def test_many_builds(name):
    model = transformer(name)
    made = fewbit.compress_weights(model, mode="int4_sym", group_size=8)
    data = texts(2)
    if name == "t5":
        data = [{**item, "decoder_input_ids": item["input_ids"][:, :7]} for item in data]
    record = compare(model, made, data)
    found = by_layer(record)
    changed = {name for name, module in made.named_modules() if hasattr(module, "coded") and module.coded}
    missed = {line["where"] for line in record.lines if line["what"] == "layer-not-measured"}
    assert changed == found.keys() | missed and len(missed) < len(changed) / 3
    assert all(0 <= line["local_error"] < 0.2 for line in found.values())
    assert all(line["arriving_error"] is None or line["arriving_error"] < 0.8 for line in found.values())
    assert sum(line["share"] for line in found.values()) == pytest.approx(1)


def test_another_dtype_is_no_obstacle():
    model = transformer("llama")
    found = by_layer(compare(model, deepcopy(model).bfloat16(), texts()))
    assert len(found) == 16 and all(1e-7 < line["local_error"] < 1e-3 for line in found.values())


def test_a_layer_of_another_build_is_told_and_the_comparison_goes_on():
    class Wide(nn.Linear):
        def forward(self, x, more):
            raise ValueError("not like this")

    class Through(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight, self.inner.bias)

    class Plain(Through):
        def forward(self, x):
            return self.inner(x)

    model = Plain(nn.Linear(8, 4)).eval()
    other = Through(Wide(8, 4)).eval()
    other.load_state_dict(model.state_dict())
    record = compare(model, other, list(numbers(3, 1, 8)))
    (line,) = [line for line in record.lines if line["what"] == "layer-not-measured"]
    assert line["where"] == "inner" and "TypeError" in line["reason"] and record.facts["kl"]["mean"]["value"] < 1e-12


def test_nothing_is_left_on_the_models():
    model = transformer("llama").train()
    made = quantize_linears(deepcopy(model)).train()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    compare(model, made, texts())
    assert torch.equal(torch.get_rng_state(), before)
    for module in (*model.modules(), *made.modules()):
        assert module.training and not module._forward_hooks and not module._forward_pre_hooks
