# SPDX-License-Identifier: Apache-2.0
"""Zeros that were pruned are told from zeros that small weights were rounded to, and stay when the codes learn."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import fewbit
from fewbit.modules.coded import Quantized
from fewbit.tuning.finetune import finetune
from fewbit.tuning.pruned_codes import pruned_codes
from quantized_models import GRIDS, quantize_linears
from tiny_models import transformer

DRAWS = {
    "normal": lambda draw, shape: torch.randn(shape, generator=draw),
    "uniform": lambda draw, shape: torch.rand(shape, generator=draw) - 0.5,
    "laplace": lambda draw, shape: torch.randn(shape, generator=draw) * torch.randn(shape, generator=draw),
}


HEAVY = {
    "student": lambda draw, shape: (
        torch.randn(shape, generator=draw) / torch.randn((3, *shape), generator=draw).norm(dim=0)
    ),
    "an outlier": lambda draw, shape: torch.randn(shape, generator=draw).index_put(
        (torch.tensor(0), torch.tensor(0)), torch.tensor(16.0)
    ),
    "outlier columns": lambda draw, shape: (
        torch.randn(shape, generator=draw) * torch.where(torch.arange(shape[1]) % 40 == 0, 20.0, 1.0)
    ),
}


def layer_of(kind: str, seed: int, sparsity: float, grid: str) -> Quantized:
    draw = torch.Generator().manual_seed(seed)
    layer = nn.Linear(128, 64, bias=False)
    weight = {**DRAWS, **HEAVY}[kind](draw, (64, 128))
    if sparsity:
        weight[weight.abs() <= weight.abs().flatten().kthvalue(int(sparsity * weight.numel())).values] = 0
    layer.weight.data = weight
    return quantize_linears(nn.Sequential(layer), GRIDS[grid])[0]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(DRAWS)), st.integers(0, 1000), st.sampled_from(["int4", "int8", "fp4", "nf4"]))
def test_weights_that_were_only_rounded_are_not_pruned(kind, seed, grid):
    assert pruned_codes(layer_of(kind, seed, 0, grid), "weight") is None


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(DRAWS)), st.integers(0, 1000), st.sampled_from([0.5, 0.7, 0.95]),
    st.sampled_from(["int4", "int8", "fp4", "nf4"]),
)  # fmt: skip
def test_pruned_weights_are(kind, seed, sparsity, grid):
    layer = layer_of(kind, seed, sparsity, grid)
    found = pruned_codes(layer, "weight")
    assert found is not None and torch.equal(found, layer.weight == 0)


@pytest.mark.parametrize("grid", ["int4", "int8", "per tensor", "fp4"])
@pytest.mark.parametrize("kind", [*DRAWS, *HEAVY])
def test_the_original_tells_what_was_only_rounded(kind, grid):
    """However many zeros there are, and however they stand out."""
    dense = nn.Sequential(nn.Linear(128, 64, bias=False))
    dense[0].weight.data = {**DRAWS, **HEAVY}[kind](torch.Generator().manual_seed(0), (64, 128))
    model = quantize_linears(copy.deepcopy(dense), GRIDS[grid])
    assert pruned_codes(model[0], "weight", dense[0].weight) is None
    sparse = copy.deepcopy(dense)
    weight = sparse[0].weight.data
    weight[weight.abs() <= weight.abs().median()] = 0
    model = quantize_linears(copy.deepcopy(sparse), GRIDS[grid])
    assert torch.equal(pruned_codes(model[0], "weight", sparse[0].weight), weight == 0)


def test_a_dense_teacher_does_not_hide_that_a_model_was_pruned():
    """By another measure than size, so that not only what would become zero anyway was taken."""
    dense = nn.Sequential(nn.Linear(128, 64, bias=False))
    dense[0].weight.data = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    sparse = copy.deepcopy(dense)
    sparse[0].weight.data[:, ::2] = 0
    model = quantize_linears(sparse, GRIDS["int4"])
    assert pruned_codes(model[0], "weight", dense[0].weight)[:, ::2].all()


def halved() -> nn.Module:
    model = transformer("llama")
    for layer in model.model.layers:
        weight = layer.mlp.up_proj.weight.data
        weight[weight.abs() <= weight.abs().median()] = 0
    return fewbit.compress_weights(model, mode="int4_sym", group_size=16, algorithm="rtn")


@pytest.mark.parametrize("method", ["qat", "distill", "lora", "dora"])
def test_zeros_of_a_quantized_model_stay(method):
    ids = torch.randint(4, 40, (16, 8), generator=torch.Generator().manual_seed(0))
    loader = DataLoader([{"input_ids": row, "labels": row.clone()} for row in ids], batch_size=8)
    model, teacher = halved(), transformer("llama") if method == "distill" else None
    before = model.model.layers[0].mlp.up_proj.weight.detach()
    tuned = finetune(
        model, loader, method=method, teacher=teacher, lr=3e-2, max_steps=6, device="cpu", validation=False
    )
    after = tuned.model.layers[0].mlp.up_proj.weight.detach()
    assert not torch.equal(after, before)
    assert (after[before == 0] == 0).all()
