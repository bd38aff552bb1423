# SPDX-License-Identifier: Apache-2.0
"""A run that rotates first: nearer answers, a record of it, and refusals before anything is done."""

import copy

import pytest
import torch
from onnx import helper
from torch import nn

import fewbit
import onnx_graphs
from fewbit.engine.nearness import nearness
from fewbit.errors import UsageError
from fewbit.schemes.config import Config
from planted_outliers import planted
from tiny_models import shaken, transformer

INT8 = {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True}
INT4_TOKEN = {"dtype": "int4", "qscheme": "per_token", "symmetric": True, "is_dynamic": True}
W8A4 = Config.from_dict({"global_quant_config": {"weight": INT8, "input_tensors": INT4_TOKEN}})


def texts(count=8, length=16):
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(4, 40, (1, length), generator=draw)} for _ in range(count)]


def quantized(model, how, prepare=("rotation",), data=None):
    return fewbit.quantize(model, data or texts(), preset=how, advanced_parameters={"prepare": list(prepare)})


@torch.no_grad()
def error(model, other, data=None):
    answers = ([[each(**item).logits] for item in data or texts()] for each in (model, other))
    return nearness(*answers)["error"]


def lines(model, what):
    return [line for line in model.fewbit_record.lines if line["what"] == what]


def test_four_bit_activations_are_nearer_to_float():
    model = planted()
    before = copy.deepcopy(model.state_dict())
    plain, rotated = quantized(model, W8A4, ()), quantized(model, W8A4)
    assert error(model, rotated) < 0.25 * error(model, plain)
    assert not lines(plain, "rotated")
    (line,) = lines(rotated, "rotated")
    assert (line["algorithm"], line["width"], line["block"], line["heads"]) == ("rotation", 64, 64, {"16": 16})
    assert line["error"] < 0.25 * line["error_unrotated"] and line["items"] == 4
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    again = quantized(model, W8A4)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in rotated.state_dict().items())


def test_groups_of_mx_are_turned_each_for_itself():
    model = planted("qwen3")
    plain, rotated = quantized(model, "mxfp4", ()), quantized(model, "mxfp4")
    (line,) = lines(rotated, "rotated")
    assert line["block"] == 32 and line["heads"] == {"16": 16}
    assert error(model, rotated) < 0.5 * error(model, plain)
    (untied,) = lines(rotated, "untied")
    assert untied["where"] == "lm_head.weight, model.embed_tokens.weight"


def test_small_groups_are_left_alone():
    model = planted()
    asked = quantized(model, "nvfp4")
    assert lines(asked, "not-rotated") and not lines(asked, "rotated")
    assert torch.equal(asked.model.norm.weight, model.model.norm.weight)


def test_ranges_found_beforehand_are_those_of_the_turned_model():
    model = planted()
    rotated = quantized(model, "w8a8")
    assert lines(rotated, "rotated") and error(model, rotated) < 0.1 * error(model, quantized(model, "w8a8", ()))


def test_before_a_walk():
    model, how = planted(), {"mode": "int4_sym", "group_size": 32, "dataset": texts(10), "algorithm": "gptq"}
    plain = fewbit.compress_weights(model, **how)
    rotated = fewbit.compress_weights(model, **how, advanced_parameters={"prepare": ["rotation"]})
    assert lines(rotated, "rotated") and error(model, rotated) < error(model, plain)


def test_a_model_that_would_lose_by_it_is_left_alone():
    """Weights that lie on the grid already lose nothing, and turned they would."""
    model = transformer("llama", hidden_size=64, intermediate_size=64, head_dim=16)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_((module.weight * 20).round().clamp(-7, 7) / 16)
                module.weight[:, ::32] = 7.5 / 16
    how = Config.from_dict({"global_quant_config": {"weight": {**INT8, "dtype": "int4"}}})
    asked = quantized(model, how)
    (line,) = lines(asked, "not-rotated")
    assert line["error"] > line["error_unrotated"]
    assert torch.equal(asked.model.norm.weight, model.model.norm.weight)


def test_what_is_untied_is_read_back_untied(tmp_path):
    model = planted("qwen3")
    options = {"advanced_parameters": {"prepare": ["rotation"]}}
    fewbit.quantize(model, texts(), preset="w8a8_dynamic", output=tmp_path / "out", **options)
    back, wanted = fewbit.load(tmp_path / "out"), quantized(model, "w8a8_dynamic")
    assert error(wanted, back) < 1e-3 and error(model, back) < 0.02


class Odd(nn.Module):
    """What is added to the state goes through a ReLU first."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.last = nn.Embedding(40, 16), nn.RMSNorm(16), nn.RMSNorm(16)
        self.layer, self.head = nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.head(self.last(x + self.layer(self.norm(x)).relu()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformer("bert"), "cannot be rotated: 1. .*LayerNorm"),
        (lambda: shaken(Odd()), "turned, the model gives other answers"),
    ],
    ids=["norms behind layers", "more than a sum"],
)
def test_refused(make, message):
    model = make()
    with pytest.raises(UsageError, match=message):
        quantized(model, "w8a8_dynamic")


def test_refused_without_data_or_for_a_graph():
    asked = {"advanced_parameters": {"prepare": ["rotation"]}}
    with pytest.raises(UsageError, match="rotation without calibration data"):
        fewbit.quantize(planted(), preset=W8A4, **asked)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx_graphs.model([product], {"x": [1, 4]}, {"y": [1, 4]}, {"w": onnx_graphs.random(4, 4)})
    with pytest.raises(UsageError, match="rotation for a graph"):
        fewbit.quantize(graph, [{"x": onnx_graphs.random(1, 4)}], preset="w8a8_dynamic", **asked)
