# SPDX-License-Identifier: Apache-2.0
"""What every algorithm that prunes promises, over whatever the registry lists."""

import copy
from dataclasses import replace

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.pruning import FLOAT, off, problem
from fewbit import registry
from fewbit.algorithms import magnitude
from fewbit.algorithms._base import Problem
from fewbit.algorithms._members import members
from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from fewbit.numerics.sparsity import Pattern, count, kept

MEMBERS = members("prune")
GROUP = {"granularity": QSchemeType.per_group, "group_size": 8}
GRIDS = {
    "float": FLOAT,
    "int4": Grid(Dtype.int4, **GROUP),
    "int2 full range": Grid(Dtype.int2, **GROUP, full_range=True),
    "uint4 asymmetric": Grid(Dtype.uint4, **GROUP, symmetric=False),
    "int4 blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(4, 8)),
    "int16": Grid(Dtype.int16, QSchemeType.per_channel),
    "mxfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e4m3fn),
    "nf4": Grid(Dtype.nf4, **GROUP),
}
PATTERNS = {
    "half": Pattern(0.5),
    "a third of a row": Pattern(0.3, by_row=True),
    "2:4": Pattern.read("2:4"),
    "1:4": Pattern.read("1:4"),
    "3:5": Pattern.read("3:5"),
    "1x4": Pattern.read("1x4", 0.5),
    "5x7": Pattern.read("5x7", 0.4),
    "2x3 by row": Pattern.read("2x3", 0.5, by_row=True),
    "nothing": Pattern(0.0),
    "all": Pattern(1.0),
}


def solve(name, case, **parameters):
    return registry.get("algorithms", name).solve(case, **parameters)


def test_they_are_there():
    assert MEMBERS == ["alps", "magnitude", "sparse_gpt", "stepwise", "wanda"]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", MEMBERS)
def test_pure_plain_and_on_the_grid(name, grid):
    case = problem(Pattern(0.5), grid=grid)
    case.weight.requires_grad_()
    before, state = copy.deepcopy((case.weight, case.importance, case.statistics)), torch.get_rng_state()
    found, again = solve(name, case), solve(name, replace(case, shared={}))
    assert torch.equal(case.weight, before[0]) and torch.equal(case.importance, before[1])
    assert torch.equal(case.statistics["gram"]["gram"], before[2]["gram"]["gram"])
    assert torch.equal(state, torch.get_rng_state()) and found.facts == again.facts
    for part, tensor in found.qtensor.tensors().items():
        assert not tensor.requires_grad and torch.equal(
            tensor.reshape(-1).view(torch.uint8), again.qtensor.tensors()[part].reshape(-1).view(torch.uint8)
        )
    orjson.dumps(found.facts)
    assert found.qtensor.grid == grid and found.qtensor.block == case.block
    assert sum(found.facts["won"].values()) == pytest.approx(1)
    values = found.qtensor.dequantize()
    assert values.isfinite().all() and found.facts["zeros"] == int((values == 0).sum())


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize(
    "grid", [GRIDS["float"], GRIDS["int4"], GRIDS["uint4 asymmetric"]], ids=["float", "int4", "uint4"]
)
@pytest.mark.parametrize("name", MEMBERS)
def test_the_zeros_are_those_of_the_pattern_exactly(name, grid, pattern):
    case = problem(pattern, seed=3, shape=(11, 26), grid=grid)
    zeros = solve(name, case).qtensor.dequantize() == 0
    # Of floats there are exactly so many; a small weight may be rounded to zero too.
    found, wanted = (_counts(mask, pattern) for mask in (zeros, ~kept(case.weight.abs(), pattern)))
    assert found == wanted if grid is FLOAT else all(a >= b for a, b in zip(found, wanted))


def _counts(zeros, pattern):
    """How many zeros there are in every run, row or weight that has its own count; in blocks, whole ones."""
    tall, wide = pattern.block
    if pattern.of:
        whole = zeros.shape[1] // pattern.of * pattern.of
        return zeros[:, :whole].reshape(-1, pattern.of).sum(1).tolist() + zeros[:, whole:].sum(1).tolist()
    rows = [[bool(block.all()) for block in band.split(wide, dim=1)] for band in zeros.split(tall)]
    return [sum(row) for row in rows] if pattern.by_row else [sum(map(sum, rows))]


