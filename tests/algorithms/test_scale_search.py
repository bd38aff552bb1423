# SPDX-License-Identifier: Apache-2.0
"""The search against the exact optimum, against plain rounding, and on odd weights."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import _error, _sums, rtn, scale_search
from fewbit.algorithms._base import Problem
from fewbit.algorithms._error import errors, relative
from fewbit.errors import DataError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType, load_scale, round_scale


def generator(seed):
    return torch.Generator().manual_seed(seed)


def heavy(*shape, seed=0):
    """Student's t with five degrees of freedom, and a little off zero: tails like those of trained weights."""
    draw = generator(seed)
    squares = sum(torch.randn(shape, generator=draw).square() for _ in range(5))
    return torch.randn(shape, generator=draw) / (squares / 5).sqrt() + 0.05


def importances(features, spread=1.0, seed=5):
    return torch.exp(spread * torch.randn(1, features, generator=generator(seed)))


def grid_of(kind, bits, group=-1, **more):
    """`sym`, `full` (range) or `asym`, in groups or by channel."""
    granularity = QSchemeType.per_group if group > 0 else QSchemeType.per_channel
    dtype = Dtype[f"{'u' if kind == 'asym' else ''}int{bits}"]
    return Grid(dtype, granularity, group_size=group, symmetric=kind != "asym", full_range=kind == "full", **more)


def problem(weight, grid, **more):
    return Problem(weight, grid, grid.weight_block(tuple(weight.shape)), **more)


def squared(weight, qtensor, h=None):
    """Σ h (w - ŵ)² of every row, in float64."""
    off = (qtensor.dequantize() - weight).double().square()
    return (off if h is None else off * h).sum(1)


# ---- against the exact optimum --------------------------------------------------------------------------------


def optimum(w, lowest, highest, h=None):
    """The least Σ h (w - s q)² of every row over all s > 0 and all codes q, exactly.

    As 1 / s grows, codes change one at a time, where |w| / s passes a half. Sorting these places and adding up what
    each change does to Σ h q w and Σ h q² visits every set of codes that any s can give.
    """
    w = w.double()
    h = torch.ones_like(w) if h is None else h.double().expand_as(w)
    size = w.abs().clamp(min=1e-300)
    level = torch.arange(1, max(highest, -lowest) + 1, dtype=torch.float64)
    beyond = level > torch.where(w > 0, highest, -lowest).unsqueeze(-1)
    at = ((level - 0.5) / size.unsqueeze(-1)).masked_fill(beyond, torch.inf).flatten(1)
    adds_qw = (h * size).unsqueeze(-1).expand(*w.shape, len(level)).masked_fill(beyond, 0).flatten(1)
    adds_qq = (h.unsqueeze(-1) * (2 * level - 1)).masked_fill(beyond, 0).flatten(1)
    order = at.argsort(1)
    qw, qq = adds_qw.gather(1, order).cumsum(1), adds_qq.gather(1, order).cumsum(1)
    return (h * w.square()).sum(1) - (qw.square() / qq.clamp(min=1e-300)).amax(1)


def optimum_of(kind, bits, w, h=None):
    half, top = 1 << (bits - 1), (1 << bits) - 1
    if kind == "asym":
        return torch.stack([optimum(w, -zero, top - zero, h) for zero in range(top + 1)]).amin(0)
    plus = optimum(w, -half, half - 1, h)
    return torch.minimum(plus, optimum(-w, -half, half - 1, h)) if kind == "full" else plus


def test_the_optimum_is_one():
    """The oracle itself, against a scan over thousands of scales."""
    w = heavy(6, 16)
    best = optimum(w, -4, 3)
    scales = torch.linspace(0.02, 3, 4000).double().reshape(-1, 1, 1)
    codes = (w.double() / scales).round().clamp(-4, 3)
    scan = (w - codes * scales).square().sum(-1).amin(0)
    assert (best <= scan + 1e-12).all()
    torch.testing.assert_close(best, scan, rtol=2e-3, atol=0)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("kind", ["sym", "full", "asym"])
