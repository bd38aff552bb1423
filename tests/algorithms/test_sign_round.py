# SPDX-License-Identifier: Apache-2.0
"""Codes tuned for what a block answers: never worse than the start on the items kept aside, near the best there is."""

import itertools

import orjson
import pytest
import torch

from fewbit.algorithms import gptq, rtn, sign_round
from fewbit.algorithms._base import BlockProblem, Problem
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 8}
GRIDS = {
    "int2": Grid(Dtype.int2, **GROUP, full_range=True, scale_type=ScaleType.bfloat16),
    "uint3": Grid(Dtype.uint3, **GROUP, symmetric=False),
    "mxfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e4m3fn),
}


def two_layers(grid, sizes=(16, 24, 8), items=20, positions=32, seed=0):
    """A block of two layers with a nonlinearity between, its inputs correlated; plainly rounded to begin with."""
    draw = torch.Generator().manual_seed(seed)
    weights = {
        "first": torch.randn(sizes[1], sizes[0], generator=draw) / sizes[0] ** 0.5,
        "second": torch.randn(sizes[2], sizes[1], generator=draw) / sizes[1] ** 0.5,
    }
    mixing = torch.randn(sizes[0], sizes[0], generator=draw) * torch.linspace(0.1, 2, sizes[0])
    x = torch.randn(items, positions, sizes[0], generator=draw) @ mixing

    def run(values, some):
        rows = x[list(some)].flatten(0, 1)
        return torch.nn.functional.silu(rows @ values["first"].T) @ values["second"].T

    start = {}
    for name, weight in weights.items():
        block = grid.weight_block(tuple(weight.shape))
        start[name] = QTensor.encode(weight, rtn.qparams(Problem(weight, grid, block)))
    teach, judge = [i for i in range(items) if i % 5 != 4], [i for i in range(items) if i % 5 == 4]
    return BlockProblem(weights, start, run, lambda some: run(weights, some), teach, judge, "block")


def off(problem, codes, items):
    values = {name: each.dequantize() for name, each in codes.items()}
    return float((problem.run(values, items) - problem.wanted(items)).double().square().mean())


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_the_error_falls(grid):
    problem = two_layers(grid)
    state = torch.get_rng_state()
    found = sign_round.solve(problem, iters=100)
    assert torch.equal(state, torch.get_rng_state())
    start, now = (off(problem, codes, problem.held_out) for codes in (problem.start, found.codes))
    assert now < 0.8 * start
    size = float(problem.wanted(problem.held_out).double().square().mean())
    facts = found.facts
    assert facts["held_out_error"] == pytest.approx(now / size, rel=1e-4)
    assert facts["held_out_error_start"] == pytest.approx(start / size, rel=1e-4)
    assert facts["steps"] == 100 and 0 < facts["best_step"] <= 100 and 0 < facts["turned"] < 1
    orjson.dumps(facts)
    for name, codes in found.codes.items():
        assert (codes.grid, codes.block, codes.shape) == (grid, problem.start[name].block, problem.start[name].shape)
        assert not any(part.requires_grad for part in codes.tensors().values())


def test_the_same_again_is_the_same():
    problem = two_layers(GRIDS["int2"])
    first, second = (sign_round.solve(problem, iters=20) for _ in range(2))
    assert first.facts == second.facts
    for name, codes in first.codes.items():
        for part, tensor in codes.tensors().items():
            assert torch.equal(tensor.view(torch.uint8), second.codes[name].tensors()[part].view(torch.uint8))


