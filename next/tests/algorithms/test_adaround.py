# SPDX-License-Identifier: Apache-2.0
"""AdaRound against exhaustive search and rounding to nearest."""

import itertools

import pytest
import torch

from fewbit.algorithms._base import InputMoments, LayerProblem
from fewbit.algorithms.adaround import ALGORITHM
from fewbit.errors import DataError, UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, quantize
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 16}
GRIDS = {
    "int4": QuantizationGrid(Dtype.int4, **GROUP),
    "int4 signed scale": QuantizationGrid(Dtype.int4, full_range=True, scale_type=ScaleType.bfloat16, **GROUP),
    "uint3": QuantizationGrid(Dtype.uint3, symmetric=False, **GROUP),
    "uint2 float zero": QuantizationGrid(Dtype.uint2, symmetric=False, float_zero=True, **GROUP),
    "int8 per tensor": QuantizationGrid(Dtype.int8),
    "int3 blocks, short": QuantizationGrid(Dtype.int3, QSchemeType.per_block, block_size=(5, 12)),
}


def problem(grid: QuantizationGrid, rows: int = 12, width: int = 32, seed: int = 0) -> LayerProblem:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(400, width, generator=draw) @ torch.randn(width, width, generator=draw)
    weight = torch.randn(rows, width, generator=draw)
    return LayerProblem("layer", weight, grid, InputMoments(400, hessian=x.T @ x / 400))


def losses(case: LayerProblem, values: torch.Tensor) -> torch.Tensor:
    difference = values - case.weight
    return ((difference @ case.moments.hessian) * difference).sum(1)


@pytest.mark.parametrize("name", GRIDS)
def test_errors_of_a_row_cancel(name):
    """Every element on one of its two neighbors, with less output error than rounding to nearest."""
    case = problem(GRIDS[name])
    tensor = ALGORITHM.quantize(case)
    values, nearest = tensor.dequantize(), fake_quantize(case.weight, tensor.qparams)
    assert losses(case, values).sum() < 0.6 * losses(case, nearest).sum()
    assert (losses(case, values) <= losses(case, nearest) * 1.02).all()  # the damped error never rises
    assert (tensor.codes().int() - quantize(case.weight, tensor.qparams).int()).abs().max() == 1


def test_near_the_best_of_all_choices():
    """All 2^8 roundings of a row."""
    best = found = nearest = 0.0
    for seed in range(8):
        case = problem(QuantizationGrid(Dtype.int4, QSchemeType.per_channel), 1, 8, seed)
        tensor = ALGORITHM.quantize(case, damping=1e-5)
        step = tensor.qparams.step
        floor = (case.weight / step).floor()
        options = [
            ((floor + torch.tensor([up], dtype=torch.float32)).clamp(-8, 7) * step)
            for up in itertools.product((0.0, 1.0), repeat=8)
        ]
        best += float(min(losses(case, option) for option in options))
        found += float(losses(case, tensor.dequantize()))
        nearest += float(losses(case, fake_quantize(case.weight, tensor.qparams)))
    assert best * 0.999 <= found < 1.25 * best
    assert found < 0.8 * nearest


def test_zeros_of_a_pruned_weight_stay():
    case = problem(GRIDS["uint3"])
    case.weight[:, ::2] = 0
    assert (ALGORITHM.quantize(case).dequantize()[:, ::2] == 0).all()


def test_inputs_that_are_dead_or_not_finite():
    case = problem(GRIDS["int4"])
    zeros = LayerProblem("layer", case.weight, case.grid, InputMoments(9, hessian=torch.zeros(32, 32)))
    assert torch.isfinite(ALGORITHM.quantize(zeros).dequantize()).all()
    case.moments.hessian[0, 0] = torch.nan
    with pytest.raises(DataError, match="layer"):
        ALGORITHM.quantize(case)


def test_wrong_settings():
    with pytest.raises(UsageError, match="steps"):
        ALGORITHM.quantize(problem(GRIDS["int4"]), steps=-1)
    with pytest.raises(UsageError, match="fp8"):
        ALGORITHM.quantize(problem(QuantizationGrid(Dtype.fp8_e4m3)))
