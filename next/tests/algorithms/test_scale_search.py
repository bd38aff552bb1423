# SPDX-License-Identifier: Apache-2.0
"""Searched scales and zero points against exhaustive search."""

import numpy as np
import pytest

from fewbit.algorithms._scale_search import search_scales
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.scales import ScaleType

ASYMMETRIC = {"granularity": QSchemeType.per_group, "group_size": 16, "symmetric": False}
GRIDS = {
    "uint4": QuantizationGrid(Dtype.uint4, **ASYMMETRIC),
    "uint4 bfloat16": QuantizationGrid(Dtype.uint4, scale_type=ScaleType.bfloat16, **ASYMMETRIC),
    "int3": QuantizationGrid(Dtype.int3, **ASYMMETRIC),
    "uint2": QuantizationGrid(Dtype.uint2, **ASYMMETRIC),
    "uint3 float zero": QuantizationGrid(Dtype.uint3, float_zero=True, **ASYMMETRIC),
    "short last group": QuantizationGrid(Dtype.uint3, QSchemeType.per_group, group_size=24, symmetric=False),
}


def draw(shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weight = (rng.standard_t(4, (6, 32)) + shift).astype(np.float32)
    return weight, rng.uniform(0.2, 3, 32).astype(np.float32)


def errors(weight: np.ndarray, qparams: QParams, h: np.ndarray) -> np.ndarray:
    """Per block, with the importance that the search uses."""
    difference = fake_quantize(weight, qparams) - weight
    blocks = BlockShape(weight.shape, qparams.block)
    return blocks.split(difference * difference * (h / h.mean() + 0.01), 0.0).sum((1, 3))


@pytest.mark.parametrize("shift", [0.0, 2.0, -9.0])
@pytest.mark.parametrize("name", GRIDS)
def test_zero_points_against_exhaustive_search(name, shift):
    """Every scale and zero point on a fine lattice: within 12 % of the best in sum, nowhere worse than the extremes."""
    (weight, h), grid = draw(shift), GRIDS[name]
    block = grid.weight_block(weight.shape)
    start = qparams_from_min_max(*BlockShape(weight.shape, block).extremes(weight), grid, block)
    found = search_scales(weight, grid, h)
    zeros = [np.full_like(start.scale, zero) for zero in range(int(grid.dtype.lowest), int(grid.dtype.highest) + 1)]
    if grid.float_zero:
        zeros = [start.zero_point + np.float32(offset) for offset in np.linspace(-2, 2, 33)]
    best = np.full(start.scale.shape, np.inf)
    for factor in np.linspace(0.4, 1.3, 46):
        for zero in zeros:
            candidate = QParams(grid, block, start.scale * np.float32(factor), zero)
            best = np.minimum(best, errors(weight, candidate, h))
    result = errors(weight, found, h)
    assert result.sum() < 1.12 * best.sum()
    tolerance = 1.01 if grid.scale_type is ScaleType.bfloat16 else 1 + 1e-5
    assert (result <= errors(weight, start, h) * tolerance).all()
    if not grid.float_zero:
        assert (found.zero_point == np.rint(found.zero_point)).all()
        assert grid.dtype.lowest <= found.zero_point.min() <= found.zero_point.max() <= grid.dtype.highest


@pytest.mark.parametrize("weight", [np.zeros((2, 32)), np.full((2, 32), 0.7), np.eye(2, 32), -np.eye(2, 32)])
def test_blocks_with_hardly_a_range(weight):
    for grid in GRIDS.values():
        qparams = search_scales(weight.astype(np.float32), grid)
        assert np.isfinite(qparams.scale).all() and np.isfinite(qparams.zero_point).all()
        values = fake_quantize(weight.astype(np.float32), qparams)
        np.testing.assert_allclose(values, weight, atol=0.01)


@pytest.mark.parametrize("size", [2.0**80, 2.0**-80])
def test_squares_of_large_and_small_weights_stay_in_range(size):
    """The square of 1e24 is no float32; the scales are those of the same weight in other units."""
    weight, h = draw()
    for grid in (*GRIDS.values(), QuantizationGrid(Dtype.int4, QSchemeType.per_channel, full_range=True)):
        plain, scaled = search_scales(weight, grid, h), search_scales(weight * np.float32(size), grid, h)
        np.testing.assert_allclose(scaled.scale / np.float32(size), plain.scale, rtol=1e-6)
        if plain.zero_point is not None:
            np.testing.assert_allclose(scaled.zero_point, plain.zero_point, rtol=1e-5)
