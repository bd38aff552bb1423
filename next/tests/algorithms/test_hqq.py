# SPDX-License-Identifier: Apache-2.0
"""HQQ against plain rounding, an exhaustive search of zero points, and its own promises."""

import numpy as np
import pytest
import torch

from fewbit.algorithms import rtn
from fewbit.algorithms._base import InputMoments, LayerProblem
from fewbit.algorithms.hqq import ALGORITHM
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QParams, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType

GROUP = {"granularity": QSchemeType.per_group, "group_size": 32}
GRIDS = {
    "uint4 float zero": QuantizationGrid(Dtype.uint4, symmetric=False, float_zero=True, **GROUP),
    "uint4": QuantizationGrid(Dtype.uint4, symmetric=False, **GROUP),
    "uint2": QuantizationGrid(Dtype.uint2, symmetric=False, scale_type=ScaleType.bfloat16, **GROUP),
    "int4": QuantizationGrid(Dtype.int4, **GROUP),
    "int4 signed scale": QuantizationGrid(Dtype.int4, full_range=True, **GROUP),
    "int3 short group": QuantizationGrid(Dtype.int3, QSchemeType.per_group, group_size=48),
    "int8 per tensor": QuantizationGrid(Dtype.int8),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    "nf4": QuantizationGrid(Dtype.nf4, **GROUP),
    **{
        name: QuantizationGrid(Dtype.fp4, scale_type=BLOCK_FORMATS[name].scale_type, **GROUP)
        for name in ("mxfp4", "nvfp4")
    },
}


def heavy(rows: int = 16, width: int = 128, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(2.5, (rows, width)).astype(np.float32)


@pytest.mark.parametrize("name", GRIDS)
def test_never_worse_than_plain_rounding(name):
    """In numpy and torch; by both measures, in every block of every grid."""
    weight, grid = heavy(), GRIDS[name]
    plain = rtn.ALGORITHM.quantize(LayerProblem("a", weight, grid)).dequantize()
    values = ALGORITHM.quantize(LayerProblem("a", weight, grid)).dequantize()
    for p in (0.7, 2.0):
        assert (np.abs(values - weight) ** p).sum() <= (np.abs(plain - weight) ** p).sum() * (1 + 1e-6)
    in_torch = ALGORITHM.quantize(LayerProblem("a", torch.from_numpy(weight), grid)).dequantize().numpy()
    step = np.abs(in_torch - values).max() / np.abs(weight).max()
    assert step < 0.02 or np.mean(in_torch == values) > 0.9


def test_robust_norms_gain_most_at_few_bits():
    weight = heavy(64, 256)
    for name, limit in (("uint4 float zero", 0.97), ("uint2", 0.95), ("int4", 0.97)):
        plain = rtn.ALGORITHM.quantize(LayerProblem("a", weight, GRIDS[name])).dequantize()
        values = ALGORITHM.quantize(LayerProblem("a", weight, GRIDS[name])).dequantize()
        assert (np.abs(values - weight) ** 0.7).sum() < limit * (np.abs(plain - weight) ** 0.7).sum()


def test_near_the_best_zero_point_and_scale():
    """All zero points and scales on a fine lattice, for single blocks: a good part of their gain."""
    grid = QuantizationGrid(Dtype.uint2, symmetric=False, float_zero=True)
    gain = best_gain = 0.0
    for seed in range(6):
        weight = heavy(1, 12, seed)

        def norm(qparams: QParams, weight=weight) -> float:
            return float((np.abs(fake_quantize(weight, qparams) - weight) ** 0.7).sum())

        start = rtn.ALGORITHM.quantize(LayerProblem("a", weight, grid)).qparams
        lattice = [
            norm(QParams(grid, (1, 12), start.scale * np.float32(a), start.zero_point + np.float32(b)))
            for a in np.linspace(0.2, 1.2, 41)
            for b in np.linspace(-2, 2, 41)
        ]
        tensor = ALGORITHM.quantize(LayerProblem("a", weight, grid), iterations=60)
        gain += norm(start) - norm(tensor.qparams)
        best_gain += norm(start) - min(lattice)
    assert 0.25 * best_gain < gain < 1.05 * best_gain


def test_zeros_of_a_pruned_weight_stay():
    weight = heavy() * (np.random.default_rng(1).random((16, 128)) < 0.5)
    for grid in GRIDS.values():
        values = ALGORITHM.quantize(LayerProblem("a", weight.astype(np.float32), grid)).dequantize()
        assert (values[weight == 0] == 0).all()


def test_inputs_weight_the_guard():
    weight = heavy()
    h = np.random.default_rng(0).uniform(0.01, 100, 128).astype(np.float32)
    grid = GRIDS["uint4"]
    plain = rtn.ALGORITHM.quantize(LayerProblem("a", weight, grid)).dequantize()
    values = ALGORITHM.quantize(LayerProblem("a", weight, grid, InputMoments(9, second_moment=h))).dequantize()
    assert (h * (values - weight) ** 2).sum() <= (h * (plain - weight) ** 2).sum()


@pytest.mark.parametrize("size", [0.0, 1.0, 1e30, 1e-30])
def test_extreme_weights(size):
    for grid, weight in ((grid, x * size) for grid in GRIDS.values() for x in (np.eye(2, 32), np.ones((2, 32)))):
        assert np.isfinite(ALGORITHM.quantize(LayerProblem("a", weight.astype(np.float32), grid)).dequantize()).all()


def test_settings_out_of_range():
    for settings in ({"p": 1.0}, {"p": 0}, {"iterations": -1}):
        with pytest.raises(UsageError, match="hqq"):
            ALGORITHM.quantize(LayerProblem("a", heavy(), GRIDS["int4"]), **settings)
