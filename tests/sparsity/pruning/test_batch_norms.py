# SPDX-License-Identifier: Apache-2.0
"""Batch norms follow what pruning did to their inputs, where answers come nearer by it, and nothing else changes."""

import copy

import pytest
import torch
from torch import nn

from fewbit.sparsity.job import Job
from fewbit.sparsity.pruning import batch_norms
from fewbit.sparsity.pruning.batch_norms import correct_norms
from fewbit.sparsity.stages import prune


def network() -> nn.Module:
    """Norms whose memory is that of the inputs below."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 8), nn.BatchNorm1d(8),
    )  # fmt: skip
    for _ in range(60):
        model(samples(32))
    return model.eval()


def samples(count: int, seed: int | None = None) -> torch.Tensor:
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 12, 12, generator=draw) + 0.3


def pruned(model: nn.Module) -> nn.Module:
    made = copy.deepcopy(model)
    for layer in made.modules():
        if isinstance(layer, nn.Conv2d) and layer.in_channels > 3:
            weight = layer.weight.data
            weight[weight.abs() <= weight.abs().flatten().kthvalue(int(0.8 * weight.numel())).values] = 0
    return made


def off(model: nn.Module, dense: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x) - dense(x)).square().sum() / dense(x).square().sum())


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
def test_answers_come_nearer_however_the_samples_come(batch):
    dense = network()
    model, before = pruned(dense), copy.deepcopy(dense.state_dict())
    x, unseen = samples(192, 1), samples(64, 2)
    first = off(model, dense, unseen)
    found = correct_norms(model, dense, lambda: [((part,), {}) for part in x.split(batch)])
    if batch == 64:  # three items: none to keep aside
        assert found is None and off(model, dense, unseen) == first
        return
    assert found["kept"] and found["error"] < found["error_uncorrected"] and found["norms"] == 4
    assert off(model, dense, unseen) < 0.7 * first
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())
    assert not model.training and not any(each.training for each in model.modules())
    tracked = [each.num_batches_tracked for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert tracked == [each.num_batches_tracked for each in dense.modules() if isinstance(each, nn.BatchNorm2d)]


def test_what_does_not_help_is_taken_back(monkeypatch):
    monkeypatch.setattr(batch_norms, "_followed", lambda memory, before, now: (memory[0] + 1, 9 * memory[1]))
    dense = network()
    model = pruned(dense)
    before = copy.deepcopy(model.state_dict())
    found = correct_norms(model, dense, lambda: [((part,), {}) for part in samples(64, 1).split(4)])
    assert not found["kept"] and found["error"] > found["error_uncorrected"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_pictures_of_several_sizes_and_named_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, *, pixels, scale):
            return {"answer": self.inner(pixels * scale)}

    dense = Named().eval()
    model = copy.deepcopy(dense)
    model.inner = pruned(dense.inner)
    sizes = [12, 12, 16, 12, 16, 16] * 4
    items = [((), {"pixels": torch.randn(2, 3, size, size) + 0.3, "scale": 1.0}) for size in sizes]
    assert correct_norms(model, dense, lambda: items)["kept"]


def test_models_without_batch_norms_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    assert correct_norms(model, copy.deepcopy(model), lambda: [((torch.randn(2, 4),), {})] * 16) is None


@pytest.mark.parametrize("correct", [False, True])
def test_the_stage_does_it_if_it_corrects_at_all(correct):
    dense = network()
    data = list(samples(128, 1).split(8))
    job = Job("one-shot", None, None, dense=dense, data=data, calibration=data, samples=128)
    prune.run(dense, prune.Settings(sparsity=0.8, algorithm="magnitude", correct=correct), job)
    facts = job.record.facts["prune"]
    assert ("batch_norms" in facts) == correct
    assert not correct or facts["batch_norms"]["kept"]
