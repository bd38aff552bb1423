# SPDX-License-Identifier: Apache-2.0
"""Weights to prune, with inputs that go together."""

import torch

from fewbit.algorithms._base import Problem
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid

FLOAT = Grid(Dtype.float32)


def inputs(seed, positions, features):
    """Features of different size that go together."""
    draw = torch.Generator().manual_seed(1000 + seed)
    mix = torch.randn(features, features, generator=draw) + 2 * torch.diag(torch.rand(features, generator=draw) * 3)
    return torch.randn(positions, features, generator=draw) @ mix


def seen(x, wanted=None):
    found = {"gram": {"gram": x.T @ x, "count": torch.tensor(len(x))}}
    return found if wanted is None else found | {"wanted": {"wanted": wanted.T @ x}}


def problem(pattern, seed=0, shape=(12, 24), grid=FLOAT, positions=(256, 96), wanted=None):
    """`wanted`: what the layer shall answer to its inputs, as a function of them."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=draw)
    x, aside = inputs(seed, sum(positions), shape[1]).split(positions)
    return Problem(
        weight,
        grid,
        grid.weight_block(tuple(shape)),
        x.square().mean(0)[None],
        aside.square().mean(0)[None],
        seen(x, None if wanted is None else wanted(x, weight)),
        seen(aside, None if wanted is None else wanted(aside, weight)),
        pattern=pattern,
    )


def off(case, values, *, aside=False):
    """By how much the answers of each row are off, from the second moment itself; float64 `[out]`."""
    side = (case.held_out_statistics if aside else case.statistics)["gram"]
    gram = side["gram"].double() / side["count"]
    lost = values.double().flatten(1) - case.weight.double().flatten(1)
    return ((lost @ gram) * lost).sum(1)
