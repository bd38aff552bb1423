# SPDX-License-Identifier: Apache-2.0
"""SignRound on small blocks."""

import itertools

import pytest
import torch

from fewbit.algorithms import gptq, rtn
from fewbit.algorithms._base import BlockProblem, InputMoments, LayerProblem
from fewbit.algorithms.sign_round import ALGORITHM, _batches, _TunedWeight
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 16}
GRIDS = {
    "int2 signed scale": QuantizationGrid(Dtype.int2, full_range=True, scale_type=ScaleType.bfloat16, **GROUP),
    "uint3": QuantizationGrid(Dtype.uint3, symmetric=False, **GROUP),
    "uint2 float zero": QuantizationGrid(Dtype.uint2, symmetric=False, float_zero=True, **GROUP),
    "int3 short group": QuantizationGrid(Dtype.int3, QSchemeType.per_group, group_size=12),
    "int4 blocks": QuantizationGrid(Dtype.int4, QSchemeType.per_block, block_size=(8, 16)),
    "nf4": QuantizationGrid(Dtype.nf4, **GROUP),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    **{
        name: QuantizationGrid(Dtype.fp4, scale_type=BLOCK_FORMATS[name].scale_type, **GROUP)
        for name in ("mxfp4", "nvfp4")
    },
}


def block(grid: QuantizationGrid, algorithm=rtn, sparse: bool = False) -> BlockProblem:
    """Two layers with a nonlinearity; 24 samples of 8 tokens, 8 more are held out."""
    torch.manual_seed(0)
    x = torch.randn(32, 8, 32) @ torch.randn(32, 32) / 6
    weights = {"up": torch.randn(24, 32) / 6, "down": torch.randn(16, 24) / 5}
    if sparse:
        weights = {name: weight * (torch.rand_like(weight) < 0.5) for name, weight in weights.items()}
    hidden = torch.nn.functional.gelu(x @ weights["up"].T)

    def moments(inputs: torch.Tensor) -> InputMoments:
        rows = inputs[:24].flatten(0, 1)
        return InputMoments(len(rows), hessian=rows.T @ rows / len(rows))

    start = {
        name: algorithm.ALGORITHM.quantize(LayerProblem(name, weights[name], grid, moments(inputs)))
        for name, inputs in (("up", x), ("down", hidden))
    }

    def run(values, samples):
        return torch.nn.functional.gelu(x[list(samples)] @ values["up"].T) @ values["down"].T

    return BlockProblem("block", weights, start, run, lambda s: run(weights, s), range(24), range(24, 32))


def error(problem: BlockProblem, tensors) -> float:
    values = {name: tensor.dequantize() for name, tensor in tensors.items()}
    return float((problem.run(values, problem.held_out) - problem.target(problem.held_out)).square().mean())


@pytest.mark.parametrize("name", GRIDS)
def test_lowers_the_error_of_the_block_on_held_out_samples(name):
    problem = block(GRIDS[name])
    tensors, facts = ALGORITHM.tune(problem)
    before, after = error(problem, problem.start), error(problem, tensors)
    assert (facts["block_error_before"], facts["block_error"]) == pytest.approx((before, after), rel=1e-4)
    assert after <= before
    if GRIDS[name].dtype.bits <= 3:
        assert after < 0.7 * before
    for layer, tensor in tensors.items():
        assert tensor.grid == problem.start[layer].grid and tensor.shape == problem.start[layer].shape


def test_improves_on_gptq_at_two_bits():
    problem = block(GRIDS["int2 signed scale"], gptq)
    tensors, _ = ALGORITHM.tune(problem)
    assert error(problem, tensors) < 0.95 * error(problem, problem.start)


def test_no_steps_are_the_start():
    problem = block(GRIDS["uint3"])
    for steps in (0, 1):
        tensors, facts = ALGORITHM.tune(problem, steps=steps, rate=1e-9)
        assert facts["best_step"] == 0
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor.dequantize(), problem.start[name].dequantize())


@pytest.mark.parametrize("name", GRIDS)
def test_values_start_as_they_were_quantized(name):
    problem = block(GRIDS[name], gptq)
    for layer, start in problem.start.items():
        tuned = _TunedWeight(problem.weights[layer], start)
        torch.testing.assert_close(tuned.values(), start.dequantize())
        torch.testing.assert_close(tuned.result().dequantize(), start.dequantize())


def test_near_the_best_of_all_roundings():
    """Four weights up or down, fixed scales: all 16 combinations."""
    torch.manual_seed(3)
    weight, x = torch.rand(1, 4) * 4 - 2, torch.randn(64, 4) @ torch.randn(4, 4)
    grid = QuantizationGrid(Dtype.int4, scale_type=ScaleType.float8_e8m0fnu)  # scales that are not tuned
    start = QTensor.encode(weight, QParams(grid, (1, 4), torch.ones(1, 1)))
    problem = BlockProblem(
        "b", {"w": weight}, {"w": start}, lambda v, s: x[list(s)] @ v["w"].T, lambda s: x[list(s)] @ weight.T, range(64)
    )
    tensors, _ = ALGORITHM.tune(problem, steps=200, batch_size=64)
    lower = weight.floor()
    options = [lower + torch.tensor(up, dtype=torch.float32) for up in itertools.product((0, 1), repeat=4)]
    best = min(float((x @ (option - weight).T).square().sum()) for option in options)
    found = float((x @ (tensors["w"].dequantize() - weight).T).square().sum())
    plain = float((x @ (start.dequantize() - weight).T).square().sum())
    assert best * 0.999 <= found <= max(1.5 * best, best + 0.3 * (plain - best))


def test_zeros_of_pruned_weights_stay():
    problem = block(GRIDS["uint3"], sparse=True)
    tensors, _ = ALGORITHM.tune(problem)
    for name, tensor in tensors.items():
        assert (tensor.dequantize()[problem.weights[name] == 0] == 0).all()


def test_same_result_again_and_no_global_random_state():
    problem = block(GRIDS["uint3"])
    first, _ = ALGORITHM.tune(problem, steps=20)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again, _ = ALGORITHM.tune(problem, steps=20)
    assert torch.equal(torch.get_rng_state(), state)
    for name in first:
        assert torch.equal(first[name].packed, again[name].packed)


def test_batches_take_every_sample_before_any_comes_again():
    batches = list(_batches(range(10), 4, 5))
    assert [len(batch) for batch in batches] == [4] * 5
    assert sorted(itertools.chain(*batches)) == sorted([*range(10), *range(10)])
    assert list(_batches([7], 4, 2)) == [[7], [7]]


def test_wrong_problems_are_errors():
    problem = block(GRIDS["uint3"])
    for settings in ({"steps": -1}, {"rate": 0.0}, {"batch_size": 0}):
        with pytest.raises(UsageError, match=next(iter(settings))):
            ALGORITHM.tune(problem, **settings)
    with pytest.raises(UsageError, match="0 samples"):
        ALGORITHM.tune(BlockProblem("b", problem.weights, problem.start, problem.run, problem.target, []))
    wide = block(QuantizationGrid(Dtype.int16, QSchemeType.per_channel))
    with pytest.raises(UsageError, match="16 bits"):
        ALGORITHM.tune(wide)
