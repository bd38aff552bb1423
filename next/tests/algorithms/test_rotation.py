# SPDX-License-Identifier: Apache-2.0
"""Rotations: orthogonal, spreading, and right for the grids they are for."""

import numpy as np
import pytest

from fewbit.algorithms._base import RotationProblem
from fewbit.algorithms.rotation import ALGORITHM, hadamard, spreading_matrix
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max

WIDTHS = (64, 576, 768, 896, 12, 20, 28, 36, 60)
GROUP = {"granularity": QSchemeType.per_group, "group_size": 32}
MXFP4, NVFP4 = (
    QuantizationGrid(Dtype.fp4, scale_type=BLOCK_FORMATS[n].scale_type, **GROUP) for n in ("mxfp4", "nvfp4")
)


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 44, 48, 60, 68, 72, 96, 140])
def test_hadamard_matrices(order):
    matrix = hadamard(order)
    assert set(np.unique(matrix)) <= {-1.0, 1.0} and (matrix[0] == 1).all() and (matrix[:, 0] == 1).all()
    np.testing.assert_array_equal(matrix @ matrix.T, order * np.eye(order))


def test_orders_without_a_formula():
    assert all(hadamard(order) is None for order in (3, 6, 10, 14, 18, 22, 0))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_rotations_are_orthogonal_and_spread(width, centered):
    matrix, order = spreading_matrix(width, width, centered=centered)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-12)
    assert width % order == 0 and order >= min(width, 4)
    if centered:
        np.testing.assert_allclose(np.ones(width) @ matrix, np.ones(width), atol=1e-12)
    else:
        assert np.abs(matrix).max() == pytest.approx(order**-0.5)
    other, _ = spreading_matrix(width, width, centered=centered, seed=1)
    assert not np.array_equal(matrix, other)


def test_outliers_are_spread():
    """Inputs with a few large channels: int4 per token loses much less after the rotation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 256)).astype(np.float32)
    x[:, :3] *= 50
    matrix = ALGORITHM.rotate(RotationProblem(256)).stream.astype(np.float32)

    def error(values: np.ndarray) -> float:
        low, high = BlockShape(values.shape, (1, 256)).extremes(values)
        rounded = fake_quantize(values, qparams_from_min_max(low, high, QuantizationGrid(Dtype.int4), (1, 256)))
        return float(np.square(rounded - values).sum())

    assert error(x @ matrix) < 0.4 * error(x)


def test_grids_decide_what_is_mixed():
    everything = ALGORITHM.rotate(RotationProblem(768, heads=[64, 64, 96], grids=[QuantizationGrid(Dtype.int4)]))
    assert everything.facts == {"block": 768, "heads": {64: 64, 96: 96}} and set(everything.heads) == {64, 96}
    groups = ALGORITHM.rotate(RotationProblem(768, heads=[64], grids=[MXFP4]))
    assert groups.facts["block"] == 32 and groups.facts["heads"] == {64: 32}
    outside = groups.stream.reshape(24, 32, 24, 32).transpose(0, 2, 1, 3)
    assert all((outside[i, j] == 0).all() for i in range(24) for j in range(24) if i != j)
    small = ALGORITHM.rotate(RotationProblem(768, grids=[NVFP4]))
    assert small.stream is None and not small.heads and small.facts["reason"]
    assert ALGORITHM.rotate(RotationProblem(768, grids=[NVFP4]), block=16).facts["block"] == 16
    with pytest.raises(UsageError, match="block"):
        ALGORITHM.rotate(RotationProblem(768), block=0)
