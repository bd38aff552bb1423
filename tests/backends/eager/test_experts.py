# SPDX-License-Identifier: Apache-2.0
"""Experts kept in one tensor: which axis is contracted is found by watching, in several models and ways to compute."""

import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role
from tiny_models import codes, rounded, shaken, tokens, transformer

# Of each model: the experts' layer, and whether its tensors are [experts, in, out].
MODELS = {
    "mixtral": ("model.layers.0.mlp.experts", False),
    "qwen3_moe": ("model.layers.0.mlp.experts", False),
    "gpt_oss": ("model.layers.0.mlp.experts", True),
    "llama4": ("model.layers.0.feed_forward.experts", True),
}
WAYS = [(name, way) for name in MODELS for way in ("eager", "grouped_mm", "batched_mm") if name != "llama4"]


def experts_of(view):
    return {p.tensor: p for p in view.points() if p.op.name == "experts"}


@pytest.mark.parametrize(("name", "way"), [*WAYS, ("llama4", "its own")])
def test_layout_and_forward(name, way):
    model = transformer(name)
    if name != "llama4":
        model.set_experts_implementation(way)
    layer, turned = MODELS[name]
    module = model.get_submodule(layer)
    view = EagerView(model)
    found = experts_of(view)
    inner = module.down_proj.shape[1 if turned else 2]
    assert found["gate_up_proj"].shape == (4, 2 * inner, 16) and found["gate_up_proj"].stack == 1
    assert found["down_proj"].shape == (4, 16, inner)
    own = module.down_proj.detach()
    assert torch.equal(view.read(found["down_proj"]), own.mT if turned else own)
    (input_point,) = (p for p in view.points() if p.name == f"{layer}:input")
    assert input_point.feeds == ("gate_up_proj",)

    expected = transformer(name)  # the same with rounded weights, by hand
    if name != "llama4":
        expected.set_experts_implementation(way)
    for tensor in ("gate_up_proj", "down_proj"):
        parameter = getattr(expected.get_submodule(layer), tensor)
        parameter.data = rounded(parameter, out=2 if turned else 1, stack=(0,))
        view.quantize(found[tensor], codes(view.read(found[tensor]), stack=1))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()).logits, expected(tokens()).logits)


def test_biases_of_experts():
    view = EagerView(transformer("gpt_oss"))
    bias = experts_of(view)["gate_up_proj_bias"]
    assert bias.role is Role.bias and bias.shape == (4, 48) and bias.stack == 1
    view.quantize(bias, codes(view.read(bias), stack=1))
    with torch.no_grad():
        view.native()(tokens())


def test_routers_stay_in_float_and_are_named():
    view = EagerView(transformer("mixtral"))
    assert [layer for layer, _ in view.skipped()] == ["model.layers.0.mlp.gate"]


class Experts(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 5, 6) if way == "linear" else torch.randn(3, 6, 5))
        self.way = way

    def forward(self, x):
        if self.way == "linear":
            return sum(nn.functional.linear(x, w) for w in self.first)
        if self.way == "einsum":
            return torch.einsum("bi,eio->beo", x, self.first).sum(1)
        if self.way == "sum":
            return (x[:, None, :, None] * self.first).sum((1, 2))
        raise RuntimeError("no way")


@pytest.mark.parametrize("way", ["linear", "einsum"])
def test_a_sample_explains_what_the_text_does_not(way):
    view = EagerView(shaken(nn.Sequential(Experts(way))))
    assert not experts_of(view)
    ((layer, reason),) = view.skipped()
    assert layer == "0" and "view.probe" in reason
    view.probe(((torch.randn(2, 6),), {}))
    assert experts_of(view)["first"].shape == (3, 5, 6) and view.skipped() == []
    assert experts_of(view.copy())["first"].shape == (3, 5, 6), "a copy knows it too"


def test_a_use_that_is_no_matrix_product_is_a_reason():
    view = EagerView(shaken(nn.Sequential(Experts("sum"))))
    view.probe(((torch.randn(2, 6),), {}))
    ((_, reason),) = view.skipped()
    assert "never multiplied" in reason and not experts_of(view)


def test_structure_and_probing_leave_the_parameters_as_they_were():
    model = transformer("gpt_oss")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    view = EagerView(model)
    view.probe(((tokens(),), {}))
    view.structure(((tokens(),), {}))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_experts_that_are_codes_are_known_without_a_run():
    model = shaken(nn.Sequential(Experts("linear")))
    view = EagerView(model)
    view.probe(((torch.randn(2, 6),), {}))
    point = experts_of(view)["first"]
    view.quantize(point, codes(view.read(point), stack=1))
    again = experts_of(EagerView(model))["first"]
    assert (again.shape, again.stack) == (point.shape, point.stack)