def test_it_comes_close_to_the_optimum(kind, bits, group):
    w = heavy(64, group, seed=bits)
    found = squared(w, scale_search.solve(problem(w, grid_of(kind, bits))).qtensor)
    best = optimum_of(kind, bits, w)
    assert (found >= best * (1 - 1e-5)).all()
    assert found.sum() <= best.sum() * 1.01


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("kind", ["sym", "full", "asym"])
def test_it_comes_close_with_importance(kind, bits):
    w, h = heavy(64, 64, seed=bits), importances(64)
    found = squared(w, scale_search.solve(problem(w, grid_of(kind, bits), importance=h)).qtensor, h)
    assert found.sum() <= optimum_of(kind, bits, w, h).sum() * 1.02


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_it_comes_close_on_skewed_weights(bits):
    w = heavy(48, 64, seed=bits).abs() ** 1.3 - 0.1
    found = squared(w, scale_search.solve(problem(w, grid_of("asym", bits))).qtensor)
    assert found.sum() <= optimum_of("asym", bits, w).sum() * 1.02


@pytest.mark.parametrize("bits", [2, 3])
def test_it_comes_close_with_a_free_zero_point(bits):
    """Against the best line through the codes of many thousands of ranges."""
    w = heavy(12, 24, seed=bits) + 0.3
    found = squared(w, scale_search.solve(problem(w, grid_of("asym", bits, float_zero=True))).qtensor)
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    best, ends = torch.full((12,), torch.inf, dtype=torch.float64), torch.linspace(0, 1, 90)
    for start, stop in itertools.combinations(ends.tolist(), 2):
        bottom, top = low + start * (high - low), low + stop * (high - low)
        codes = ((w - bottom) / (top - bottom) * ((1 << bits) - 1)).round().clamp(0, (1 << bits) - 1).double()
        x, y = codes - codes.mean(1, keepdim=True), w - w.double().mean(1, keepdim=True)
        left = y.square().sum(1) - (x * y).sum(1).square() / x.square().sum(1).clamp(min=1e-9)
        best = torch.minimum(best, left)
    assert found.sum() <= best.sum() * 1.02


@pytest.mark.parametrize("kind, most", [("sym", 1.02), ("full", 1.025)])
def test_it_comes_close_where_few_elements_matter(kind, most):
    """The best scale may then lie far from the one of plain rounding."""
    w, h = heavy(64, 32, seed=1), importances(32, 2.0)
    found = squared(w, scale_search.solve(problem(w, grid_of(kind, 4), importance=h)).qtensor, h)
    assert found.sum() <= optimum_of(kind, 4, w, h).sum() * most


@pytest.mark.parametrize("scale_type", [ScaleType.pof2, ScaleType.float8_e8m0fnu])
@pytest.mark.parametrize("dtype", [Dtype.int4, Dtype.fp4, Dtype.int8])
def test_powers_of_two_are_the_best_ones(dtype, scale_type):
    """Every exponent tried."""
    w = heavy(64, 32)
    grid = Grid(dtype, QSchemeType.per_channel, scale_type=scale_type)
    found = squared(w, scale_search.solve(problem(w, grid)).qtensor)
    base = rtn.qparams(problem(w, grid))
    tried = [fake_quantize(w, _scaled(base, 2.0**power)) for power in range(-6, 5)]
    best = torch.stack([(each - w).double().square().sum(1) for each in tried]).amin(0)
    torch.testing.assert_close(found, best, rtol=1e-6, atol=0)


def test_nvfp4_scales_are_nearly_the_best_ones():
    """Every one of the 126 positive scales tried under the same super scale."""
    w = heavy(64, 16)
    grid = Grid(Dtype.fp4, QSchemeType.per_channel, scale_type=ScaleType.float8_e4m3fn)
    solution = scale_search.solve(problem(w, grid))
    base = rtn.qparams(problem(w, grid))
    assert torch.equal(solution.qtensor.super_scale, base.super_scale)
    codes = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    tried = [fake_quantize(w, _scaled(base, code / base.scale)) for code in codes]
    best = torch.stack([(each - w).double().square().sum(1) for each in tried]).amin(0).sum()
    assert best * (1 - 1e-6) <= squared(w, solution.qtensor).sum() <= best * 1.005


