# SPDX-License-Identifier: Apache-2.0
"""The user's model stays as it is: its modes, and its weights when the result is trained."""

import pytest
import torch
from torch import nn

from fewbit.sparsity.opening import apart, own_copy
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.verb import sparsify

pytest.importorskip("accelerate")

PRUNE = {"prune": {"sparsity": 0.5}}


class Frozen(nn.Module):
    """A classifier whose batch norm is frozen while the rest is in training mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Dropout(0.1))
        self.head = nn.Linear(32, 3)
        self.train()
        self.body[1].eval()

    def forward(self, x):
        """Logits."""
        return self.head(self.body(x))


def batches(count=6):
    drawn = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(8, 16, generator=drawn), "labels": torch.arange(8) % 3}
        for _ in range(count)
    ]  # fmt: skip


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize(
    "call",
    [
        {"recipe": Recipe.from_dict({"stages": [PRUNE]})},
        {"recipe": Recipe.from_dict({"stages": [PRUNE, {"train": {"max_steps": 1}}]}), "mode": "training-aware"},
        {"recipe": Recipe.from_dict({"stages": [PRUNE]}), "output": "out"},
    ],
    ids=["one-shot", "trained", "written"],
)
def test_every_mode_is_as_it_was(call, tmp_path):
    model = Frozen()
    before = modes(model)
    where = {"output": tmp_path / "out"} if "output" in call else {}
    sparsify(model, batches(), use_case="image_classification", **call | where)
    assert modes(model) == before


@pytest.mark.parametrize("call", [{"recipe": Recipe.from_dict({"stages": [PRUNE]})}, {"optim_level": 0}])
def test_training_the_result_leaves_the_model(call):
    model = Frozen().eval()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = sparsify(model, batches(), use_case="image_classification", **call)
    optimizer = torch.optim.SGD(result.train().parameters(), lr=1.0)
    result(batches(1)[0]["x"]).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    theirs = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not theirs & {tensor.data_ptr() for tensor in result.state_dict().values()}


def test_what_shares_memory_within_the_model_goes_on_sharing_it():
    given = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    given[1].weight = given[0].weight  # one object
    given[2].weight = nn.Parameter(given[0].weight.data[:2])  # a part of it
    made = apart(own_copy(given), given)
    assert made[0].weight is made[1].weight
    with torch.no_grad():
        made[0].weight.zero_()
    assert not made[2].weight.any() and given[0].weight.all() and given[2].weight.all()
