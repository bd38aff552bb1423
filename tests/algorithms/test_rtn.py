# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import pytest
import torch

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem
from fewbit.algorithms._error import errors
from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from fewbit.observers._base import observer_class
from fewbit.observers.min_max import MinMaxObserver

GROUPS = Grid(Dtype.int4, QSchemeType.per_group, group_size=32)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def problem(weight, grid=GROUPS, **more):
    return Problem(weight, grid, grid.weight_block(tuple(weight.shape)), **more)


@pytest.mark.parametrize("side", [64, 70, 31])
def test_int4_by_hand(side):
    w = normal(3, side)
    found = rtn.solve(problem(w)).qtensor.dequantize()
    for row, decoded in zip(w, found):
        for start in range(0, side, 32):
            group = row[start : start + 32]
            step = group.abs().max() / 7.5
            by_hand = torch.clamp(torch.round(group / step), -8, 7) * step
            assert torch.equal(decoded[start : start + 32], by_hand)


def test_asymmetric_by_hand():
    w = normal(4, 16) + 0.5
    grid = Grid(Dtype.uint8, QSchemeType.per_channel, symmetric=False)
    found = rtn.solve(problem(w, grid)).qtensor
    low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
    step = (high - low) / 255
    torch.testing.assert_close(found.qparams.scale[:, 0], step)
    torch.testing.assert_close(found.zero_point[:, 0].float(), torch.round(-low / step))
    assert (found.dequantize() - w).abs().max() <= step.max() * 0.501


@pytest.mark.parametrize("observer, parameters", [("percentile", {"percentile": 90.0}), ("mse", {})])
def test_a_short_last_group_is_observed_by_itself(observer, parameters):
    """Padding it with zeros would move every percentile."""
    w = normal(2, 40) + 3
    make = observer_class(observer)(**parameters)
    make.observe(w[:, 32:])
    low, high = make.range(GROUPS)
    alone = rtn.qparams(Problem(w[:, 32:], GROUPS, (1, 8)), observer, parameters)
    whole = rtn.qparams(problem(w), observer, parameters)
    assert torch.equal(whole.scale[:, 1:], alone.scale)
    torch.testing.assert_close(alone.scale[:, 0], torch.maximum(-low, high) / 7.5)


def test_the_range_of_an_observer_clips():
    w = torch.cat([torch.linspace(-1, 1, 255), torch.tensor([100.0])]).reshape(1, -1)
    grid = Grid(Dtype.int8, QSchemeType.per_channel)
    plain, clipped = rtn.qparams(problem(w, grid)), rtn.qparams(problem(w, grid), "percentile", {"percentile": 99.0})
    assert clipped.scale < plain.scale


def test_facts_are_what_the_codes_say():
    w, h, aside = normal(8, 70), normal(1, 70, seed=1).square(), normal(1, 70, seed=2).square()
    found = rtn.solve(problem(w, importance=h, held_out=aside))
    off = (found.qtensor.dequantize() - w).double().square()
    assert found.facts["error"] == pytest.approx(float((off * h).sum() / (w.double().square() * h).sum()), rel=1e-5)
    assert found.facts["held_out_error"] == pytest.approx(
        float((off * aside).sum() / (w.double().square() * aside).sum()), rel=1e-5
    )


def test_it_rounds_the_whole_weight_at_once_too():
    w = normal(5, 3, 70)
    grid = GROUPS.replace(axis=1)
    found = rtn.solve(problem(w, grid))
    assert torch.equal(found.qtensor.packed, QTensor.encode(w, rtn.qparams(problem(w, grid))).packed)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["weight", "importance", "held_out"])
def test_what_is_not_finite_is_named(field, bad):
    tensors = {"weight": normal(3, 64), "importance": torch.ones(1, 64), "held_out": torch.ones(1, 64)}
    tensors[field][-1, 7] = bad
    weight = tensors.pop("weight")
    with pytest.raises(
        DataError, match=rf"1 of .* values of the {field} .* at \[{len(weight) - 1 if field == 'weight' else 0}, 7\]"
    ) as error:
        rtn.solve(problem(weight, name="model.fc1.weight", **tensors))
    assert error.value.where == "model.fc1.weight"