def _scaled(qparams, factor):
    return replace(qparams, scale=qparams.scale * factor)


def test_a_free_zero_point_is_not_worse_than_a_rounded_one():
    w = heavy(64, 64)
    grid = grid_of("asym", 3)
    rounded = squared(w, scale_search.solve(problem(w, grid)).qtensor).sum()
    free = squared(w, scale_search.solve(problem(w, grid.replace(float_zero=True))).qtensor).sum()
    assert free < rounded


# ---- against plain rounding -----------------------------------------------------------------------------------

# What is left of the error of plain rounding, at most.
GAINS = {
    ("sym", 2, 32): 0.68, ("sym", 2, 128): 0.52, ("sym", 2, -1): 0.35,
    ("sym", 3, 32): 0.83, ("sym", 3, 128): 0.70, ("sym", 3, -1): 0.38,
    ("sym", 4, 32): 0.88, ("sym", 4, 128): 0.85, ("sym", 4, -1): 0.58,
    ("sym", 8, 32): 0.82, ("sym", 8, 128): 0.95, ("sym", 8, -1): 0.995,
    ("full", 2, 32): 0.85, ("full", 4, 32): 0.94, ("full", 4, 128): 0.89, ("full", 8, 128): 0.97,
    ("asym", 2, 32): 0.75, ("asym", 3, 128): 0.79, ("asym", 4, 32): 0.95, ("asym", 4, 128): 0.92, ("asym", 8, 32): 0.88,
}  # fmt: skip


@pytest.mark.parametrize("kind, bits, group", GAINS)
def test_how_much_better_than_plain_rounding(kind, bits, group):
    w = heavy(32, 1024)
    grid = grid_of(kind, bits, group)
    ours, plain = scale_search.solve(problem(w, grid)), rtn.solve(problem(w, grid))
    ratio = squared(w, ours.qtensor).sum() / squared(w, plain.qtensor).sum()
    assert ratio <= GAINS[kind, bits, group]
    assert ours.facts["error"] / ours.facts["error_rtn"] == pytest.approx(ratio.item(), rel=1e-4)
    assert ours.facts["error_rtn"] == plain.facts["error"]


@pytest.mark.parametrize("rows, kind, most", [(4, "sym", 0.95), (64, "sym", 0.65), (64, "asym", 0.8)])
def test_eight_bits_for_a_whole_tensor_clip_its_tails(rows, kind, most):
    w = heavy(rows, 4096)
    grid = grid_of(kind, 8).replace(granularity=QSchemeType.per_tensor)
    facts = scale_search.solve(problem(w, grid)).facts
    assert facts["error"] <= most * facts["error_rtn"]


@pytest.mark.parametrize(
    "dtype, most", [(Dtype.fp4, 0.92), (Dtype.nf4, 0.92), (Dtype.fp6_e3m2, 0.9), (Dtype.fp8_e4m3, 0.93)]
)
def test_floats_and_tables_gain_too(dtype, most):
    w = heavy(64, 256)
    facts = scale_search.solve(problem(w, Grid(dtype, QSchemeType.per_group, group_size=32))).facts
    assert facts["error"] <= most * facts["error_rtn"]


def test_symmetric_unsigned_codes_are_the_signed_ones_moved():
    w = heavy(16, 128)
    signed, unsigned = (
        scale_search.solve(problem(w, Grid(d, QSchemeType.per_channel))) for d in (Dtype.int3, Dtype.uint3)
    )
    assert torch.equal(signed.qtensor.scale, unsigned.qtensor.scale)
    assert torch.equal(signed.qtensor.codes().int(), unsigned.qtensor.codes().int() - 4)


def test_full_range_is_better_at_two_bits():
    w = heavy(64, 256)
    sym, full = (scale_search.solve(problem(w, grid_of(kind, 2, 32))).facts["error"] for kind in ("sym", "full"))
    assert full < 0.85 * sym