@pytest.mark.parametrize("rate", [None, 0.3, 50.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_the_start(seed, rate):
    problem = two_layers(GRIDS["int2"], items=5, positions=2, seed=seed)  # so little that what is learned is noise
    found = sign_round.solve(problem, iters=10, lr=rate, batch=2)
    start, now = (off(problem, codes, problem.held_out) for codes in (problem.start, found.codes))
    assert now <= start
    if not found.facts["best_step"]:
        assert found.codes == dict(problem.start) and found.facts["turned"] == 0


def test_against_all_codes_there_are():
    """Two layers of two by two: every choice of codes on the start's scales is tried."""
    grid = Grid(Dtype.int2, QSchemeType.per_tensor, scale_type=ScaleType.pof2)  # powers of two stay
    gained = []
    for seed in range(6):
        problem = two_layers(grid, (2, 2, 2), items=8, positions=16, seed=seed)
        params = {name: start.qparams for name, start in problem.start.items()}
        choices = [torch.tensor(c).reshape(2, 2) for c in itertools.product((-2, -1, 0, 1), repeat=4)]
        x = {n: torch.stack([c * params[n].step for c in choices]) for n in params}
        hidden = [problem.run({"first": f, "second": torch.eye(2)}, problem.items) for f in x["first"]]
        wanted = problem.wanted(problem.items)
        losses = torch.stack([(h @ x["second"].mT - wanted).square().mean((1, 2)) for h in hidden])
        best, start = float(losses.min()), off(problem, problem.start, problem.items)
        free = BlockProblem(problem.weights, problem.start, problem.run, problem.wanted, problem.items)
        now = off(problem, sign_round.solve(free, iters=200).codes, problem.items)
        assert best * (1 - 1e-5) <= now <= start
        gained.append((start - now) / (start - best) if start > best * 1.001 else 1.0)
    assert sum(gained) / len(gained) > 0.5  # of what there is to gain


def test_a_weight_alone_gets_what_it_begins_with():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 16, generator=draw)
    seen = {"gram": {"gram": x.T @ x, "count": torch.tensor(64)}}
    problem = Problem(torch.randn(4, 16, generator=draw), GRIDS["int2"], (1, 8), statistics=seen)
    first, second = gptq.solve(problem).qtensor, sign_round.solve(problem, iters=3).qtensor
    assert torch.equal(first.dequantize(), second.dequantize())


def test_steps_by_bits():
    wide = Grid(Dtype.int4, **GROUP)
    assert [sign_round.solve(two_layers(g)).facts["steps"] for g in (GRIDS["int2"], wide)] == [200, 50]
    assert sign_round.solve(two_layers(wide), iters=0).facts["best_step"] == 0


def test_weights_that_no_item_reaches_stay():
    problem = two_layers(GRIDS["int2"])
    spare = {"spare": problem.weights["first"]}
    more = BlockProblem(
        {**problem.weights, **spare}, {**problem.start, "spare": problem.start["first"]},
        problem.run, problem.wanted, problem.items, problem.held_out,
    )  # fmt: skip
    found = sign_round.solve(more, iters=20).codes["spare"]
    assert torch.equal(found.dequantize(), problem.start["first"].dequantize())


@pytest.mark.parametrize("wrong", [{"iters": -1}, {"lr": 0.0}, {"lr": float("nan")}, {"batch": 0}])
def test_what_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        sign_round.solve(two_layers(GRIDS["int2"]), **wrong)
    problem = two_layers(GRIDS["int2"])
    empty = BlockProblem(problem.weights, problem.start, problem.run, problem.wanted, [])
    with pytest.raises(UsageError, match="0 items"):
        sign_round.solve(empty)
    other = {"first": problem.start["second"], "second": problem.start["first"]}
    with pytest.raises(UsageError, match="shapes"):
        sign_round.solve(BlockProblem(problem.weights, other, problem.run, problem.wanted, [0]))


def test_scales_are_tuned_too():
    """One weight, whose scale alone is off."""
    weight = torch.tensor([[1.0, -2.0, 3.0, 1.0]])
    params = QParams(Grid(Dtype.int4), (1, 4), torch.full((1, 1), 1.2))
    start = QTensor.from_codes(weight.to(torch.int8), params)
    eye = BlockProblem({"w": weight}, {"w": start}, lambda values, items: values["w"], lambda items: weight, [0])
    found = sign_round.solve(eye, iters=100).codes["w"]
    assert float((found.dequantize() - weight).abs().max()) < 0.1 < float((start.dequantize() - weight).abs().max())
