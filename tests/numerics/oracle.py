# SPDX-License-Identifier: Apache-2.0
"""What the numbers should be, found in another way: ml_dtypes' tables, exact distances, the OCP formulas in numpy."""

import ml_dtypes
import numpy as np

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.rounding import RoundType

FLOATS = {
    Dtype.fp4: ml_dtypes.float4_e2m1fn,
    Dtype.fp6_e2m3: ml_dtypes.float6_e2m3fn,
    Dtype.fp6_e3m2: ml_dtypes.float6_e3m2fn,
    Dtype.fp8_e4m3: ml_dtypes.float8_e4m3fn,
    Dtype.fp8_e5m2: ml_dtypes.float8_e5m2,
    Dtype.float16: np.float16,
    Dtype.bfloat16: ml_dtypes.bfloat16,
}
SMALL = [dtype for dtype in FLOATS if dtype.bits <= 8]
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)  # every float16 there is
FINITE_HALVES = HALVES[np.isfinite(HALVES)]


def magnitudes(dtype: Dtype) -> np.ndarray:
    """Every finite value of a float type that is not negative, ascending, in float64; its index is its code."""
    unsigned = np.arange(1 << (dtype.bits - 1), dtype=np.uint8 if dtype.bits <= 8 else np.uint16)
    with np.errstate(invalid="ignore"):  # about the NaN among them
        values = unsigned.view(FLOATS[dtype]).astype(np.float64)
    return values[np.isfinite(values)]


def settle(x: np.ndarray, dtype: Dtype, mode: RoundType) -> np.ndarray:
    """`x` on the grid of a float type, by exact distances to both neighbours."""
    x = np.asarray(x, dtype=np.float64)
    grid = magnitudes(dtype)
    size = np.minimum(np.abs(x), grid[-1])
    above = np.searchsorted(grid, size)  # grid[above - 1] < size <= grid[above]
    below = np.where(grid[above] == size, above, np.maximum(above - 1, 0))
    if mode is RoundType.floor:
        chosen = np.where(x < 0, above, below)
    else:
        to_above, to_below = grid[above] - size, size - grid[below]
        tie_up = above % 2 == 0 if mode is RoundType.half_even else True
        chosen = np.where((to_above < to_below) | ((to_above == to_below) & tie_up), above, below)
    return np.copysign(grid[chosen], x)


def around(values: np.ndarray) -> np.ndarray:
    """Values, the middles between neighbours, and the float32 on each side of either: where rounding decides."""
    values = np.unique(values.astype(np.float32))
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    points = np.concatenate([values, middles])
    return np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))])
