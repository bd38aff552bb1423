# SPDX-License-Identifier: Apache-2.0
"""Zeros hold through gradients, weights and what an optimizer remembers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fewbit.errors import UsageError
from fewbit.tuning.masks import Masks
from fewbit.tuning.training_quantized import learn_quantized, settle_quantized
from quantized_models import mlp, numbers, quantize_linears


def pruned_mlp() -> nn.Sequential:
    model = mlp()
    for layer in (model[0], model[2]):
        pairs = layer.weight.data.abs().reshape(-1, 4).argsort(1)[:, :2]
        layer.weight.data.view(-1, 4).scatter_(1, pairs, 0.0)
    return model


_OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
}


def _steps(model: nn.Module, optimizer, masks: Masks, steps: int, clip: float | None = None) -> list[float]:
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        model(numbers(16, 40) + step).square().mean().backward()
        masks.apply_gradients()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        masks.apply_weights(optimizer)
    return norms


@pytest.mark.parametrize("kind", _OPTIMIZERS)
def test_zeros_hold_in_weights_gradients_and_state(kind):
    model = pruned_mlp()
    zeros = {name: p.detach() == 0 for name, p in model.named_parameters() if p.ndim == 2}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = _OPTIMIZERS[kind](model.parameters())
    masks = Masks.of(model)
    assert set(masks) == set(zeros) and len(masks) == 2
    _steps(model, optimizer, masks, 5)
    for name, parameter in model.named_parameters():
        if name in zeros:
            assert bool((parameter[zeros[name]] == 0).all()) and bool((parameter[~zeros[name]] != 0).all())
            state = [v for v in optimizer.state[parameter].values() if v.shape == parameter.shape]
            assert state and all(bool((v[zeros[name]] == 0).all()) for v in state)
        assert not torch.equal(parameter, start[name])


def test_stale_momentum_is_taken_out():
    """An optimizer that learned before the pruning would move pruned weights again."""
    model = mlp()
    optimizer = _OPTIMIZERS["adamw"](model.parameters())
    _steps(model, optimizer, Masks({}), 3)
    model[0].weight.data[:, ::2] = 0
    masks = Masks.of(model)
    _steps(model, optimizer, masks, 1)
    assert bool((model[0].weight[:, ::2] == 0).all())
    assert bool((optimizer.state[model[0].weight]["exp_avg"][:, ::2] == 0).all())


def test_the_norm_counts_what_is_learned_only():
    model, dense = pruned_mlp(), pruned_mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    (norm,) = _steps(model, optimizer, Masks.of(model), 1, clip=1e9)
    dense(numbers(16, 40)).square().mean().backward()
    squares = [float((p.grad[p != 0] if p.ndim == 2 else p.grad).square().sum()) for p in dense.parameters()]
    assert norm == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    assert norm < 0.99 * float(torch.stack([p.grad.norm() for p in dense.parameters()]).norm())


def test_infinite_gradients_of_pruned_weights_do_not_count():
    model = pruned_mlp()
    masks, weight = Masks.of(model), model[0].weight
    weight.grad = torch.where(weight == 0, torch.inf, 1.0)
    masks.apply_gradients()
    assert bool(torch.isfinite(weight.grad).all())


def test_new_matrices_and_vectors_are_not_pruned():
    model = mlp()
    model[0].bias.data.zero_()
    model[2].weight.data.zero_()
    assert len(Masks.of(model)) == 0


def test_masks_may_be_given_and_all_faults_are_told_at_once():
    model = mlp()
    kept = torch.rand(24, 40, generator=torch.Generator().manual_seed(0)) > 0.5
    masks = Masks.of(model, {"0.weight": kept})
    masks.apply_weights()
    assert torch.equal(model[0].weight != 0, kept)
    with pytest.raises(UsageError, match=r"(?s)0\.wieght.*2\.weight: a mask of shape \[3\]"):
        Masks.of(model, {"0.wieght": kept, "2.weight": kept[0, :3]})


def test_a_checkpoint_keeps_masks_though_a_weight_passes_through_zero():
    model = pruned_mlp()
    masks = Masks.of(model)
    twin = copy.deepcopy(model)
    place = (model[0].weight != 0).nonzero()[0].tolist()
    twin[0].weight.data[tuple(place)] = 0
    other = Masks.of(twin)
    other.load_state_dict(masks.state_dict(), twin)
    assert all(torch.equal(a, b) for a, b in zip(masks.state_dict().values(), other.state_dict().values()))
    twin[0].weight.grad = torch.ones_like(twin[0].weight)
    other.apply_gradients()
    assert twin[0].weight.grad[tuple(place)] == 1


@pytest.mark.parametrize("learn_scales", [False, True])
def test_a_pruned_model_stays_pruned_in_its_codes(learn_scales):
    original = pruned_mlp()
    model = quantize_linears(copy.deepcopy(original))
    learn_quantized(model, learn_scales=learn_scales, original=original)
    masks = Masks.of(model)
    assert set(masks) == {"0.weight", "2.weight"}
    _steps(model, _OPTIMIZERS["adamw"](model.parameters()), masks, 5)
    settle_quantized(model)
    assert bool((model[0].weight[original[0].weight == 0] == 0).all())


def test_zero_codes_are_not_taken_for_pruned_weights():
    model = learn_quantized(quantize_linears(mlp()))
    assert float((model[0].weight == 0).float().mean()) > 0.02
    assert len(Masks.of(model)) == 0


def test_the_row_for_padding_is_not_pruned():
    table = torch.nn.Sequential(torch.nn.Embedding(16, 8, padding_idx=0))
    assert len(Masks.of(table)) == 0
    table[0].weight.data[3] = 0
    assert set(Masks.of(table)) == {"0.weight"}