def test_importance_moves_the_error_to_where_it_matters_less():
    w, h = heavy(64, 128), importances(128, 2.0)
    grid = grid_of("sym", 3, 32)
    blind, seeing = (scale_search.solve(problem(w, grid, importance=each)).qtensor for each in (None, h))
    assert squared(w, seeing, h).sum() < 0.9 * squared(w, blind, h).sum()
    assert squared(w, seeing).sum() > squared(w, blind).sum()


@pytest.mark.parametrize("dtype", [Dtype.int9, Dtype.int16, Dtype.uint16, Dtype.int32, Dtype.float16])
def test_wide_types_are_rounded_plainly(dtype):
    w = heavy(4, 64)
    grid = Grid(dtype, QSchemeType.per_channel)
    ours, plain = scale_search.solve(problem(w, grid)), rtn.solve(problem(w, grid))
    assert torch.equal(ours.qtensor.packed.view(torch.uint8), plain.qtensor.packed.view(torch.uint8))
    assert ours.facts["won"]["rtn"] == 1


NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-40, 1e-30, 1e30, -1e37, 1e20]),
)
DTYPES = [
    *(Dtype[f"{sign}int{bits}"] for sign in ("", "u") for bits in (2, 3, 4, 8)), Dtype.fp4, Dtype.nf4, Dtype.fp8_e5m2,
]  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(NUMBERS, min_size=1, max_size=40),
    st.sampled_from(DTYPES),
    st.sampled_from(["sym", "full", "asym", "free"]),
    st.sampled_from(list(ScaleType)),
    st.sampled_from(list(RoundType)),
    st.integers(1, 16),
    st.sampled_from([None, 0.0, 1.0, 3.0]),
)
def test_no_block_is_ever_worse(numbers, dtype, kind, scale_type, rounding, group, spread):
    """The promise, exactly: the same arithmetic on both sides, on what was stored."""
    symmetric = kind in ("sym", "full")
    signed = scale_type in (ScaleType.float32, ScaleType.float16, ScaleType.bfloat16, ScaleType.float8_e4m3fn)
    grid = Grid(
        dtype,
        QSchemeType.per_group,
        group_size=group,
        symmetric=symmetric,
        full_range=kind == "full" and signed,
        float_zero=kind == "free",
        scale_type=scale_type,
        rounding=rounding,
    )
    w = torch.tensor([numbers, numbers[::-1]])
    h = None if spread is None else importances(len(numbers), spread)
    case = problem(w, grid, importance=h)
    solution = scale_search.solve(case)
    ours, plain = errors(case, solution.qtensor.qparams, rtn.qparams(case))
    assert (ours <= plain).all()
    assert solution.qtensor.dequantize().isfinite().all()
    assert grid.full_range or (solution.qtensor.qparams.scale > 0).all()


# ---- the guard ------------------------------------------------------------------------------------------------


def test_what_is_worse_on_samples_kept_aside_is_reverted():
    w = heavy(64, 256)
    seen, aside = importances(256, 2.0, seed=1), importances(256, 2.0, seed=2)
    grid = grid_of("sym", 3, 32)
    guarded = scale_search.solve(problem(w, grid, importance=seen, held_out=aside))
    free = scale_search.solve(problem(w, grid, importance=seen))
    case = problem(w, grid, importance=seen, held_out=aside)
    ours, plain, unguarded = errors(case, guarded.qtensor.qparams, rtn.qparams(case), free.qtensor.qparams)
    assert (unguarded[1] > plain[1]).any(), "the case has blocks to revert"
    assert guarded.facts["reverted"] == int((unguarded[1] > plain[1]).sum())
    assert (ours <= plain).all()
    assert guarded.facts["held_out_error"] < guarded.facts["held_out_error_rtn"]
    plain_scales = guarded.qtensor.scale == rtn.qparams(case).scale
    assert guarded.facts["won"]["rtn"] == plain_scales.float().mean().item() > 0


