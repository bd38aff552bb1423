# SPDX-License-Identifier: Apache-2.0
"""SparseGPT: against the textbook loop, brute force and least squares, and what it promises."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch

from algorithms.pruning import FLOAT, inputs, off, problem, seen
from fewbit.algorithms import _support, _support_columns, alps, magnitude, scale_search, sparse_gpt, stepwise, wanda
from fewbit.algorithms._answers import Answers
from fewbit.algorithms._base import Problem
from fewbit.algorithms._columns import Columns
from fewbit.algorithms._compensation import Compensation, Effort
from fewbit.algorithms._moment import moment
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms._sparse_columns import SparseColumns
from fewbit.algorithms._support import refined
from fewbit.algorithms._support_columns import rounded_on_support
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.sparsity import Pattern, count

INT3 = Grid(Dtype.int3, QSchemeType.per_group, group_size=16)


def fitted(weight, gram, support):
    """Least squares on a support, by a solver that knows nothing of it: the factor of H as a design."""
    design = torch.linalg.cholesky(gram).T
    found = torch.zeros_like(weight)
    found[support] = torch.linalg.lstsq(design[:, support], (design @ weight)[:, None]).solution[:, 0]
    return found


def damped(case, damping=0.01):
    gram = case.statistics["gram"]["gram"].double() / case.statistics["gram"]["count"]
    return gram + damping * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)


def test_what_is_kept_is_refined_to_least_squares():
    case = problem(Pattern(0.5), shape=(6, 20))
    gram, mask = damped(case), torch.rand(6, 20, generator=torch.Generator().manual_seed(1)) > 0.5
    mask[0] = False  # a row of zeros stays one
    found = refined(torch.zeros(6, 20), case.weight, mask, gram.float(), 60)
    for row, support, ours in zip(case.weight.double(), mask, found.double()):
        wanted = fitted(row, gram, support) if bool(support.any()) else torch.zeros(20, dtype=torch.float64)
        assert torch.allclose(ours, wanted, atol=2e-3)
        assert not ours[~support].any()


def test_every_step_of_refining_helps():
    case = problem(Pattern(0.5), shape=(6, 20))
    gram, mask = damped(case).float(), torch.rand(6, 20, generator=torch.Generator().manual_seed(1)) > 0.5
    losses = []
    for steps in range(8):
        lost = refined(case.weight * mask, case.weight, mask, gram, steps) - case.weight
        losses.append(((lost @ gram) * lost).sum(1))
    assert all(bool((b <= a * (1 + 1e-5)).all()) for a, b in pairwise(losses))
    assert losses[-1].sum() < 0.6 * losses[0].sum()


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_steps_beyond_the_best_values_change_nothing(seed, monkeypatch):
    """Where nobody asks whether all rows are there, as on a GPU; without a hold these rows grow to 1e38."""
    monkeypatch.setattr(_support, "_asks", lambda device: False)
    draws = [torch.Generator().manual_seed(1000 * part + seed) for part in range(3)]
    x, weight = torch.randn(50, 64, generator=draws[0]), torch.randn(16, 64, generator=draws[1])
    gram, mask = x.T @ x + 0.01 * torch.eye(64), torch.rand(16, 64, generator=draws[2]) > 0.5
    losses = []
    for steps in (100, 2000):
        lost = refined(weight * mask, weight, mask, gram, steps) - weight
        losses.append(float(((lost @ gram) * lost).sum()))
    assert losses[1] <= losses[0] * (1 + 1e-4)


@pytest.mark.parametrize("pattern", [Pattern.read("2:4"), Pattern(0.5, by_row=True)], ids=["2:4", "half"])
def test_the_sweep_is_the_textbook_one(pattern):
    """Group after group by w² / [H⁻¹]ⱼⱼ of the columns left, each solved for anew; without any factorization."""
    case = problem(pattern, seed=2, shape=(5, 12))
    gram, matrix = damped(case), Matrix(case)
    known = moment(matrix.flat, Answers(matrix.flat), torch.arange(12), 0.01)
    plan = matrix.kept(case.weight.abs())
    held = torch.ones_like(plan)
    values, mask = SparseColumns(case.weight, matrix.float_units(5), known, plan, held, pattern, 12).pruned()

    left, keep = case.weight.double().clone(), torch.ones(5, 12, dtype=torch.bool)
    for at in range(12):
        rest = torch.arange(at, 12)
        if at % (pattern.of or 12) == 0:
            group = torch.arange(at, at + (pattern.of or 12))
            # What a column costs when it is reached: only those after it are left to make up for it.
            sizes = torch.stack([1 / torch.linalg.inv(gram[k:, k:])[0, 0] for k in group.tolist()])
            order = (left[:, group].square() * sizes).argsort(1, descending=True)
            keep[:, group] = False
            keep.scatter_(1, group[order[:, : pattern.keep or 6]], True)
        lost = left[:, at] * ~keep[:, at]
        inverse = torch.linalg.inv(gram[rest][:, rest])
        left[:, rest] -= (lost / inverse[0, 0])[:, None] * inverse[0]
    assert torch.equal(mask, keep)
    assert torch.allclose(values.double(), left * keep, atol=1e-3)


def brute(weight, gram, keep):
    """What every mask of one row loses, weights fitted to it."""
    losses = {}
    for chosen in combinations(range(len(weight)), keep):
        lost = fitted(weight, gram, torch.tensor([at in chosen for at in range(len(weight))])) - weight
        losses[chosen] = float(lost @ gram @ lost)
    return losses


@pytest.mark.parametrize(
    ("solver", "often"), [(sparse_gpt, 8), (alps, 20), (stepwise, 12)], ids=["sparse_gpt", "alps", "stepwise"]
)
def test_of_all_masks_nearly_the_best(solver, often):
    """3 of 6 in thirty rows: the best mask this often, and all in all within a factor; fitted to its mask always."""
    hits, ours, bests = 0, 0.0, 0.0
    for seed in range(30):
        case = replace(problem(Pattern(0.5), seed, (1, 6)), held_out=None, held_out_statistics={})
        gram, weight = damped(case, 1e-6), case.weight[0].double()
        losses, found = brute(weight, gram, 3), solver.solve(case, damping=1e-6, apart=0.0)
        lost = found.qtensor.dequantize()[0].double() - weight
        loss, best = float(lost @ gram @ lost), min(losses.values())
        assert loss >= best * (1 - 1e-3)
        if not found.facts["won"]["magnitude"]:
            assert loss <= losses[tuple(found.qtensor.dequantize()[0].nonzero()[:, 0].tolist())] * 1.001
        hits, ours, bests = hits + (loss <= best * 1.001), ours + loss, bests + best
    assert hits >= often and ours <= (1.5 if solver is alps else 2) * bests


@pytest.mark.parametrize("pattern", [Pattern(0.5), Pattern.read("2:4"), Pattern(0.75)], ids=lambda p: p.text)
def test_the_more_is_known_the_less_is_lost(pattern):
    """Over seeds, on what was kept aside: magnitude, Wanda, SparseGPT, ALPS."""
    means = []
    for solver in (magnitude, wanda, sparse_gpt, alps):
        cases = [problem(pattern, seed, (24, 48), positions=(512, 256)) for seed in range(5)]
        means.append(sum(solver.solve(case).facts["held_out_output_error"] for case in cases))
    assert means == sorted(means, reverse=True)
    assert means[2] < 0.85 * means[0] and means[3] < 0.9 * means[2]


@pytest.mark.parametrize("solver", [sparse_gpt, alps, stepwise], ids=["sparse_gpt", "alps", "stepwise"])
@pytest.mark.parametrize("pattern", [Pattern(0.5), Pattern.read("2:4")], ids=lambda p: p.text)
def test_codes_and_zeros_found_together_beat_zeros_and_then_codes(solver, pattern):
    """The float result rounded afterwards, with scales searched for it: never nearer, and farther all in all."""
    costs = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        case = problem(pattern, seed, (16, 48), INT3, positions=(1024, 512))
        apart = solver.solve(replace(case, grid=FLOAT, block=(16, 48), shared={})).qtensor.dequantize()
        then = scale_search.solve(Problem(apart, INT3, case.block, case.importance, case.held_out)).qtensor
        together = solver.solve(case).qtensor
        codes = together.codes()
        assert int(codes.min()) >= -4 and int(codes.max()) <= 3
        assert int((codes == 0).sum()) >= count(pattern.share, codes.numel())
        ours, theirs = (off(case, q.dequantize(), aside=True).sum() for q in (together, then))
        assert ours <= theirs * (1 + 1e-4)
        costs += torch.stack([ours, theirs]) - off(case, apart, aside=True).sum()
    assert costs[0] < 0.85 * costs[1]  # of what rounding costs beside the zeros


def test_runs_make_up_for_what_those_before_them_lost(monkeypatch):
    """One run over all columns is the plain loop; several, with what is left refined between them, lose less."""
    losses = {}
    for seed in range(4):
        case = problem(Pattern(0.5), seed, (8, 150), INT3, positions=(600, 100))
        matrix = Matrix(case)
        known = moment(matrix.flat, Answers(matrix.flat), torch.arange(150), 0.01)
        mask = matrix.kept(case.weight.abs())
        values = refined(case.weight * mask, case.weight, mask, known.gram, 60)
        scales = matrix.on_grid(values).qparams
        plain = Columns(values, scales, known.order, known.feedback, 0.0, mask).rounded()
        for width in (1000, 32):
            monkeypatch.setattr(_support_columns, "_WIDTH", width)
            codes = rounded_on_support(values, case.weight, mask, scales, known)
            assert width == 32 or torch.equal(codes, plain)
            off_by = QTensor.from_codes(codes, scales).dequantize() - case.weight
            losses[width] = losses.get(width, 0.0) + float(((off_by @ known.gram) * off_by).sum())
            assert not codes[~mask].any()
    assert losses[32] < losses[1000]


@pytest.mark.parametrize("solver", [sparse_gpt, alps, stepwise], ids=["sparse_gpt", "alps", "stepwise"])
def test_the_wanted_answers_and_not_the_weight_are_what_counts(solver):
    """A layer whose inputs are off by a known factor makes up for it beside its own zeros."""
    case = problem(Pattern(0.3), shape=(8, 24), positions=(2048, 512), wanted=lambda x, w: x @ (1.3 * w).T)
    blind = problem(Pattern(0.3), shape=(8, 24), positions=(2048, 512))
    ours, theirs = (solver.solve(each, pull=1e-4).qtensor.dequantize() for each in (case, blind))
    aim = replace(case, weight=1.3 * case.weight)
    assert off(aim, ours, aside=True).sum() < 0.6 * off(aim, theirs, aside=True).sum()
    assert solver.solve(case).facts["held_out_output_error_saved"] > 0.02


def test_a_pull_that_is_strong_keeps_it_where_it_was():
    case = problem(Pattern(0.5), wanted=lambda x, w: x @ (2 * w).T)
    far, near = (sparse_gpt.solve(replace(case, shared={}), pull=pull).qtensor.dequantize() for pull in (1e-4, 1e4))
    assert off(case, near).sum() < off(case, far).sum()


@pytest.mark.parametrize("solver", [sparse_gpt, alps, stepwise], ids=["sparse_gpt", "alps", "stepwise"])
def test_parameters_are_checked(solver):
    for wrong in ({"damping": 0.0}, {"pull": -1.0}, {"damping": float("nan")}, {"refine": -1}, {"sweeps": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            solver.solve(problem(Pattern(0.5)), **wrong)
    with pytest.raises(UsageError, match="turns"):
        alps.solve(problem(Pattern(0.5)), turns=-1)


def test_what_is_known_of_an_input_is_found_once():
    shared = {}
    first = replace(problem(Pattern(0.5)), shared=shared)
    alone = sparse_gpt.solve(problem(Pattern(0.5))).qtensor.dequantize()
    for _ in range(2):
        assert torch.equal(sparse_gpt.solve(first).qtensor.dequantize(), alone)
    keys = set(shared)
    alps.solve(first)
    assert keys < set(shared) and len(keys) == 1


def test_moments_that_are_not_finite_are_left_alone():
    x = inputs(0, 50, 24)
    x[3, 4] = float("inf")
    case = replace(problem(Pattern(0.5)), statistics=seen(x), held_out_statistics={})
    found = sparse_gpt.solve(case)
    assert "not finite" in found.facts["fallback"] and found.facts["zeros"] == 144


@pytest.mark.parametrize("block", ["1x4", "4x1", "2x2"])
def test_blocks_with_zeros_in_their_corners_are_counted_as_blocks(block):
    """A block is kept for any of its elements; the first of them may be zero already."""
    pattern = Pattern.read(block, 0.25)
    case = problem(pattern, seed=1, shape=(32, 64))
    holes = torch.rand(case.weight.shape, generator=torch.Generator().manual_seed(2)) < 0.2
    tall, wide = pattern.block
    matrix = Matrix(replace(case, weight=case.weight.masked_fill(holes, 0.0)))
    work = Compensation(matrix, Effort(damping=0.01, pull=0.1, refine=0, sweeps=0))
    mask, _ = sparse_gpt._swept(work)
    gone = (~mask).reshape(32 // tall, tall, 64 // wide, wide).all(3).all(1)
    assert int(gone.sum()) == 128 and not mask[holes].any()


@pytest.mark.parametrize("solver", [sparse_gpt, alps, stepwise])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_few_stray_zeros_are_not_filled_and_count(solver, share):
    """Fewer than one in a thousand: nobody pruned the weight, and what is zero is so all the same."""
    case = problem(Pattern(share), seed=3, shape=(80, 64), wanted=lambda x, w: x @ (w + 0.3).T)
    strays = torch.zeros_like(case.weight, dtype=torch.bool)
    strays.view(-1)[[7, 1900, 4001, 5000]] = True
    found = solver.solve(replace(case, weight=case.weight.masked_fill(strays, 0.0)))
    values = found.qtensor.dequantize()
    assert not values[strays].any()
    assert int((values == 0).sum()) == count(share, values.numel()) == found.facts["zeros"]


def test_features_taken_apart_are_weighed_by_what_they_give_alone():
    """All the way apart nothing makes up for anything, and the zeros are those of Wanda."""
    case = problem(Pattern(0.5), seed=4, shape=(10, 32))
    alone = stepwise.solve(case, apart=1.0, damping=1e-9, steps=1).qtensor.dequantize()
    plain = wanda.solve(replace(case, importance=case.statistics["gram"]["gram"].diagonal()[None])).qtensor.dequantize()
    assert torch.equal(alone != 0, plain != 0) and torch.allclose(alone, plain, atol=1e-5)


def test_features_in_other_company_are_answered_better_by_weights_found_apart():
    """Judged on inputs whose features are as large as those that were seen, and go together otherwise."""
    losses = dict.fromkeys((0.0, 0.5), 0.0)
    for seed in range(6):
        case = replace(problem(Pattern(0.5), seed, (16, 48)), held_out=None, held_out_statistics={})
        there, sizes = inputs(seed + 50, 2000, 48), case.statistics["gram"]["gram"].diagonal() / 256
        judge = replace(case, statistics=seen(there * (sizes / there.square().mean(0)).sqrt()))
        for apart in losses:
            found = stepwise.solve(replace(case, shared={}), apart=apart).qtensor.dequantize()
            losses[apart] += float(off(judge, found).sum())
    assert losses[0.5] < 0.9 * losses[0.0]


@pytest.mark.parametrize("share", [0.5, 0.3, 0.55])
def test_zeros_in_steps_are_dealt_evenly_and_never_come_back(share):
    case = problem(Pattern(share), seed=5, shape=(10, 33))
    shares = [each.share for each in stepwise.growing(Pattern(share), 8)]
    assert shares == sorted(shares) and shares[-1] == share and len(shares) == 8
    zeros = (stepwise.solve(case).qtensor.dequantize() == 0).sum(1)
    assert int(zeros.sum()) == count(share, 330) and int(zeros.max() - zeros.min()) <= 1
