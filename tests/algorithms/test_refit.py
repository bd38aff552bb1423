# SPDX-License-Identifier: Apache-2.0
"""Scales fitted to codes, against least squares row by row."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem
from fewbit.algorithms._refit import can_refit, refit
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType


def case(seed, width, group, **grid):
    draw = torch.Generator().manual_seed(seed)
    weight, mix = torch.randn(3, width, generator=draw), torch.randn(width, width, generator=draw)
    x = torch.randn(4 * width, width, generator=draw) @ mix
    scales = rtn.qparams(
        Problem(weight, Grid(Dtype.int3, granularity=QSchemeType.per_group, group_size=group, **grid), (1, group))
    )
    return weight, x.T @ x / len(x), scales


def off(values, weight, gram):
    return (((values - weight) @ gram) * (values - weight)).sum(1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.sampled_from([8, 13, 24]), group=st.sampled_from([4, 8, 32]))
def test_nothing_fits_better(seed, width, group):
    weight, gram, scales = case(seed, width, group)
    values = fake_quantize(weight, scales)
    fitted = refit(values, weight, gram, scales)
    group = scales.block[1]
    factor = torch.linalg.cholesky(gram.double() + 1e-9 * torch.eye(width))
    for row in range(len(weight)):
        parts = torch.zeros(scales.scale.shape[1], width, dtype=torch.float64)
        for at in range(len(parts)):
            place = slice(at * group, (at + 1) * group)
            parts[at, place] = (values[row, place] / scales.scale[row, at]).round()
        best = torch.linalg.lstsq((parts @ factor).T, (weight[row].double() @ factor)[:, None]).solution[:, 0]
        mine = (parts * fitted.scale[row].double()[:, None]).sum(0)
        least = (parts * best[:, None]).sum(0)
        wish = weight[row].double()
        losses = [off(each[None], wish[None], gram.double())[0] for each in (mine, least, values[row].double())]
        assert losses[0] <= losses[2] * (1 + 1e-5)
        if bool((best > 0).all()):  # a scale keeps its sign
            assert losses[0] <= losses[1] * 1.05 + 1e-6


def test_scales_stay_of_their_type():
    weight, gram, scales = case(1, 16, 8, scale_type=ScaleType.bfloat16)
    assert can_refit(scales)
    found = refit(fake_quantize(weight, scales), weight, gram, scales).scale
    assert torch.equal(found, found.bfloat16().float()) and not torch.equal(found, scales.scale)


def test_blocks_of_zeros_keep_their_scales():
    weight, gram, scales = case(2, 16, 8)
    values = fake_quantize(weight, scales)
    values[:, :8] = 0
    found = refit(values, weight, gram, scales).scale
    assert torch.allclose(found[:, 0], scales.scale[:, 0]) and found.isfinite().all()
