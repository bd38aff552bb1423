# SPDX-License-Identifier: Apache-2.0
"""Zeros that were pruned are told from zeros that small weights were rounded to, and stay when the codes learn."""

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


def layer_of(kind: str, seed: int, sparsity: float, grid: str) -> Quantized:
    draw = torch.Generator().manual_seed(seed)
    layer = nn.Linear(128, 64, bias=False)
    weight = DRAWS[kind](draw, (64, 128))
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