def test_nothing_is_reverted_when_the_samples_agree():
    w, h = heavy(16, 128), importances(128)
    facts = scale_search.solve(problem(w, grid_of("asym", 4, 32), importance=h, held_out=h)).facts
    assert facts["reverted"] == 0
    assert facts["held_out_error"] == facts["error"]
    assert "reverted" not in scale_search.solve(problem(w, grid_of("asym", 4, 32), importance=h)).facts


def test_the_guard_works_without_importance():
    w, aside = heavy(16, 128), importances(128, 3.0)
    case = problem(w, grid_of("sym", 2, 32), held_out=aside)
    solution = scale_search.solve(case)
    ours, plain = errors(case, solution.qtensor.qparams, rtn.qparams(case))
    assert (ours <= plain).all() and solution.facts["reverted"] > 0


def test_facts_say_who_won():
    facts = scale_search.solve(problem(heavy(16, 128), grid_of("sym", 4, 32))).facts
    assert list(facts["won"]) == ["rtn", "coarse", "fine", "refit"]
    assert sum(facts["won"].values()) == pytest.approx(1)
    assert facts["won"]["coarse"] > 0 and facts["won"]["refit"] > 0


# ---- odd weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_type", list(ScaleType))
def test_scales_are_stored_as_they_were_judged(scale_type):
    w = heavy(32, 128) * 0.02
    grid = grid_of("sym", 4, 32, scale_type=scale_type)
    solution = scale_search.solve(problem(w, grid))
    qtensor = solution.qtensor
    scale = load_scale(qtensor.scale, scale_type)
    assert torch.equal(scale, round_scale(scale, scale_type))
    case = problem(w, grid)
    assert relative(*errors(case, qtensor.qparams, None)) == [solution.facts["error"]]
    assert (scale != rtn.qparams(case).scale).any()


def test_features_that_no_sample_lit_do_not_fall_apart():
    w, h = heavy(32, 64), torch.zeros(1, 64)
    h[:, ::32] = 1.0
    found = scale_search.solve(problem(w, grid_of("sym", 4, 32), importance=h)).qtensor.dequantize()
    dead = ((found - w).square().sum() / w.square().sum()).item()
    assert dead < 0.1
    nothing = scale_search.solve(problem(w, grid_of("sym", 4, 32), importance=torch.zeros(1, 64)))
    assert torch.equal(nothing.qtensor.packed, rtn.solve(problem(w, grid_of("sym", 4, 32))).qtensor.packed)


@pytest.mark.parametrize("kind", ["sym", "full", "asym"])
@pytest.mark.parametrize("value", [0.0, -0.0, 2.5, -1e-42, 1e30])
def test_constant_blocks_are_exact(kind, value):
    w = torch.full((3, 40), value)
    found = scale_search.solve(problem(w, grid_of(kind, 4, 16))).qtensor.dequantize()
    torch.testing.assert_close(found, w, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_weight_types(dtype):
    w = heavy(16, 128).to(dtype)
    grid = grid_of("asym", 4, 32)
    found, expected = scale_search.solve(problem(w, grid)), scale_search.solve(problem(w.float(), grid))
    assert torch.equal(found.qtensor.packed, expected.qtensor.packed)
    assert found.facts == expected.facts


@pytest.mark.parametrize("axis", [0, 1])
def test_memory_layout_does_not_matter(axis):
    w = heavy(24, 6, 3, 3)
    grid = grid_of("sym", 4, 4).replace(axis=axis)
    strided = w.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)
    assert not strided.is_contiguous()
    found = [
        scale_search.solve(problem(each, grid, importance=importances(6).reshape(1, 6, 1, 1))) for each in (w, strided)
    ]
    assert torch.equal(found[0].qtensor.packed, found[1].qtensor.packed)
    assert torch.equal(found[0].qtensor.scale, found[1].qtensor.scale)


