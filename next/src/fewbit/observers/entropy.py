# SPDX-License-Identifier: Apache-2.0
"""The range of least information loss (Migacz, "8-bit Inference with TensorRT", GTC 2017).

The histogram, with everything beyond the range counted in the outermost bins inside, is compared with the one that the
grid can tell apart: the values inside, spread evenly over the bins of their level. Four details matter:

- The levels are those of the real grid: any type, stored scales, two ends.
- Empty bins belong to neither side, so the divergence needs no smoothing.
- The second side is not normalized: what is clipped is lost. Normalized, a range of a single bin would look perfect.
- Zeros are left out: every grid has them, and after a ReLU they would hide all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.scales import ScaleType
from fewbit.observers._histogram import Histogram
from fewbit.observers._search import Cost, SearchBase


@dataclass(kw_only=True, eq=False)
class EntropyObserver(SearchBase):
    """Range of least Kullback-Leibler divergence; it needs many more values than bins.

    Args:
        bins: of the histogram, on each side of zero.
        candidates: ranges tried in the first round.
    """

    name = "entropy"

    def cost(self, histogram: Histogram, grid: QuantizationGrid, global_scale: np.ndarray | None) -> Cost:
        """The divergence in nats; infinite if no value lies in the range."""
        centers = histogram.centers  # ascending, but for unused columns at the end
        counts = np.where(centers == 0, 0, histogram.counts)
        total = np.maximum(counts.sum(1), 1)

        def divergence(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            ends = low[..., None], high[..., None]
            qparams = qparams_from_min_max(*ends, grid, (1, 1, centers.shape[1]), global_scale=global_scale)
            bottom, top = _covered(*ends, qparams)
            inside = (counts > 0) & (centers >= bottom) & (centers <= top)  # [C, R, n]
            mass = np.where(inside, counts, 0)
            clipped = mass + _at_ends(inside, counts, centers, bottom, top)
            repeated = np.ascontiguousarray(np.broadcast_to(centers, inside.shape))
            level = _levels(fake_quantize(repeated, qparams))
            spread = _per_level(mass, level) / np.maximum(_per_level(inside, level), 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.where(inside, clipped * np.log(clipped / spread), 0.0).sum(-1) / total
            return np.where(inside.any(-1), terms, np.inf)

        return divergence


def _covered(low: np.ndarray, high: np.ndarray, qparams: QParams) -> tuple[np.ndarray, np.ndarray]:
    """The range that the grid reaches: a scale that is a power of two may be half or twice the one asked for."""
    grid = qparams.grid
    exact = qparams_from_min_max(low, high, grid.replace(scale_type=ScaleType.float32), qparams.block)
    ratio = np.abs(qparams.step / exact.step)
    if grid.asymmetric:
        return low, low + (high - low) * ratio
    largest = np.maximum(-low, high) * ratio
    return -largest, largest


def _at_ends(
    inside: np.ndarray, counts: np.ndarray, centers: np.ndarray, bottom: np.ndarray, top: np.ndarray
) -> np.ndarray:
    """What lies beyond the range, counted in the first and the last bin inside: `[C, R, n]`."""
    result = np.zeros(inside.shape)
    first = inside.argmax(-1)[..., None]
    last = inside.shape[-1] - 1 - inside[..., ::-1].argmax(-1)[..., None]
    for index, beyond in ((first, centers < bottom), (last, centers > top)):
        amount = np.where(beyond, counts, 0).sum(-1, keepdims=True)
        np.put_along_axis(result, index, np.take_along_axis(result, index, -1) + amount, -1)
    return result


def _levels(quantized: np.ndarray) -> np.ndarray:
    """Bins numbered by the level they are rounded to, from 0 in each row."""
    changes = quantized[..., 1:] != quantized[..., :-1]
    return np.concatenate([np.zeros((*changes.shape[:-1], 1), np.int64), changes.cumsum(-1)], -1)


def _per_level(values: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The sum over the bins of each level, for every bin: `[C, R, n]`."""
    columns = level.shape[-1]
    rows = level.reshape((-1, columns))
    places = rows + np.arange(len(rows))[:, None] * columns
    sums = np.bincount(places.ravel(), weights=values.ravel(), minlength=rows.size)
    return np.asarray(sums[places].reshape(level.shape))


OBSERVER = EntropyObserver
