# SPDX-License-Identifier: Apache-2.0
"""Tied weights: one tensor, quantized once, seen by every user. Defect 10 of the guide: a tied head changed the
embedding behind the caller's back."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role
from tiny_models import codes, rounded, tokens, transformer


def point(view, name):
    return next(p for p in view.points() if p.name == name)


@pytest.mark.parametrize("name", ["model.decoder.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_head_and_embedding_become_the_same_codes(name):
    model = transformer("opt")
    original = EagerView(model)
    assert point(original, name).users == ("model.decoder.embed_tokens.weight", "lm_head.weight")
    table = rounded(model.lm_head.weight)
    view = original.copy()
    view.quantize(point(view, name), codes(view.read(point(view, name))))
    made = view.native()
    embed = made.model.decoder.embed_tokens
    assert made.lm_head.weight_packed is embed.weight_packed and made.lm_head.weight_scale is embed.weight_scale
    torch.testing.assert_close(embed(tokens()), F.embedding(tokens(), table))
    torch.testing.assert_close(made.lm_head.weight, table)
    # The same model with the rounded table in both places, by hand.
    expected = transformer("opt")
    expected.lm_head.weight.data = table
    with torch.no_grad():
        torch.testing.assert_close(made(tokens()).logits, expected(tokens()).logits)
    assert torch.equal(model.lm_head.weight, model.model.decoder.embed_tokens.weight), "the caller's are floats"
    assert isinstance(model.lm_head.weight, nn.Parameter)


def test_shared_codes_are_saved_once():
    view = EagerView(transformer("opt", vocab_size=4000))
    head = point(view, "lm_head.weight")
    view.quantize(head, codes(view.read(head)))
    file = io.BytesIO()
    torch.save({k: v for k, v in view.native().state_dict().items() if "packed" in k}, file)
    assert file.tell() < 1.2 * 4000 * 16


def test_points_keep_their_users_when_they_are_codes():
    view = EagerView(transformer("opt"))
    before = point(view, "lm_head.weight").users
    view.quantize(point(view, "lm_head.weight"), codes(view.read(point(view, "lm_head.weight"))))
    assert point(view, "lm_head.weight").users == before


class Both(nn.Module):
    """An autoencoder whose decoder is its encoder transposed, in the same memory."""

    def __init__(self):
        super().__init__()
        self.down = nn.Linear(6, 4, bias=False)
        self.up = nn.Linear(4, 6, bias=False)
        self.up.weight = nn.Parameter(self.down.weight.detach().T)

    def forward(self, x):
        return self.up(self.down(x))


@pytest.mark.parametrize("first", ["down", "up"])
def test_a_transposed_tie(first):
    torch.manual_seed(0)
    model = Both()
    view = EagerView(model)
    tied = point(view, f"{first}.weight")
    assert tied.users == ("down.weight", "up.weight")
    weight = rounded(getattr(model, first).weight)
    view.quantize(tied, codes(view.read(tied)))
    assert model.up.weight_packed is model.down.weight_packed
    x = torch.randn(3, 6)
    down = weight if first == "down" else weight.T
    torch.testing.assert_close(model(x), x @ down.T @ down)
    for name in ("down", "up"):
        torch.testing.assert_close(view.read(point(view, f"{name}.weight")), down if name == "down" else down.T)


def test_a_tie_between_two_layouts():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = nn.ModuleDict({"linear": nn.Linear(6, 4, bias=False), "other": conv1d(6, 4)})
    model["other"].weight = model["linear"].weight  # [4, 6]: out and in to one, in and out to the other
    view = EagerView(model)
    assert point(view, "linear.weight").shape == (4, 6) and point(view, "other.weight").shape == (6, 4)
    by_other = rounded(model["linear"].weight, out=1)
    view.quantize(point(view, "other.weight"), codes(view.read(point(view, "other.weight"))))
    torch.testing.assert_close(model["linear"].weight, by_other)
    torch.testing.assert_close(view.read(point(view, "other.weight")), by_other.T)


def test_writing_writes_for_all_and_keeps_the_tie():
    model = Both()
    view = EagerView(model)
    view.write(point(view, "down.weight"), torch.arange(24.0).reshape(4, 6))
    assert torch.equal(model.up.weight, torch.arange(24.0).reshape(4, 6).T)
    assert point(view, "up.weight").users == ("down.weight", "up.weight")
    view.quantize(point(view, "up.weight"), codes(view.read(point(view, "up.weight"))))
    view.write(point(view, "up.weight"), torch.ones(6, 4))
    assert torch.equal(model.down.weight, torch.ones(4, 6)) and isinstance(model.down.weight, nn.Parameter)


def test_equal_copies_are_not_ties():
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    model[1].load_state_dict(model[0].state_dict())
    view = EagerView(model)
    assert point(view, "0.weight").users == ("0.weight",)
    before = model[1].weight.detach().clone()
    view.quantize(point(view, "0.weight"), codes(view.read(point(view, "0.weight"))))
    assert torch.equal(model[1].weight, before)


def test_two_halves_of_one_memory_are_not_a_tie():
    memory = torch.randn(8, 4)
    model = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    model[0].weight, model[1].weight = nn.Parameter(memory[:4]), nn.Parameter(memory[4:])
    assert [len(p.users) for p in EagerView(model).points(lambda p: p.role is Role.weight)] == [1, 1]