@pytest.mark.parametrize("pattern", [PATTERNS[name] for name in ("half", "a third of a row", "2:4", "5x7")])
@pytest.mark.parametrize("grid", [GRIDS["float"], GRIDS["int4"], GRIDS["int4 blocks"]], ids=["float", "int4", "blocks"])
@pytest.mark.parametrize("name", MEMBERS)
def test_no_farther_than_the_smallest_at_zero(name, grid, pattern):
    """Of every row where rows are counted for themselves, else of the weight; on what was kept aside."""
    case = problem(pattern, seed=5, grid=grid)
    found = solve(name, case)
    plain = magnitude.solve(case).qtensor.dequantize()
    ours, theirs = (off(case, values, aside=True) for values in (found.qtensor.dequantize(), plain))
    alone = pattern.of or pattern.by_row
    height = case.block[0] if grid is not FLOAT else 1
    bands = height if alone else len(ours)
    for a, b in zip(ours.split(bands), theirs.split(bands)):
        assert a.sum() <= b.sum() * (1 + 1e-4)
    energy = off(case, 0 * case.weight, aside=True).sum()
    assert found.facts["held_out_output_error"] == pytest.approx(float(ours.sum() / energy), rel=1e-3)
    assert found.facts["held_out_output_error_magnitude"] == pytest.approx(float(theirs.sum() / energy), rel=1e-3)
    taught = off(case, found.qtensor.dequantize()).sum() / off(case, 0 * case.weight).sum()
    assert found.facts["output_error"] == pytest.approx(float(taught), rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MEMBERS), st.integers(1, 9), st.integers(1, 40), st.integers(0, 100), st.booleans(), st.data())
