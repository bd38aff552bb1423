# SPDX-License-Identifier: Apache-2.0
"""Pruning algorithms: exact zeros on every pattern, and output errors against exhaustive search and least squares."""

import itertools

import numpy as np
import pytest
import torch

from fewbit import registry
from fewbit.algorithms import alps, iterative, magnitude, wanda
from fewbit.algorithms._base import InputMoments, PruningProblem
from fewbit.algorithms._pruning import pruning_mask, refine
from fewbit.errors import DataError, UsageError
from fewbit.numerics.sparsity import SparsityPattern, zero_count

PATTERNS = {
    "half": SparsityPattern(0.5),
    "0.55 per row": SparsityPattern(0.55, per_row=True),
    "0.7": SparsityPattern(0.7),
    "2:4": SparsityPattern.parse("2:4"),
    "1:4": SparsityPattern.parse("1:4"),
    "blocks": SparsityPattern.parse("block:4", 0.5),
    "4x1": SparsityPattern.parse("4x1", 0.25),
    "all": SparsityPattern(1.0),
    "none": SparsityPattern(0.0),
}
MEMBERS = {name: member for name, member in registry.members("algorithms").items() if member.stage == "pruning"}
SOLVERS = [name for name in MEMBERS if MEMBERS[name].requires]


def correlated(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=draw) @ torch.randn(width, width, generator=draw) / width**0.5


def problem(pattern, weight=None, x=None, seed=0, **more) -> PruningProblem:
    x = correlated(600, 32, seed) if x is None else x
    weight = torch.randn(24, x.shape[1], generator=torch.Generator().manual_seed(seed)) if weight is None else weight
    hessian = x.T @ x / len(x)
    moments = InputMoments(len(x), second_moment=hessian.diagonal().clone(), hessian=hessian, **more)
    return PruningProblem("layer", weight, pattern, moments)


def loss(case: PruningProblem, values, hessian=None) -> float:
    difference = (torch.as_tensor(values) - case.weight).flatten(1)
    return float((difference @ (case.moments.hessian if hessian is None else hessian) * difference).sum())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", MEMBERS)
def test_zeros_are_those_of_the_pattern(name, pattern):
    kind = PATTERNS[pattern]
    case = problem(kind)
    before = case.weight.clone()
    pruned = MEMBERS[name].prune(case)
    assert torch.equal(case.weight, before) and pruned.shape == before.shape and torch.isfinite(pruned).all()
    zeros = pruned == 0
    assert not torch.signbit(pruned[zeros]).any()
    if kind.group:
        assert (zeros.reshape(24, -1, kind.group).sum(2) == kind.group - kind.nonzero).all()
    elif kind.block != (1, 1):
        tall, wide = kind.block
        blocks = zeros.reshape(24 // tall, tall, 32 // wide, wide).transpose(1, 2).flatten(2)
        assert (blocks.all(2) == blocks.any(2)).all()
        assert int(blocks.all(2).sum()) == zero_count(kind.sparsity, blocks.shape[0] * blocks.shape[1])
    elif kind.per_row:
        assert (zeros.sum(1) == zero_count(kind.sparsity, 32)).all()
    else:
        assert int(zeros.sum()) == zero_count(kind.sparsity, 24 * 32)


@pytest.mark.parametrize("pattern", ["half", "2:4", "blocks"])
@pytest.mark.parametrize("name", MEMBERS)
def test_convolutions_and_existing_zeros(name, pattern):
    """N:M runs along the inputs at each kernel position; zeros stay, and count among those asked for."""
    kind = PATTERNS[pattern]
    weight = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(1))
    weight[:, ::4] = 0
    case = problem(kind, weight, correlated(400, 24))
    pruned = MEMBERS[name].prune(case)
    assert (pruned[weight == 0] == 0).all()
    if kind.group:
        assert ((pruned != 0).movedim(1, -1).reshape(6, 3, 2, 4).sum(-1) == 2).all()
    elif kind.block == (1, 1):
        assert int((pruned == 0).sum()) == 72


@pytest.mark.parametrize("pattern", ["half", "0.7", "2:4", "blocks", "0.55 per row"])
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_compensate(name, pattern):
    """On other inputs of the same kind: far below Wanda, which moves no weight; never above magnitude on its own."""
    inputs = correlated(2000, 32)
    case = problem(PATTERNS[pattern], x=inputs[:1000])
    other = inputs[1000:].T @ inputs[1000:] / 1000
    pruned = MEMBERS[name].prune(case, shrinkage=0.0)
    assert loss(case, pruned, other) < 0.6 * loss(case, wanda.ALGORITHM.prune(case), other)
    assert loss(case, pruned) <= loss(case, magnitude.ALGORITHM.prune(case))


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_against_exhaustive_search(name):
    """Every choice of 4 of 8 weights with its least squares solution; on average near the best."""
    best = found = plain = 0.0
    for seed in range(8):
        weight = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        case = problem(SparsityPattern(0.5, per_row=True), weight, correlated(100, 8, seed), seed)
        hessian = case.moments.hessian
        options = {"shrinkage": 0.0, "damping": 1e-4}
        found += loss(case, MEMBERS[name].prune(case, **options))
        plain += loss(case, wanda.ALGORITHM.prune(case))
        errors = []
        for support in itertools.combinations(range(8), 4):
            keep = list(support)
            values = torch.zeros(1, 8)
            values[:, keep] = torch.linalg.solve(hessian[keep][:, keep], hessian[keep] @ case.weight.T).T
            errors.append(loss(case, values))
        best += min(errors)
    assert best * 0.999 <= found < 2 * best
    assert found < 0.6 * plain


