# SPDX-License-Identifier: Apache-2.0
"""Weights that are better left alone: too few to save anything, or with codes that would lose what they answer."""

import pytest
import torch
from torch import nn

import fewbit
from fewbit.engine.planning import make_plan
from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.schemes.modes import compression_config


def lines(model, what):
    return [line for line in model.fewbit_record.lines if line["what"] == what]


def test_a_trifle_stays_in_float_unless_it_is_named():
    model = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 512), nn.Linear(512, 1)).eval()
    made = fewbit.compress_weights(model, mode="int8_sym")
    assert [line["where"] for line in lines(made, "float")] == ["2.weight"]
    assert "not worth the risk" in lines(made, "float")[0]["reason"]
    assert torch.equal(made[2].weight, model[2].weight)
    config = compression_config("int8_sym")
    named = config.with_layers({"2": config.global_quant_config})
    assert [w.point.name for w in make_plan(view_of(model), named).weights] == ["0.weight", "1.weight", "2.weight"]


def test_a_small_weight_of_a_small_model_is_no_trifle():
    made = fewbit.compress_weights(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)).eval(), mode="int8_sym")
    assert len(lines(made, "quantized")) == 2 and not lines(made, "float")


def test_codes_that_lose_what_a_layer_answers_are_not_taken():
    """The inputs of the few large weights are silent: what the small ones answer is lost to the large ones' scale."""
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Linear(32, 32)).eval()
    with torch.no_grad():
        model[0].weight.mul_(1e-4)
        model[0].weight[:, :8] = 20.0
    draw = torch.Generator().manual_seed(0)
    items = [torch.cat([torch.zeros(8, 8), torch.randn(8, 56, generator=draw)], 1) for _ in range(10)]
    made = fewbit.compress_weights(model, mode="int8_sym", dataset=items)
    assert "more than half" in lines(made, "float")[0]["reason"]
    assert [line["where"] for line in lines(made, "quantized")] == ["1.weight"]
    assert torch.equal(made[0](items[0]), model[0](items[0]))
    facts, packed = made.fewbit_record.facts, 32 * 32 + 32 * 4
    assert facts["bytes_before"] - facts["bytes_after"] == 32 * 32 * 4 - packed
    with pytest.raises(UsageError, match="nothing was quantized: every layer stayed in float") as caught:
        fewbit.compress_weights(model[:1], mode="int8_sym", dataset=items)
    assert "more than half" in caught.value.where and "0.weight" in caught.value.where