def test_counts_are_exact_for_any_shape(name, rows, width, percent, by_row, data):
    """Defects (g) and (n): as many zeros as asked for, no matter the shape, the share or equal weights."""
    block = data.draw(st.sampled_from([(1, 1), (1, 1), (2, 3)]))
    pattern = Pattern(percent / 100, by_row=by_row, block=block)
    case = problem(pattern, seed=percent, shape=(rows, width), positions=(48, 16))
    case = replace(case, weight=case.weight.round().abs() + 1) if data.draw(st.booleans()) else case
    zeros = solve(name, case).qtensor.dequantize() == 0
    tall, wide = block
    across = -(-width // wide)
    each, whole = count(pattern.share, across), count(pattern.share, across * -(-rows // tall))
    assert _counts(zeros, pattern) == ([each] * -(-rows // tall) if by_row else [whole])


@pytest.mark.parametrize("grid", [GRIDS["float"], GRIDS["int4"]], ids=["float", "int4"])
@pytest.mark.parametrize("name", MEMBERS)
def test_the_same_bytes_with_any_number_of_threads(name, grid, threads):
    """Several lanes of rows, zeros counted over all of them."""
    case = problem(Pattern(0.5), shape=(1400, 40), grid=grid)
    threads(lambda: solve(name, replace(case, shared={})).qtensor.dequantize())


@pytest.mark.parametrize("name", MEMBERS)
def test_inputs_that_say_nothing_are_no_trouble(name):
    case = problem(Pattern(0.5), shape=(6, 24))
    dead = case.statistics["gram"]["gram"].clone()
    dead[:, 3] = dead[3] = 0
    alike = dead.clone()
    alike[7], alike[:, 7] = alike[6], alike[:, 6]
    alike[7, 7] = alike[6, 6]
    wrong = torch.zeros(24, 24)
    wrong[0, 1] = wrong[1, 0] = 5000.0  # of no input at all
    for gram, positions in ((dead, 256), (alike, 256), (0 * dead, 256), (wrong, 256), (dead, 3)):
        told = {"gram": {"gram": gram, "count": torch.tensor(positions)}}
        odd = replace(case, statistics=told, held_out_statistics=told, shared={})
        found = solve(name, odd)
        assert found.qtensor.dequantize().isfinite().all() and found.facts["zeros"] == 72
        if name in ("sparse_gpt", "alps", "stepwise"):
            assert found.facts.get("dead_features", 0) == int((gram.diagonal() <= 0).sum())
            assert ("few_positions" in found.facts) == (positions < 24)
            assert (found.facts.get("damping", 0) > 0.01) == (gram is wrong)


@pytest.mark.parametrize("name", MEMBERS)
def test_without_data_it_is_the_smallest_and_says_so(name):
    weight = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    case = Problem(weight, FLOAT, (4, 8), pattern=Pattern(0.5))
    found = solve(name, case)
    assert torch.equal(found.qtensor.dequantize(), magnitude.solve(case).qtensor.dequantize())
    assert ("fallback" in found.facts) == (name != "magnitude")


@pytest.mark.parametrize("name", MEMBERS)
def test_what_cannot_be_is_refused(name):
    case = problem(Pattern(0.5))
    free = Grid(Dtype.uint2, **GROUP, symmetric=False, float_zero=True)
    for wrong, says in (
        (replace(case, pattern=None), "no pattern"),
        (replace(case, grid=free, block=(1, 8)), "no exact zero"),
        (Problem(torch.ones(4), FLOAT, (4,), pattern=Pattern(0.5)), "outputs and inputs"),
        (Problem(torch.ones(4, 2, 3), Grid(Dtype.int4), (1, 2, 1), pattern=Pattern(0.5)), "kernel as a whole"),
    ):
        with pytest.raises(UsageError, match=says):
            solve(name, wrong)
    with pytest.raises(DataError, match="not finite"):
        solve(name, replace(case, weight=case.weight / 0))


@pytest.mark.parametrize("pattern", [Pattern(0.5), Pattern.read("2:4"), Pattern.read("2x2", 0.5)], ids=lambda p: p.text)
@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("grid", [GRIDS["float"], GRIDS["int4"]], ids=["float", "int4"])
def test_kernels(name, pattern, grid):
    """Defects (h) and (m): a convolution is pruned by what its windows say, and keeps its shape."""
    shape = (8, 4, 3, 3)
    images = torch.randn(4, 4, 9, 9, generator=torch.Generator().manual_seed(1)).cumsum(3)
    windows = torch.nn.functional.unfold(images, 3).movedim(1, 2).reshape(-1, 36)  # order (in, kernel)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    told = {"gram": {"gram": windows.T @ windows, "count": torch.tensor(len(windows))}}
    moments = images.square().mean((0, 2, 3)).reshape(1, 4, 1, 1)
    case = Problem(weight, grid, grid.weight_block(shape), moments, moments, told, told, pattern=pattern)
    found = solve(name, case)
    values = found.qtensor.dequantize()
    assert values.shape == weight.shape and "fallback" not in found.facts
    if grid is FLOAT:
        assert int((values == 0).sum()) == int((~kept(weight.abs(), pattern)).sum())
    if pattern.of:
        assert bool(((values == 0).sum(1) >= 2).all())
    answers = [torch.nn.functional.conv2d(images, each) for each in (weight, values)]
    lost = (answers[0] - answers[1]).square().mean() / answers[0].square().mean()
    assert float(lost) == pytest.approx(found.facts["output_error"], rel=1e-2)
    if name in ("alps", "sparse_gpt", "stepwise"):
        assert lost < 0.7 * found.facts["output_error_magnitude"]
        by_feature = replace(case, statistics={"gram": {"gram": torch.eye(4), "count": torch.tensor(4)}}, shared={})
        assert "features" in solve(name, by_feature).facts["fallback"]


@pytest.mark.parametrize("pattern", [Pattern(0.6), Pattern.read("2:4"), Pattern(0.2)], ids=lambda p: p.text)
@pytest.mark.parametrize("name", MEMBERS)
def test_what_was_pruned_before_stays_so(name, pattern):
    """A weight is pruned once more, told to answer what it did before: old zeros stay, and more come only if asked."""
    case = problem(pattern, 4, wanted=lambda x, w: x @ w.T)
    holes = torch.rand(case.weight.shape, generator=torch.Generator().manual_seed(9)) < 0.4
    values = solve(name, replace(case, weight=case.weight.masked_fill(holes, 0.0))).qtensor.dequantize()
    assert not values[holes].any()
    if not pattern.of:
        assert int((values == 0).sum()) == max(count(pattern.share, holes.numel()), int(holes.sum()))
    else:
        assert bool(((values == 0).reshape(-1, 4).sum(1) >= 2).all())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MEMBERS), st.integers(0, 100), st.integers(1, 400), st.booleans(), st.booleans(), st.data())
def test_zeros_that_are_there_count_among_those_asked_for(name, percent, there, told, uneven, data):
    """A few or many, all over the weight or in some rows; with second moments, or where there are none."""
    pattern = Pattern(percent / 100, block=data.draw(st.sampled_from([(1, 1), (1, 1), (1, 4), (2, 3)])))
    case = problem(pattern, seed=there, shape=(20, 40), positions=(48, 16))
    weight = case.weight.clone()
    places = torch.randperm(
        weight.numel() // 2 if uneven else weight.numel(), generator=torch.Generator().manual_seed(there)
    )
    weight.view(-1)[places[:there]] = 0
    case = replace(case, weight=weight, importance=case.importance.masked_fill(torch.arange(40) < 3, 0.0))
    if not told:
        case = replace(case, statistics={}, held_out_statistics={})
    found = solve(name, case)
    values = found.qtensor.dequantize()
    assert not values[weight == 0].any() and found.facts["zeros"] == int((values == 0).sum())
    (before,), (after,), (asked,) = (
        _counts(x, pattern) for x in (weight == 0, values == 0, ~kept(case.weight.abs(), pattern))
    )
    assert after == max(before, asked)
