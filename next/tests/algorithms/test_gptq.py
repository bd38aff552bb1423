# SPDX-License-Identifier: Apache-2.0
"""GPTQ against exhaustive search, plain rounding and its own definition."""

import itertools

import numpy as np
import pytest
import torch

from fewbit.algorithms._base import InputMoments, LayerProblem
from fewbit.algorithms._columns import column_order, damped_cholesky, feedback_matrix, round_columns
from fewbit.algorithms._scale_search import search_scales
from fewbit.algorithms.gptq import ALGORITHM
from fewbit.errors import DataError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QParams, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.scales import ScaleType

GROUP = QSchemeType.per_group


def correlated(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Inputs whose features go together, [rows, width]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=draw) @ torch.randn(width, width, generator=draw)


def second_moment(x: torch.Tensor) -> torch.Tensor:
    return x.T @ x / len(x)


def loss(difference: torch.Tensor, hessian: torch.Tensor) -> float:
    return float((difference @ hessian * difference).sum())


def test_feedback_factorizes_the_damped_hessian():
    hessian = second_moment(correlated(100, 6))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    unit = feedback_matrix(hessian, order, 0.1) + torch.eye(6)
    damped = (hessian + 0.1 * hessian.diagonal().mean() * torch.eye(6))[order][:, order]
    inverse = torch.linalg.inv(unit.double())
    diagonal = inverse @ damped.double() @ inverse.T
    assert torch.allclose(diagonal, torch.diag(diagonal.diagonal()), atol=1e-4 * float(diagonal.max()))


def test_each_column_is_rounded_after_the_errors_before_it():
    """The definition, column by column, in float64."""
    torch.manual_seed(1)
    hessian, weight = second_moment(correlated(200, 130)), torch.randn(5, 130)
    scale = weight.abs().reshape(5, 13, 10).amax(2) / 7
    order = column_order(hessian, 10)
    feedback = feedback_matrix(hessian, order, 0.1)
    values = round_columns(weight, scale, None, lambda x: x.round_().clamp_(-8, 7), order, feedback, group=10)
    errors = (weight - values).double()[:, order]
    steps = scale.double().repeat_interleave(10, 1)[:, order]
    wanted = weight.double()[:, order] + errors @ feedback.double()
    expected = (wanted / steps).round().clamp(-8, 7) * steps
    assert (expected - values.double()[:, order]).abs().max() < 1e-5 * float(steps.max())


def test_nearly_as_good_as_exhaustive_search():
    """All 4^6 roundings of short rows: the best is at most a third better on average, plain rounding far worse."""
    best_total = gptq_total = plain_total = 0.0
    for seed in range(6):
        hessian = second_moment(correlated(60, 6, seed))
        weight = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
        grid = QuantizationGrid(Dtype.int2, QSchemeType.per_channel)
        problem = LayerProblem("layer", weight, grid, InputMoments(60, hessian=hessian))
        tensor = ALGORITHM.quantize(problem, damping=1e-6)
        step = float(tensor.qparams.scale.abs().max())
        candidates = torch.tensor(list(itertools.product([-2.0, -1.0, 0.0, 1.0], repeat=6))) * step
        best_total += min(loss(row[None] - weight, hessian) for row in candidates)
        gptq_total += loss(tensor.dequantize() - weight, hessian)
        plain_total += loss(fake_quantize(weight, tensor.qparams) - weight, hessian)
    assert gptq_total < 1.6 * best_total
    assert gptq_total < 0.6 * plain_total


GRIDS = {
    "int4 signed scale": QuantizationGrid(
        Dtype.int4, GROUP, group_size=16, full_range=True, scale_type=ScaleType.bfloat16
    ),
    "int4": QuantizationGrid(Dtype.int4, GROUP, group_size=16),
    "uint4 zero point": QuantizationGrid(Dtype.uint4, GROUP, group_size=16, symmetric=False),
    "int3 per channel": QuantizationGrid(Dtype.int3, QSchemeType.per_channel),
    "int4 short last group": QuantizationGrid(Dtype.int4, GROUP, group_size=48),
    "int8 per tensor": QuantizationGrid(Dtype.int8),
    "int4 blocks": QuantizationGrid(Dtype.int4, QSchemeType.per_block, block_size=(8, 16)),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    "nf4": QuantizationGrid(Dtype.nf4, GROUP, group_size=16),
    **{
        name: QuantizationGrid(kind.element, GROUP, group_size=kind.group_size, scale_type=kind.scale_type)
        for name, kind in BLOCK_FORMATS.items()
        if name in ("mxfp4", "nvfp4")
    },
}


@pytest.mark.parametrize("name", GRIDS)
def test_better_than_plain_rounding_on_other_inputs(name):
    """On every grid, judged on rows that the Hessian was not made of."""
    grid = GRIDS[name]
    inputs = correlated(600, 64, 3)
    torch.manual_seed(3)
    weight = torch.randn(24, 64)
    problem = LayerProblem("layer", weight, grid, InputMoments(400, hessian=second_moment(inputs[:400])))
    tensor = ALGORITHM.quantize(problem)
    values = tensor.dequantize()
    assert torch.equal(fake_quantize(values, tensor.qparams), values)  # on the grid
    block = grid.weight_block((24, 64))
    low, high = BlockShape((24, 64), block).extremes(weight)
    plain = fake_quantize(weight, qparams_from_min_max(low, high, grid, block))
    judged = second_moment(inputs[400:])
    assert loss(values - weight, judged) < 0.8 * loss(plain - weight, judged)


