# SPDX-License-Identifier: Apache-2.0
"""A weight that was pruned keeps its zeros when it is rounded later, whatever makes up for the rounding."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.pruning import FLOAT, inputs, off, problem, seen
from fewbit.algorithms import _columns, adaround, gptq, hqq, scale_search, sign_round, sparse_gpt
from fewbit.algorithms._base import Problem
from fewbit.algorithms._block import BlockProblem
from fewbit.engine.experts import merged
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from fewbit.numerics.sparsity import Pattern

GROUP = {"granularity": QSchemeType.per_group, "group_size": 8}
GRIDS = {
    "int4 full range": Grid(Dtype.int4, **GROUP, full_range=True),
    "int2": Grid(Dtype.int2, **GROUP),
    "uint4 asymmetric": Grid(Dtype.uint4, **GROUP, symmetric=False),
    "int4 blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(4, 8)),
    "nvfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e4m3fn),
    "nf4": Grid(Dtype.nf4, **GROUP),
}


def pruned(grid, wanted=None):
    case = problem(Pattern(0.5), 3, (12, 24), FLOAT, wanted=wanted)
    weight = sparse_gpt.solve(case).qtensor.dequantize()
    return replace(case, weight=weight, grid=grid, block=grid.weight_block((12, 24)), pattern=None, shared={})


@pytest.mark.parametrize("wanted", [None, lambda x, w: x @ (1.2 * w).T], ids=["as it is", "wanted"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_gptq(grid, wanted):
    case = pruned(grid, wanted=wanted)
    found = gptq.solve(case, refits=1)
    assert bool((found.qtensor.dequantize()[case.weight == 0] == 0).all())
    assert found.facts["zeros_kept"] == 144
    assert sum(share for name, share in found.facts["won"].items() if "blend" in name) > 0
    if wanted is None:  # and the others still make up for one another
        ours, searched = (off(case, s.qtensor.dequantize()).sum() for s in (found, scale_search.solve(case)))
        assert ours < searched


@pytest.mark.parametrize("name", ["int4 full range", "uint4 asymmetric", "nvfp4"])
def test_gptq_where_a_kernel_rounds_the_panels(name, monkeypatch):
    """The arithmetic of the kernel, which knows no mask, in torch: the same codes, and every zero."""

    def panel(near, before, base, step, zero, codes):
        values, errors = torch.empty_like(near), torch.zeros_like(near)
        for at in range(len(near)):
            x = (near[at] + before[at] @ errors) / step[at]
            if isinstance(codes, tuple):
                offset = 0.0 if zero is None else zero[at]
                x = (x.round() + offset).clamp(*codes) - offset
            else:
                unit = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
                x = ((x.abs() / unit).round() * unit).clamp(max=6).copysign(x)
            values[at] = x * step[at]
            errors[at] = base[at] - values[at]
        return values, errors

    case = pruned(GRIDS[name])
    plain = gptq.solve(case).qtensor.dequantize()
    monkeypatch.setattr(_columns, "_kernel", lambda x: SimpleNamespace(panel=panel))
    found = gptq.solve(case).qtensor.dequantize()
    assert bool((found[case.weight == 0] == 0).all())
    assert float((found == plain).float().mean()) > 0.98  # a product of the reciprocal rounds otherwise now and then


def test_gptq_moves_what_is_kept_to_what_is_wanted():
    grid = Grid(Dtype.int8, QSchemeType.per_channel)
    case = pruned(grid)
    x, aside = inputs(8, 2048, 24), inputs(8, 3072, 24)[2048:]
    told, judged = (seen(each, each @ (1.5 * case.weight).T) for each in (x, aside))
    found = gptq.solve(replace(case, statistics=told, held_out_statistics=judged), pull=1e-4).qtensor.dequantize()
    assert torch.equal(found == 0, case.weight == 0)
    lost = (aside @ (found - 1.5 * case.weight).T).square().sum() / (aside @ case.weight.T).square().sum()
    assert lost < 1e-2  # a quarter, if it had stayed


def test_a_few_zeros_are_not_held_and_a_free_zero_point_says_what_it_loses():
    grid, weight = GRIDS["int4 full range"], torch.randn(60, 24, generator=torch.Generator().manual_seed(1))
    weight[0, 0] = 0
    case = replace(problem(None, shape=(60, 24), grid=grid), weight=weight)
    assert "zeros_kept" not in gptq.solve(case).facts  # one in 1440 is chance
    free = Grid(Dtype.uint4, **GROUP, symmetric=False, float_zero=True)
    assert gptq.solve(pruned(free)).facts["zeros_lost"] == 144


FREE = Grid(Dtype.uint4, **GROUP, symmetric=False, float_zero=True)


@pytest.mark.parametrize("grid", [*GRIDS.values(), FREE], ids=[*GRIDS, "free zero"])
def test_hqq(grid):
    case = pruned(grid)
    found = hqq.solve(case)
    assert bool((found.qtensor.dequantize()[case.weight == 0] == 0).all())
    assert found.facts["zeros_kept"] == 144 and found.qtensor.grid == grid
    assert found.facts["error"] <= found.facts["error_rtn"]


def test_hqq_goes_on_learning_with_integer_zero_points():
    """Blocks are still found better than plain rounding, and the zero points of a free grid are codes."""
    weight = torch.tensor(np.random.default_rng(0).standard_t(4, (32, 64)), dtype=torch.float32)
    weight[:, ::2] = 0
    grid = FREE.replace(dtype=Dtype.uint3)
    case = Problem(weight, grid, grid.weight_block((32, 64)))
    found = hqq.solve(case)
    zero = found.qtensor.qparams.zero_point
    assert torch.equal(zero, zero.round()) and float(zero.min()) >= 0 and float(zero.max()) <= 7
    assert found.facts["won"] > 0.2 and found.facts["p_error"] < found.facts["p_error_rtn"]
    # A weight that is only shifted has no zeros to keep: its zero points stay free.
    shifted = hqq.solve(replace(case, weight=weight + 0.01))
    assert "zeros_kept" not in shifted.facts and not torch.equal(
        shifted.qtensor.qparams.zero_point, shifted.qtensor.qparams.zero_point.round()
    )


@pytest.mark.parametrize("grid", [GRIDS["int4 full range"], GRIDS["uint4 asymmetric"]], ids=["int4", "uint4"])
def test_adaround(grid):
    case = pruned(grid)
    found = adaround.solve(case)
    assert found.facts["turned"] > 0
    assert bool((found.qtensor.dequantize()[case.weight == 0] == 0).all())


@pytest.mark.parametrize("grid", [GRIDS["int2"], GRIDS["uint4 asymmetric"], GRIDS["nf4"]], ids=["int2", "uint4", "nf4"])
def test_sign_round(grid):
    """Every slope says that all values should grow; those that were pruned do not."""
    case = pruned(grid)
    start = gptq.solve(case).qtensor
    block = BlockProblem(
        {"w": case.weight},
        {"w": start},
        lambda values, items: values["w"].sum(1, keepdim=True),
        lambda items: case.weight.sum(1, keepdim=True) + 3,
        [0, 1],
    )
    found = sign_round.solve(block, iters=40, lr=0.1)
    assert found.facts["turned"] > 0.05
    assert bool((found.codes["w"].dequantize()[case.weight == 0] == 0).all())


def test_zeros_of_many_experts_are_added_up():
    assert merged([{"zeros": 3, "error": 0.5}, {"zeros": 4, "error": 0.25}]) == {"zeros": 7, "error": 0.375}
