# SPDX-License-Identifier: Apache-2.0
"""What tests of numerics share: both libraries, and numbers computed in another way (ml_dtypes, exact distances)."""

import ml_dtypes
import numpy as np
import torch

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.rounding import RoundType

ML_DTYPES = {
    Dtype.fp4: ml_dtypes.float4_e2m1fn,
    Dtype.fp6_e2m3: ml_dtypes.float6_e2m3fn,
    Dtype.fp6_e3m2: ml_dtypes.float6_e3m2fn,
    Dtype.fp8_e4m3: ml_dtypes.float8_e4m3fn,
    Dtype.fp8_e5m2: ml_dtypes.float8_e5m2,
    Dtype.float16: np.float16,
    Dtype.bfloat16: ml_dtypes.bfloat16,
}
SMALL_FLOATS = [dtype for dtype in ML_DTYPES if dtype.bits <= 8]
FLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
FINITE_FLOAT16 = FLOAT16[np.isfinite(FLOAT16)]
FLOAT32_MAX = float(np.finfo(np.float32).max)
LIBRARIES = {"numpy": lambda x: x, "torch": lambda x: torch.from_numpy(np.array(x))}


def host(x):
    """Any array as numpy's."""
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def to_bytes(x):
    """The bytes of an array."""
    return np.ascontiguousarray(host(x)).tobytes()


def same_bits(left, right):
    left, right = (np.ascontiguousarray(host(x), dtype=np.float32).view(np.uint32) for x in (left, right))
    return np.array_equal(left, right)


def fit(x, grid, block=None):
    """Scales from the range of the tensor itself."""
    block = grid.weight_block(tuple(x.shape)) if block is None else block
    low, high = BlockShape(tuple(x.shape), block).extremes(x)
    return qparams_from_min_max(low, high, grid, block)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def magnitudes(dtype):
    """Every finite value of a float type from zero up, float64; the index is the bit pattern."""
    patterns = np.arange(1 << (dtype.bits - 1), dtype=np.uint8 if dtype.bits <= 8 else np.uint16)
    with np.errstate(invalid="ignore"):
        values = patterns.view(ML_DTYPES[dtype]).astype(np.float64)
    return values[np.isfinite(values)]


def nearest_values(x, dtype, mode):
    """`x` on the values of a float type, by exact distances to both neighbors."""
    x = np.asarray(x, dtype=np.float64)
    values = magnitudes(dtype)
    size = np.minimum(np.abs(x), values[-1])
    above = np.searchsorted(values, size)
    below = np.where(values[above] == size, above, np.maximum(above - 1, 0))
    if mode is RoundType.floor:
        chosen = np.where(x < 0, above, below)
    else:
        up, down = values[above] - size, size - values[below]
        tie_up = above % 2 == 0 if mode is RoundType.half_even else True
        chosen = np.where((up < down) | ((up == down) & tie_up), above, below)
    return np.copysign(values[chosen], x)


def around(values):
    """Values, the middles of neighbors, and the float32 on each side of either: where rounding decides."""
    values = np.unique(values.astype(np.float32))
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    points = np.concatenate([values, middles])
    return np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))])
