# SPDX-License-Identifier: Apache-2.0
"""HQQ against the same turns written out block by block, and against all there is."""

import numpy as np
import pytest
import torch

from fewbit.algorithms import hqq, rtn
from fewbit.algorithms._base import Problem
from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 16}
FREE = Grid(Dtype.uint3, **GROUP, symmetric=False, float_zero=True)
WHOLE = Grid(Dtype.uint3, **GROUP, symmetric=False)
MIDDLE = Grid(Dtype.int3, **GROUP)


def heavy(*shape, seed=0):
    draw = np.random.default_rng(seed).standard_t(4, shape)
    return torch.tensor(draw, dtype=torch.float32) * 0.02


def problem(weight, grid, **more):
    return Problem(weight, grid, grid.weight_block(tuple(weight.shape)), **more)


def by_hand(w, grid, step, zero, p=0.7, turns=20):
    """One block in float64: the best zero point and step of all turns, by the sum of |w - ŵ|^p."""
    lowest, highest, unit = grid.dtype.lowest, grid.dtype.highest, step

    def rounded():
        steps = w.astype(np.float32) / np.float32(step)  # as codes are defined: the largest may lie midway
        free = np.round(steps + np.float32(zero)) if grid.free_zero else np.round(steps) + zero
        return np.clip(free, lowest, highest).astype(np.float64) - zero

    def norm(codes):
        return (np.abs(w - step * codes) ** p).sum() / unit**p

    codes = rounded()
    best = (norm(codes), step, zero)
    for turn in range(turns):
        off = (w - step * codes) / unit
        size = np.abs(off)
        with np.errstate(divide="ignore"):
            let_go = np.sign(off) * np.maximum(size - size ** (p - 1) / (10 * 1.01**turn), 0)
        aim = w - let_go * unit
        if grid.asymmetric:
            moved = np.mean(codes - aim / step)
            if not grid.free_zero:
                moved = np.clip(np.round(zero + moved), lowest, highest) - zero
            zero, codes = zero + moved, codes - moved
        if (codes**2).sum() > 0 and (codes * aim).sum() > 0:
            step = (codes * aim).sum() / (codes**2).sum()
        codes = rounded()
        best = min(best, (norm(codes), step, zero), key=lambda each: each[0])
    return best


@pytest.mark.parametrize("grid", [FREE, WHOLE, MIDDLE], ids=["free zero", "whole zero", "zero in the middle"])
def test_as_by_hand(grid):
    w = heavy(6, 40)
    case = problem(w, grid)
    plain, found = rtn.qparams(case), hqq.solve(case)
    scales, zeros = found.qtensor.qparams.scale, found.qtensor.qparams.zero_point
    before = after = 0.0
    for row in range(6):
        for group, start in enumerate(range(0, 40, 16)):
            block = w[row, start : start + 16].double().numpy()
            step = float(plain.scale[row, group])
            zero = 0.0 if plain.zero_point is None else float(plain.zero_point[row, group])
            first, _, _ = by_hand(block, grid, step, zero, turns=0)
            norm, wanted_step, wanted_zero = by_hand(block, grid, step, zero)
            got = float(scales[row, group]), 0.0 if zeros is None else float(zeros[row, group])
            if got == (step, zero):  # plain rounding loses less of the squares, or no turn was better
                after += first * step**0.7
            else:
                assert got == pytest.approx((wanted_step, wanted_zero), rel=1e-4)
                after += norm * step**0.7
            before += first * step**0.7
    assert after < 0.97 * before
    assert found.facts["p_error"] < 0.97 * found.facts["p_error_rtn"]
    assert 0.3 < found.facts["won"] <= 1


@pytest.mark.parametrize("grid", [FREE, MIDDLE], ids=["free zero", "zero in the middle"])
def test_beside_all_there_is(grid):
    """No scale of a fine net is better by much, on the whole; plain rounding is worse than most of the best."""
    w = heavy(24, 16, seed=1)
    found = hqq.solve(problem(w, grid)).qtensor
    ours = (found.dequantize() - w).abs().double().pow(0.7).sum(1)
    plain = (rtn.solve(problem(w, grid)).qtensor.dequantize() - w).abs().double().pow(0.7).sum(1)
    best = plain.clone()
    span, middle = w.amax(1) - w.amin(1), (w.amax(1) + w.amin(1)) / 2
    for share in np.linspace(0.3, 1.1, 80):
        for shift in np.linspace(-0.25, 0.25, 41) if grid.free_zero else (0.0,):
            step = (span * share / 7 if grid.free_zero else w.abs().amax(1) * share / 3.5)[:, None].double()
            zero = 3.5 - ((middle + span * shift)[:, None] / step) if grid.free_zero else torch.zeros_like(step)
            codes = (w.double() / step + zero).round().clamp(grid.dtype.lowest, grid.dtype.highest)
            best = torch.minimum(best, ((codes - zero) * step - w).abs().pow(0.7).sum(1))
    assert (ours.sum() - best.sum()) < 0.6 * (plain.sum() - best.sum())


def test_weights_of_any_size():
    """Errors are measured in steps: a power of two changes nothing but the scales."""
    w = heavy(5, 48)
    one = hqq.solve(problem(w, FREE)).qtensor
    for size in (2.0**-20, 2.0**30):
        other = hqq.solve(problem(w * size, FREE)).qtensor
        assert torch.equal(other.codes(), one.codes())
        assert torch.equal(other.qparams.scale, one.qparams.scale * size)


def test_importance_and_samples_kept_aside_only_judge():
    w = heavy(8, 64)
    h = torch.rand(1, 64, generator=torch.Generator().manual_seed(3)) ** 4
    alone, judged = hqq.solve(problem(w, MIDDLE)), hqq.solve(problem(w, MIDDLE, importance=h, held_out=h.flip(1)))
    plain = rtn.qparams(problem(w, MIDDLE)).scale
    one, other = alone.qtensor.qparams.scale, judged.qtensor.qparams.scale
    both = (one != plain) & (other != plain)
    assert both.any() and torch.equal(one[both], other[both])  # the same was found, and kept or not
    assert 0 < judged.facts["won"] < alone.facts["won"]
    assert judged.facts["held_out_error"] <= judged.facts["held_out_error_rtn"]


def test_threads(threads):
    w = heavy(96, 4096, seed=2)
    threads(lambda: hqq.solve(problem(w, FREE)).qtensor.dequantize())


@pytest.mark.parametrize("grid", [FREE, MIDDLE, Grid(Dtype.int4, **GROUP, scale_type=ScaleType.float16)])
@pytest.mark.parametrize("weight", [torch.zeros(3, 16), torch.full((3, 16), 0.7), torch.zeros(0, 16)])
def test_one_number_comes_back(weight, grid):
    found = hqq.solve(problem(weight, grid))
    torch.testing.assert_close(found.qtensor.dequantize(), weight, rtol=1e-3, atol=0)


def test_what_cannot_be():
    with pytest.raises(UsageError, match=r"p=1\.5"):
        hqq.solve(problem(heavy(2, 16), FREE), p=1.5)
    with pytest.raises(DataError, match="not finite"):
        hqq.solve(problem(torch.full((2, 16), torch.nan), FREE))