def test_blocks_cut_short_are_searched_by_themselves():
    w = heavy(8, 70)
    grid = grid_of("asym", 4, 32)
    whole = scale_search.solve(problem(w, grid)).qtensor
    for start, stop in ((0, 64), (64, 70)):
        part = scale_search.solve(Problem(w[:, start:stop], grid, (1, min(32, stop - start)))).qtensor
        assert torch.equal(whole.codes()[:, start:stop], part.codes())
        assert torch.equal(whole.scale[:, start // 32 : -(-stop // 32)], part.scale)


@pytest.mark.parametrize("kind", ["sym", "asym"])
def test_a_block_larger_than_the_scratch(kind, monkeypatch):
    """Sums are put together from pieces; only their last bits can differ."""
    w, h = heavy(3, 5000), importances(5000)
    grid = grid_of(kind, 3).replace(granularity=QSchemeType.per_tensor)
    whole = scale_search.solve(problem(w, grid, importance=h))
    monkeypatch.setattr(_sums, "_HOST", 997)
    monkeypatch.setattr(_error, "_HOST", 997)
    pieces = scale_search.solve(problem(w, grid, importance=h))
    assert pieces.facts["error"] == pytest.approx(whole.facts["error"], rel=1e-3)
    torch.testing.assert_close(pieces.qtensor.scale, whole.qtensor.scale, rtol=1e-3, atol=0)


def test_odd_shapes():
    grid = grid_of("sym", 4, 32)
    for shape in ((0, 64), (64, 0), (1, 1), (5,), (2, 3, 70), (2, 3, 4, 2, 2)):
        w = heavy(*shape)
        found = scale_search.solve(problem(w, grid)).qtensor.dequantize()
        assert found.shape == w.shape and found.isfinite().all()


@pytest.mark.parametrize(
    "kind, bits, group, weighted", itertools.product(["sym", "asym"], [4, 8], [32, -1], [False, True])
)
def test_the_same_bytes_with_any_number_of_threads(kind, bits, group, weighted, threads):
    w = heavy(40, 2048)
    grid = grid_of(kind, bits, group)
    if group < 0:
        grid = grid.replace(granularity=QSchemeType.per_tensor)
    case = problem(w, grid, importance=importances(2048) if weighted else None)

    def run():
        qtensor = scale_search.solve(case).qtensor
        return torch.cat([part.reshape(-1).view(torch.uint8) for part in qtensor.tensors().values()])

    assert threads(run).numel()  # which compares the results


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        scale_search.solve(problem(heavy(64, 256), grid_of("asym", 4, 32)))
        assert torch.get_num_threads() == 3
        with pytest.raises(DataError):
            scale_search.solve(problem(torch.full((2, 32), torch.nan), grid_of("asym", 4, 32)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_more_candidates_do_better():
    w = heavy(64, 256)
    few, many = (
        scale_search.solve(problem(w, grid_of("sym", 4, 32)), candidates=count, refits=refits).facts["error"]
        for count, refits in ((2, 0), (30, 3))
    )
    assert many < 0.99 * few


@pytest.mark.parametrize("dtype", [Dtype.uint4, Dtype.fp4, Dtype.nf4], ids=lambda d: d.name)
def test_full_range_says_nothing_to_types_without_a_code_more_on_one_side(dtype):
    grid = Grid(dtype, QSchemeType.per_group, group_size=32)
    plain, full = (scale_search.solve(problem(heavy(16, 64), g)) for g in (grid, grid.replace(full_range=True)))
    assert (full.qtensor.scale > 0).all() and torch.equal(full.qtensor.scale, plain.qtensor.scale)
    assert torch.equal(full.qtensor.packed, plain.qtensor.packed)


def test_the_largest_floats_are_searched_and_come_out_as_numbers():
    """Of int2's candidates one would have a lowest code of -2 * 2^127."""
    w = heavy(16, 64)
    w /= w.abs().max()
    for kind in (ScaleType.float32, ScaleType.float8_e8m0fnu, ScaleType.pof2):
        grid = Grid(Dtype.int2, QSchemeType.per_group, group_size=32, scale_type=kind)
        plain, large, largest = (scale_search.solve(problem(w * size, grid)) for size in (1.0, 2.0**120, 3e38))
        assert large.facts == plain.facts and large.facts["error"] < large.facts["error_rtn"]
        assert largest.qtensor.dequantize().isfinite().all() and 0 < largest.facts["error"] < 1
