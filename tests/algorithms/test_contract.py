# SPDX-License-Identifier: Apache-2.0
"""What every algorithm promises, over whatever the registry lists."""

import copy

import orjson
import pytest
import torch

from fewbit import registry
from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._error import errors
from fewbit.algorithms._members import members
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 32}
GRIDS = {
    "int4": Grid(Dtype.int4, **GROUP),
    "int3 full range, fp16 scales": Grid(Dtype.int3, **GROUP, full_range=True, scale_type=ScaleType.float16),
    "uint4 asymmetric": Grid(Dtype.uint4, **GROUP, symmetric=False),
    "uint2 free zero": Grid(Dtype.uint2, **GROUP, symmetric=False, float_zero=True),
    "uint4 symmetric": Grid(Dtype.uint4, **GROUP),
    "int8 by channel": Grid(Dtype.int8, QSchemeType.per_channel),
    "int8 by tensor": Grid(Dtype.int8),
    "int8 power of two": Grid(Dtype.int8, scale_type=ScaleType.pof2),
    "int4 blocks": Grid(Dtype.int4, QSchemeType.per_block, block_size=(8, 16)),
    "int4 floor": Grid(Dtype.int4, **GROUP, rounding=RoundType.floor),
    "int4 stochastic": Grid(Dtype.int4, **GROUP, rounding=RoundType.stochastic, seed=3),
    "int16": Grid(Dtype.int16, QSchemeType.per_channel),
    "fp8": Grid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    "mxfp4": Grid(Dtype.fp4, **GROUP, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn),
    "nf4": Grid(Dtype.nf4, **GROUP),
}


def tensors(data):
    draw = torch.Generator().manual_seed(7)
    weight = torch.randn(12, 70, generator=draw)
    weight[3, 5] = 9.0
    seen, aside = (torch.rand(1, 70, generator=draw) ** 3 for _ in range(2))
    return {"weight": weight} | ({"importance": seen, "held_out": aside} if data else {})


@pytest.mark.parametrize("data", [False, True], ids=["no data", "data"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", members("round"))
def test_an_algorithm_that_rounds(name, grid, data):
    member = registry.get("algorithms", name)
    assert isinstance(member.STAGE, str) and all(need in registry.names("observers") for need in member.NEEDS)
    given = tensors(data)
    given["weight"].requires_grad_()
    before, state = copy.deepcopy(given), torch.get_rng_state()
    case = Problem(grid=grid, block=grid.weight_block((12, 70)), **given)
    solution = member.solve(case)

    # Pure: nothing that was given has changed, and the same again gives the same.
    assert isinstance(solution, Solution)
    assert all(torch.equal(given[key], before[key]) for key in given) and torch.equal(state, torch.get_rng_state())
    again = member.solve(case)
    for part, tensor in solution.qtensor.tensors().items():
        other = again.qtensor.tensors()[part]
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    assert solution.facts == again.facts

    # Facts are plain data, and what the codes decode to is what they claim.
    orjson.dumps(solution.facts)
    off = (solution.qtensor.dequantize() - given["weight"]).detach().double().square()
    for fact, key in (("error", "importance"), ("held_out_error", "held_out")):
        h = given.get(key, torch.ones(1, 70)).double()
        if fact in solution.facts:
            size = (given["weight"].detach().double().square() * h).sum()
            assert solution.facts[fact] == pytest.approx(float((off * h).sum() / size), rel=1e-4)
    assert solution.qtensor.grid == grid and solution.qtensor.block == case.block
    assert not any(tensor.requires_grad for tensor in solution.qtensor.tensors().values())

    # Promise 4: no block is worse than with plain rounding, neither on the samples nor on those kept aside. The codes
    # themselves are judged: an algorithm need not round to nearest.
    ours, plain = errors(case, solution.qtensor, rtn.qparams(case))
    assert (ours <= plain).all()