def test_outputs_follow_the_float_model():
    """Inputs differ from the float model's; the weight that is solved for makes up for it."""
    torch.manual_seed(5)
    float_inputs = correlated(500, 32, 5)
    inputs = float_inputs @ (torch.eye(32) + 0.1 * torch.randn(32, 32))
    weight = torch.randn(16, 32)
    grid = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
    hessian = second_moment(inputs)
    gap = (float_inputs - inputs).T @ inputs / 500
    plain = ALGORITHM.quantize(LayerProblem("a", weight, grid, InputMoments(500, hessian=hessian))).dequantize()
    for moments in (
        InputMoments(500, hessian=hessian, input_gap=gap),
        InputMoments(500, hessian=hessian, output_gap=weight @ gap),
    ):
        corrected = ALGORITHM.quantize(LayerProblem("a", weight, grid, moments), pull=1e-4).dequantize()
        target = float_inputs @ weight.T
        assert (inputs @ corrected.T - target).square().sum() < 0.3 * (inputs @ plain.T - target).square().sum()


def test_layers_of_a_group_share_the_factorization():
    hessian = second_moment(correlated(100, 32))
    grid, shared = QuantizationGrid(Dtype.int4, GROUP, group_size=16), {}
    weight = torch.randn(4, 32)
    first = ALGORITHM.quantize(LayerProblem("a", weight, grid, InputMoments(100, hessian=hessian), shared))
    again = ALGORITHM.quantize(LayerProblem("a", weight, grid, InputMoments(100, hessian=hessian), shared))
    assert set(shared) == {"order", "feedback"}
    assert torch.equal(first.packed, again.packed)


def test_dead_and_singular_inputs():
    """Inputs that are always zero, or equal to one another, do not break the factorization."""
    x = correlated(50, 8)
    x[:, 2] = 0
    x[:, 4] = x[:, 3]
    factor = damped_cholesky(second_moment(x), 0.1)
    assert torch.isfinite(factor).all()
    assert torch.isfinite(damped_cholesky(torch.zeros(4, 4), 0.1)).all()


def test_values_that_are_not_finite_are_an_error():
    hessian = torch.eye(4)
    hessian[1, 1] = torch.inf
    moments = InputMoments(9, hessian=hessian)
    problem = LayerProblem("blocks.3.down", torch.ones(2, 4), QuantizationGrid(Dtype.int4), moments)
    with pytest.raises(DataError, match=r"blocks\.3\.down"):
        ALGORITHM.quantize(problem)


@pytest.mark.parametrize("name", GRIDS)
def test_searched_scales_are_never_worse_than_the_complete_range(name):
    """By the weighted error they minimize, in numpy and torch alike."""
    grid = GRIDS[name]
    rng = np.random.default_rng(0)
    weight = rng.standard_t(3, (16, 64)).astype(np.float32)
    importance = rng.uniform(0.1, 10, 64).astype(np.float32)
    block = grid.weight_block(weight.shape)
    low, high = BlockShape(weight.shape, block).extremes(weight)
    start = qparams_from_min_max(low, high, grid, block)
    found = search_scales(weight, grid, importance)
    weights = importance / importance.mean() + 0.01

    def error(qparams) -> float:
        return float((np.square(fake_quantize(weight, qparams) - weight) * weights).sum())

    assert error(found) <= error(start) * (1 + 1e-6)
    same = search_scales(torch.from_numpy(weight), grid, torch.from_numpy(importance))
    zero = None if same.zero_point is None else same.zero_point.numpy()
    level = None if same.global_scale is None else same.global_scale.numpy()
    assert error(QParams(grid, block, same.scale.numpy(), zero, level)) == pytest.approx(error(found), rel=0.02)


@pytest.mark.parametrize("name", GRIDS)
def test_zeros_of_a_pruned_weight_stay(name):
    """And the other weights compensate: with less output error than rounding to nearest, on other inputs."""
    grid, inputs = GRIDS[name], correlated(600, 64, 3)
    torch.manual_seed(3)
    weight = torch.randn(24, 64) * (torch.rand(24, 64) < 0.5)
    gap = 0.05 * torch.randn(64, 64)
    moments = InputMoments(400, hessian=second_moment(inputs[:400]))
    values = ALGORITHM.quantize(LayerProblem("layer", weight, grid, moments)).dequantize()
    assert (values[weight == 0] == 0).all()
    judged = second_moment(inputs[400:])
    plain = fake_quantize(weight, search_scales(weight, grid, moments.hessian.diagonal()))
    assert loss(values - weight, judged) < loss(plain - weight, judged)
    moved = InputMoments(400, hessian=moments.hessian, input_gap=gap)
    values = ALGORITHM.quantize(LayerProblem("layer", weight, grid, moved)).dequantize()
    assert (values[weight == 0] == 0).all()
