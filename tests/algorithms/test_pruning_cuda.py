# SPDX-License-Identifier: Apache-2.0
"""Zeros chosen on a GPU: as many, where they must be, and answers as near as those chosen on the CPU."""

from dataclasses import replace

import pytest
import torch

from algorithms.pruning import off, problem
from fewbit.algorithms import alps, magnitude, sparse_gpt, stepwise, wanda
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.sparsity import Pattern

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
SOLVERS = [magnitude, wanda, sparse_gpt, alps, stepwise]
GRIDS = {"floats": Grid(Dtype.float32), "int4": Grid(Dtype.int4)}


def moved(case):
    def there(value):
        return {key: there(inner) for key, inner in value.items()} if isinstance(value, dict) else value.cuda()

    names = ("weight", "importance", "held_out", "statistics", "held_out_statistics")
    return replace(case, shared={}, **{name: there(getattr(case, name)) for name in names})


@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "1x4"])
@pytest.mark.parametrize("grid", list(GRIDS))
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda each: each.__name__.split(".")[-1])
def test_it_is_as_good_as_on_the_cpu(solver, grid, pattern):
    case = problem(Pattern.read(pattern, 0.5), shape=(48, 64), grid=GRIDS[grid])
    here, there = solver.solve(case), solver.solve(moved(case))
    found = there.qtensor.dequantize()
    assert found.is_cuda
    assert int((found == 0).sum()) >= found.numel() // 2
    if pattern == "2:4":
        assert int((found.reshape(-1, 4) != 0).sum(1).max()) <= 2
    assert off(case, found.cpu()).sum() <= 1.02 * off(case, here.qtensor.dequantize()).sum()