def test_shapes_that_do_not_fit():
    with pytest.raises(UsageError, match="block of shape"):
        rtn.solve(Problem(normal(3, 64), GROUPS, (64,)))
    with pytest.raises(UsageError, match="importance of shape"):
        rtn.solve(problem(normal(3, 64), importance=torch.ones(3)))
    with pytest.raises(UsageError, match="held_out of shape"):
        rtn.solve(problem(normal(3, 64), held_out=torch.ones(1, 1, 3, 64)))


def test_an_observer_without_a_range():
    with pytest.raises(UsageError, match="says no range") as error:
        rtn.solve(problem(normal(3, 64), name="fc1.weight"), observer="moments")
    assert error.value.where == "fc1.weight" and "min_max" in error.value.expected


NVFP4 = Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)


@pytest.mark.parametrize("observer", ["mse", "entropy", "percentile", "min_max"])
def test_ranges_are_searched_under_the_scale_that_is_kept(observer, monkeypatch):
    """Tiles of very different sizes: each would take its own largest value for that of the whole weight."""
    w = normal(12, 64) * torch.logspace(0, 3, 12)[:, None]
    parameters = {"bins": 128, "candidates": 9} if observer in ("mse", "entropy") else {}
    whole = rtn.qparams(problem(w, NVFP4), observer, parameters)
    monkeypatch.setattr(rtn, "_BLOCKS", 4)  # a tile is one row
    tiled = rtn.qparams(problem(w, NVFP4), observer, parameters)
    assert torch.equal(tiled.super_scale, rtn.qparams(problem(w, NVFP4)).super_scale)
    assert torch.equal(tiled.super_scale, whole.super_scale) and torch.equal(tiled.scale, whole.scale)


def test_the_mse_of_many_tiles_is_nowhere_above_that_of_min_max(monkeypatch):
    # Of 2^14 and more, so that scales of the first rows are among the few that e4m3 has near zero.
    w = normal(16, 64) * torch.logspace(0, 4.3, 16)[:, None]
    monkeypatch.setattr(rtn, "_BLOCKS", 8)
    case = problem(w, NVFP4)
    (searched,), (plain,) = errors(case, rtn.qparams(case, "mse"), rtn.qparams(case))
    assert (searched <= 1.02 * plain).all()  # a histogram knows values up to a bin's width
    assert searched.sum() < 0.97 * plain.sum()


def test_no_observer_has_more_blocks_than_memory_for_their_histograms():
    """On a device too; `meta` is one that every machine has."""
    rows = []

    @dataclass(kw_only=True, eq=False)
    class Counting(MinMaxObserver):
        name = "counting"

        def measure(self, x):
            rows.append(len(x))
            return super().measure(x)

    count = 100_000
    found = rtn.qparams(Problem(torch.empty(count, 16, device="meta"), GROUPS, (1, 16)), Counting)
    assert found.scale.shape == (count, 1) and sum(rows) == count and len(rows) > 1
    assert max(rows) * 2051 * 8 < 300e6  # bytes of 2048 bins and three more


@pytest.mark.parametrize("power", [-100, -30, 30, 120])
def test_the_same_errors_at_any_magnitude(power):
    """The square of 1e20 is no float32, nor is that of 1e-30."""
    w, h = normal(4, 64), normal(1, 64, seed=1).square()
    for grid in (GROUPS, GROUPS.replace(dtype=Dtype.int2, scale_type=ScaleType.float8_e8m0fnu)):
        plain, scaled = (rtn.solve(problem(x, grid, importance=h)).facts for x in (w, w * 2.0**power))
        assert plain == scaled


def test_codes_are_judged_as_they_are():
    """And not what their scales would make of the weight."""
    w = normal(4, 64)
    case = problem(w)
    solved = rtn.solve(case).qtensor
    other = QTensor.from_codes(solved.codes().roll(1, 0), solved.qparams)
    same, moved, plain = errors(case, solved, other, solved.qparams)
    assert torch.equal(same, plain)
    by_hand = (other.dequantize() - w).square().reshape(8, 32).sum(1)
    torch.testing.assert_close(moved[0], by_hand)
    assert (moved > plain).all()


def test_an_empty_weight():
    found = rtn.solve(problem(torch.zeros(0, 64))).qtensor
    assert found.dequantize().shape == (0, 64)
