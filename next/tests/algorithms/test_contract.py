# SPDX-License-Identifier: Apache-2.0
"""What every algorithm of the registry says of itself, and keeps."""

import inspect

import numpy as np
import pytest
import torch

from fewbit import registry
from fewbit.algorithms._base import InputMoments, LayerProblem
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize

MEMBERS = registry.members("algorithms")
METHODS = {
    "rotation": "rotate", "scaling": "scale", "pruning": "prune",
    "weight": "quantize", "block": "tune", "bias": "correct",
}  # fmt: skip
WEIGHT = [name for name, member in MEMBERS.items() if member.stage == "weight"]
GRID = QuantizationGrid(Dtype.int4, QSchemeType.per_group, group_size=16)


@pytest.mark.parametrize("name", MEMBERS)
def test_members_say_what_they_are(name):
    member = MEMBERS[name]
    method = getattr(member, METHODS[member.stage])
    assert member.name == name and type(member).__doc__
    assert member.statistics <= set(InputMoments.__dataclass_fields__)
    assert member.requires in (None, "torch")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    assert {parameter.name: parameter.default for parameter in parameters} == dict(member.settings)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)


@pytest.mark.parametrize("name", WEIGHT)
def test_weights_are_not_changed_and_results_lie_on_the_grid(name):
    torch.manual_seed(0)
    x, weight = torch.randn(100, 32) @ torch.randn(32, 32), torch.randn(8, 32)
    hessian = x.T @ x / 100
    moments = InputMoments(100, second_moment=hessian.diagonal().clone(), hessian=hessian.clone())
    before = weight.clone()
    tensor = MEMBERS[name].quantize(LayerProblem("layer", weight, GRID, moments))
    assert torch.equal(weight, before) and torch.equal(moments.hessian, hessian)
    values = tensor.dequantize()
    assert tensor.grid == GRID and tensor.shape == (8, 32)
    assert torch.equal(fake_quantize(values, tensor.qparams), values)
    again = MEMBERS[name].quantize(LayerProblem("layer", weight, GRID, moments))
    assert torch.equal(again.packed, tensor.packed)


@pytest.mark.parametrize("name", [name for name in WEIGHT if MEMBERS[name].requires is None])
def test_numpy_is_enough(name):
    weight = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    tensor = MEMBERS[name].quantize(LayerProblem("layer", weight, GRID))
    assert isinstance(tensor.packed, np.ndarray) and np.abs(tensor.dequantize() - weight).max() < 0.5


def test_lists(fewbit_command):
    _, algorithms, _ = fewbit_command("list", "algorithms")
    assert "weight: " in algorithms and "pruning: " in algorithms
    assert all(name in algorithms for name in MEMBERS)
    _, observers, _ = fewbit_command("list", "observers")
    assert all(name in observers for name in registry.names("observers"))
