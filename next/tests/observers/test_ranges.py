# SPDX-License-Identifier: Apache-2.0
"""Ranges against sorting, exhaustive search and definitions in other words."""

import numpy as np
import pytest

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.observers._base import make_observer
from fewbit.observers._histogram import HistogramBase
from fewbit.observers.mse import _Tails

INT8, UINT8 = QuantizationGrid(Dtype.int8), QuantizationGrid(Dtype.uint8, symmetric=False)


def observed(name: str, x: np.ndarray, **parameters):
    observer = make_observer(name, parameters)
    observer.update(np.atleast_2d(x).astype(np.float32))
    return observer


def heavy(count: int = 20_000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, count).astype(np.float32)


def test_bins_hold_what_their_edges_say():
    """Every value, counted by comparing it with the edges in float64."""
    edges = 2.0 ** np.arange(-20, 4)
    x = np.concatenate([heavy(3000), np.zeros(7), edges, -edges]).astype(np.float32)
    histogram = next(observed("percentile", x, bins=64).histograms())
    number = np.arange(131) - 65
    for column, n in enumerate(number):
        width = histogram.width[0]
        if n == 0:
            expected = (x == 0).sum()
        elif n > 0:
            expected = ((x > 0) & (x >= (n - 1) * width) & (x < n * width)).sum()
        else:
            expected = ((x < 0) & (-x >= (-n - 1) * width) & (-x < -n * width)).sum()
        assert histogram.counts[0, column] == expected
    assert histogram.counts.sum() == len(x)


@pytest.mark.parametrize("top", [1.0, 0.999, 1.001, 3e38, 1e-38, 1e-45])
def test_width_is_the_smallest_power_that_fits(top):
    width = next(observed("percentile", np.array([top, 0.0]), bins=100).histograms()).width[0]
    assert 100 * width >= np.float32(top)
    assert 50 * width < np.float32(top) or width == 2.0**-126


def test_magnitudes_join_both_sides():
    x = heavy(5000)
    both = next(observed("percentile", x, bins=32).histograms()).magnitudes()
    alone = next(observed("percentile", abs(x), bins=32).histograms())
    np.testing.assert_array_equal(both.counts[0], alone.counts[0, 33:])
    np.testing.assert_array_equal(both.tops[0, 1:], alone.tops[0, 34:])


def test_medians_lie_in_their_bin():
    for seed in range(5):
        x = heavy(1001, seed)
        histogram = next(observed("percentile", x).histograms())
        assert abs(histogram.median[0] - np.median(x)) <= histogram.width[0]
        np.testing.assert_array_equal(histogram.compact().median, histogram.median)


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9, 100])
def test_percentiles_against_sorting(percentile):
    x = heavy(10_000)
    width = next(observed("percentile", x).histograms()).width[0]
    share = 1 - percentile / 100
    low, high = observed("percentile", x, percentile=percentile).range(INT8)
    magnitude = np.sort(abs(x))[::-1]
    clipped = int(round(share * len(x), 6))
    assert 0 <= max(-low[0], high[0]) - magnitude[clipped] <= width  # no more clipped, and no bin too far
    low, high = observed("percentile", x, percentile=percentile).range(UINT8)
    rising, half = np.sort(x), int(round(share * len(x) / 2, 6))
    assert 0 <= rising[half] - low[0] <= width and 0 <= high[0] - rising[-1 - half] <= width


def test_a_percentile_of_zeros_keeps_the_rest():
    """A cut that leaves only zeros leaves everything; 100 - 99.9 is a little below a tenth in float64."""
    x = np.zeros(100_000, np.float32)
    x[:3] = [1.0, -2.0, 0.5]
    for grid in (INT8, UINT8):
        low, high = observed("percentile", x).range(grid)
        assert (low[0], high[0]) == (-2.0, 1.0)
    thousand = np.arange(1, 1001, dtype=np.float32)
    assert observed("percentile", thousand, percentile=99.9).range(INT8)[1][0] < 1000


def test_thin_tails_are_cut_and_thick_ones_are_not():
    body = np.tile(np.linspace(-1, 1, 1001), 2000)
    low, high = observed("histogram", np.append(body, [30.0, -7.0])).range(UINT8)
    assert -1.05 < low[0] <= -1 and 1 <= high[0] < 1.05
    low, high = observed("histogram", np.append(body, np.full(3000, 30.0))).range(UINT8)
    assert high[0] == 30
    low, high = observed("histogram", np.append(np.linspace(-1, 1, 99), 50)).range(INT8)  # too few to judge
    assert (low[0], high[0]) == (-1, 50)


def test_moving_average_by_its_definition():
    highs, c = [1.0, 5.0, 2.0, 8.0], 0.3
    observer = make_observer("moving_average", {"averaging_constant": c})
    for high in highs:
        observer.update(np.array([[-high / 2, high]], np.float32))
    weights = np.array([(1 - c) ** (3 - t) for t in range(4)])
    expected = (weights * highs).sum() / weights.sum()
    assert observer.range(INT8)[1][0] == pytest.approx(expected, rel=1e-6)
    assert observer.range(INT8)[0][0] == pytest.approx(-expected / 2, rel=1e-6)