@pytest.mark.parametrize("name", ["magnitude", "wanda"])
def test_numpy_and_torch_agree(name):
    case = problem(PATTERNS["half"])
    moments = InputMoments(600, second_moment=case.moments.second_moment.numpy())
    in_numpy = PruningProblem("layer", case.weight.numpy(), case.pattern, moments)
    np.testing.assert_array_equal(MEMBERS[name].prune(in_numpy), MEMBERS[name].prune(case).numpy())


def test_wanda_compares_within_outputs():
    case = problem(SparsityPattern(0.5))
    zeros = (wanda.ALGORITHM.prune(case) == 0).sum(1)
    assert (zeros == 16).all()
    scores = case.weight.abs() * case.moments.second_moment.sqrt()
    expected = torch.zeros_like(case.weight, dtype=torch.bool).scatter_(1, scores.argsort(dim=1)[:, :16], True)
    assert torch.equal(wanda.ALGORITHM.prune(case) == 0, expected)
    every = (wanda.ALGORITHM.prune(case, within_rows=False) == 0).sum(1)
    assert int(every.sum()) == 24 * 16 and len(set(every.tolist())) > 1


def test_uneven_rows_have_exact_totals():
    """0.3 of rows of 7: rows differ by one zero at most, and rows that have more already leave fewer to the others."""
    weight = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    weight[0] = 0
    mask = pruning_mask(weight, weight.abs(), SparsityPattern(0.3), within_rows=True)
    zeros = (~mask).sum(1)
    assert int(zeros.sum()) == 21 and zeros[0] == 7 and set(zeros[1:].tolist()) <= {1, 2}


def test_refinement_is_least_squares():
    x = correlated(300, 20).double()
    hessian = x.T @ x / 300
    torch.manual_seed(0)
    target = torch.randn(5, 20).double()
    mask = torch.rand(5, 20) < 0.5
    values = refine(target * mask, target, mask, hessian, 60)
    for row in range(5):
        keep = mask[row].nonzero()[:, 0]
        expected = torch.linalg.solve(hessian[keep][:, keep], hessian[keep] @ target[row])
        torch.testing.assert_close(values[row, keep], expected, rtol=1e-3, atol=1e-4)
        assert (values[row, ~mask[row]] == 0).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_outputs_follow_the_float_model(name):
    """Inputs differ from the float model's, so the weight that is pruned first moves to make up for it."""
    float_inputs = correlated(1000, 32, 5)
    torch.manual_seed(5)
    inputs = float_inputs @ (torch.eye(32) + 0.15 * torch.randn(32, 32))
    gap = (float_inputs - inputs).T @ inputs / 1000
    weight = torch.randn(24, 32)
    case = problem(SparsityPattern(0.3), weight, inputs)
    with_gap = problem(SparsityPattern(0.3), weight, inputs, input_gap=gap)
    as_output = problem(SparsityPattern(0.3), weight, inputs, output_gap=weight @ gap)
    target = float_inputs @ weight.T

    def error(values) -> float:
        return float((inputs @ values.T - target).square().sum())

    plain = MEMBERS[name].prune(case)
    moved = MEMBERS[name].prune(with_gap, pull=0.01)
    assert error(moved) < 0.7 * error(plain)
    torch.testing.assert_close(moved, MEMBERS[name].prune(as_output, pull=0.01), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", SOLVERS)
def test_layers_of_one_input_share_the_factorization(name):
    case = problem(PATTERNS["half"])
    first = MEMBERS[name].prune(case)
    known = set(case.shared)
    assert known and torch.equal(MEMBERS[name].prune(case), first) and set(case.shared) == known


@pytest.mark.parametrize("name", SOLVERS)
def test_dead_and_equal_inputs(name):
    x = correlated(10, 32)  # fewer rows than inputs
    x[:, 3] = 0
    x[:, 5] = x[:, 4]
    assert torch.isfinite(MEMBERS[name].prune(problem(PATTERNS["half"], x=x))).all()
    assert torch.isfinite(MEMBERS[name].prune(problem(PATTERNS["half"], x=x * 0))).all()


@pytest.mark.parametrize("name", [*SOLVERS, "wanda"])
def test_wrong_problems_are_errors(name):
    member, pattern = MEMBERS[name], PATTERNS["half"]
    with pytest.raises(UsageError, match="32 features"):
        member.prune(problem(pattern, torch.ones(4, 16), correlated(50, 32)))
    if name in SOLVERS:
        x = correlated(50, 32)
        x[0, 0] = torch.inf
        with pytest.raises(DataError, match="layer"):
            member.prune(problem(pattern, x=x))
        with pytest.raises(UsageError, match="damping"):
            member.prune(problem(pattern), damping=0.0)
    for setting, values in (("steps", iterative), ("iterations", alps)):
        with pytest.raises(UsageError, match=setting):
            values.ALGORITHM.prune(problem(pattern), **{setting: -1})
