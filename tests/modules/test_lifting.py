# SPDX-License-Identifier: Apache-2.0
"""An exported program as modules again."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from fewbit.data.program import open_program
from fewbit.modules.lifting import lift
from small_models import images, mixed


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    program = torch.export.export(mixed(), (images()[0],), dynamic_shapes={"x": {0: Dim("batch", max=64)}})
    torch.export.save(program, path)
    return path


def test_a_program_becomes_layers_that_compute_the_same(saved):
    module = lift(open_program(saved)).eval()
    x = images()[1]
    assert type(module.conv) is nn.Conv2d and type(module.first) is nn.Linear and module.first.bias is None
    assert dict(module.named_parameters()).keys() == dict(mixed().named_parameters()).keys()
    assert torch.equal(module(x), mixed()(x)) and torch.equal(module(x[:1]), mixed()(x[:1]))


class Varied(nn.Module):
    """What else there is: strides, groups, padding by name, an embedding with a padding index, ties, a second call."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.conv = nn.Conv1d(8, 8, 3, stride=2, padding=1, dilation=2, groups=4, bias=False)
        self.same = nn.Conv1d(8, 8, 3, padding="same")
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids):
        x = self.same(self.conv(self.embed(ids).transpose(1, 2))).transpose(1, 2)
        x = nn.functional.linear(self.twice(self.twice(self.norm(x))), self.scale)
        return self.head(x), nn.functional.linear(x, self.twice.weight * 2)


def test_every_form_of_a_layer(tmp_path):
    torch.manual_seed(0)
    model, ids = Varied().eval(), torch.tensor([[1, 2, 3, 0, 5, 6]])
    torch.export.save(torch.export.export(model, (ids,)), tmp_path / "v.pt2")
    module = lift(open_program(tmp_path / "v.pt2")).eval()
    for mine, theirs in zip(module(ids), model(ids), strict=True):
        assert torch.equal(mine, theirs)
    kinds = {
        name: type(layer) for name, layer in module.named_modules() if type(layer).__module__.startswith("torch.nn")
    }
    assert kinds["embed"] is nn.Embedding and kinds["conv"] is nn.Conv1d and kinds["same"] is nn.Conv1d
    assert kinds["twice"] is nn.Linear and kinds["scale_linear"] is nn.Linear
    calls = [node.target for node in module.graph.nodes if node.op == "call_module"]
    assert calls.count("twice") == 2
    tied = [layer for layer in module.modules() if isinstance(layer, nn.Linear) and layer.weight is module.embed.weight]
    assert len(tied) == 1


class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(self.layer(x), self.direction)


def test_a_product_with_a_vector_stays_one(tmp_path):
    torch.manual_seed(0)
    model, x = Vector().eval(), torch.randn(3, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "v.pt2")
    module = lift(open_program(tmp_path / "v.pt2")).eval()
    assert torch.equal(module(x), model(x)) and type(module.layer) is nn.Linear
    assert {name for name, _ in module.named_parameters()} == {"direction", "layer.weight", "layer.bias"}