def test_moments_and_hessian_by_their_definition():
    x = np.random.default_rng(0).normal(1, 2, (5, 300)).astype(np.float32)
    moments, hessian = observed("moments", x), observed("hessian", x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(moments.mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(moments.mean_square, (wide**2).mean(1), rtol=1e-6)
    np.testing.assert_allclose(hessian.mean_product, wide @ wide.T / 300, rtol=1e-12)
    np.testing.assert_allclose(hessian.mean_square, (wide**2).mean(1), rtol=1e-6)


GRIDS = {
    "int8": INT8,
    "uint8": UINT8,
    "int4": QuantizationGrid(Dtype.int4),
    "int4 signed scale": QuantizationGrid(Dtype.int4, full_range=True),
    "int8 signed scale": QuantizationGrid(Dtype.int8, full_range=True),
    "uint4": QuantizationGrid(Dtype.uint4, symmetric=False),
    "uint3 float zero": QuantizationGrid(Dtype.uint3, symmetric=False, float_zero=True),
    "fp4": QuantizationGrid(Dtype.fp4),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3),
}


def squared_error(x: np.ndarray, low: float, high: float, grid: QuantizationGrid) -> float:
    qparams = qparams_from_min_max(np.array([low], np.float32), np.array([high], np.float32), grid, (len(x),))
    return float(np.square(fake_quantize(x, qparams).astype(np.float64) - x).mean())


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("shift", [0.0, 3.0, -20.0])
def test_mse_against_exhaustive_search(name, shift):
    """Within 3 % of the best of 900 ranges, judged by the values themselves; never worse than the complete range."""
    x, grid = heavy(4000) + np.float32(shift), GRIDS[name]
    ends = observed("mse", x).range(grid)
    error = squared_error(x, ends[0][0], ends[1][0], grid)
    assert error <= squared_error(x, x.min(), x.max(), grid) * 1.001
    lows, highs = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    middle = np.median(x) if grid.free_zero else 0.0
    if grid.asymmetric:
        shares = np.linspace(1 / 30, 1, 30)
        below, above = x.min() - middle, x.max() - middle
        candidates = [(middle + a * below, middle + b * above) for a in shares for b in shares]
    else:
        tops = np.linspace(1 / 900, 1, 900) * max(-lows, highs)
        candidates = [(max(lows, -top), min(highs, top)) for top in tops]
    best = min(squared_error(x, low, high, grid) for low, high in candidates)
    assert error <= 1.03 * best


@pytest.mark.parametrize("name", ["int8", "uint8", "int8 signed scale"])
def test_closed_form_of_the_error_against_quantization(name):
    x, grid = heavy(50_000), GRIDS[name]
    histogram = next(observed("mse", x, bins=1 << 15).histograms()).compact()
    tails = _Tails(histogram, grid)
    for share in (1.0, 0.5, 0.2, 0.05):
        low, high = x.min() * share, x.max() * share
        closed = tails.error(np.array([[low]], np.float32), np.array([[high]], np.float32))[0, 0]
        assert closed * histogram.absmax[0] ** 2 == pytest.approx(squared_error(x, low, high, grid), rel=0.02)


def divergence(x: np.ndarray, low: float, high: float, grid: QuantizationGrid, observer: HistogramBase) -> float:
    """The definition in loops: the histogram with clipped ends against the one that the levels can tell."""
    histogram = next(observer.histograms()).compact()
    pairs = [(c, n) for c, n in zip(histogram.centers[0], histogram.counts[0]) if n and c != 0]
    if not grid.asymmetric:
        largest = max(-low, high)
        low, high = -largest, largest
    inside = [(c, n) for c, n in pairs if low <= c <= high]
    if not inside:
        return np.inf
    true = [n for _, n in inside]
    true[0] += sum(n for c, n in pairs if c < low)
    true[-1] += sum(n for c, n in pairs if c > high)
    qparams = qparams_from_min_max(np.array([low], np.float32), np.array([high], np.float32), grid, (1,))
    levels = {}
    for c, n in inside:
        levels.setdefault(float(fake_quantize(np.array([c], np.float32), qparams)[0]), []).append(n)
    model = [sum(ns) / len(ns) for ns in levels.values() for _ in ns]
    return sum(p * np.log(p / q) for p, q in zip(true, model)) / sum(n for _, n in pairs)


@pytest.mark.parametrize("name", ["int4", "uint4", "fp4"])
def test_entropy_against_its_definition(name):
    x, grid = heavy(20_000), GRIDS[name]
    observer = observed("entropy", x, bins=128)
    histogram = next(observer.histograms()).compact()
    cost = observer.cost(histogram, grid, None)
    for share in (1.0, 0.4, 0.1):
        low, high = np.float32(x.min() * share), np.float32(x.max() * share)
        found = cost(np.array([[low]]), np.array([[high]]))[0, 0]
        assert found == pytest.approx(divergence(x, low, high, grid, observer), rel=1e-5, abs=1e-9)
    low, high = observer.range(grid)
    assert cost(low[None], high[None])[0, 0] <= cost(histogram.low[None], histogram.high[None])[0, 0]


def test_entropy_clips_lone_outliers_and_ignores_zeros():
    x = np.random.default_rng(0).normal(0, 1, 100_000).astype(np.float32)
    outlier = np.append(x, 60).astype(np.float32)
    low, high = observed("entropy", outlier).range(QuantizationGrid(Dtype.int4))
    assert 1.5 < max(-low[0], high[0]) < 20
    rectified = np.maximum(outlier, 0)
    more_zeros = np.append(rectified, np.zeros(10**6, np.float32))
    first, second = (observed("entropy", values).range(UINT8)[1][0] for values in (rectified, more_zeros))
    assert first == second
