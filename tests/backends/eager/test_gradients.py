# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.engine.run import view_of
from fewbit.errors import DataError
from fewbit.model.points import Role
from tiny_models import ResNet, transformer

DRAW = torch.Generator().manual_seed(0)
IDS = torch.randint(4, 40, (2, 6), generator=DRAW)


def ask(model, items, only=None):
    view, found = view_of(model), {}
    points = [p for p in view.points() if p.role is Role.weight and (only is None or p.name == only)]

    def take(point, gradient):
        found.setdefault(point.name, []).append(gradient.clone())

    def weigh(index, answers):
        return [torch.full_like(answers[0], index + 1.0), *([None] * (len(answers) - 1))]

    view.gradients(points, items, weigh, take)
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_gradients_are_those_of_the_weighed_answers(name):
    model = transformer(name)
    view = view_of(model)
    item = ((), {"input_ids": IDS})
    view.probe(item)
    found = ask(model, [item, item])
    wanted = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    grads = torch.autograd.grad(model(IDS).logits.sum(), list(wanted.values()), allow_unused=True)
    for name, wished in zip(wanted, grads):
        if name not in found:
            continue
        for index, mine in enumerate(found[name]):
            turned = wished.T if name.startswith("transformer.h.") else wished  # GPT-2 keeps its weights turned
            torch.testing.assert_close(mine, turned * (index + 1), rtol=1e-4, atol=1e-5)
    assert len(found) > 5 and all(len(each) == 2 for each in found.values())


def test_a_convolution_is_handed_out_in_our_layout_and_nothing_of_the_callers_changes():
    model = ResNet().train()
    model.conv1.weight.requires_grad_(False)
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = ask(model, [((torch.randn(2, 3, 8, 8, generator=DRAW),), {})])
    assert found["conv1.weight"][0].shape == model.conv1.weight.shape
    assert model.training and not model.conv1.weight.requires_grad and model.conv1.weight.grad is None
    assert torch.equal(model.fc.weight.grad, torch.ones_like(model.fc.weight))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).round().detach()


def test_a_model_without_gradients_is_told_by_its_code():
    with pytest.raises(DataError) as caught:
        ask(Cut(), [((torch.ones(1, 4),), {})])
    assert caught.value.code == "no-gradients"
