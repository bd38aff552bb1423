# SPDX-License-Identifier: Apache-2.0
"""Against a slow, plain version that goes over the bins one by one."""

import math

import pytest
import torch

from fewbit import EntropyObserver, MinMaxObserver
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize

SYMMETRIC, ASYMMETRIC = Grid(Dtype.int4), Grid(Dtype.uint4, symmetric=False)


def level(x: float, low: float, high: float, grid: Grid) -> int:
    """The code of a value, from the textbook."""
    if grid.symmetric:
        step = max(-low, high) / 7.5
        return max(-8, min(7, round(x / step)))
    step = (high - low) / 15
    return max(0, min(15, round(x / step) - round(low / step)))


def divergence(bins: list[tuple[float, int]], low: float, high: float, grid: Grid) -> float:
    """KL of what the levels tell from what was seen; `bins` are (centre, count), ascending, none empty or zero."""
    if grid.symmetric:
        low, high = -max(-low, high), max(-low, high)
    inside = [(x, n) for x, n in bins if low <= x <= high]
    if not inside:
        return math.inf
    seen = [n for _, n in inside]
    seen[0] += sum(n for x, n in bins if x < low)
    seen[-1] += sum(n for x, n in bins if x > high)
    shares: dict[int, list[int]] = {}
    for x, n in inside:
        shares.setdefault(level(x, low, high, grid), []).append(n)
    total = 0.0
    for (x, _), n in zip(inside, seen):
        mates = shares[level(x, low, high, grid)]
        total += n * math.log(n / (sum(mates) / len(mates)))
    return total / sum(n for _, n in bins)


def observed(x: torch.Tensor, bins: int = 256) -> EntropyObserver:
    observer = EntropyObserver(bins=bins)
    observer.observe(x)
    return observer


def plain_bins(observer: EntropyObserver) -> list[tuple[float, int]]:
    seen = observer.spectrum
    pairs = zip(seen.centres[0].tolist(), seen.counts[0].tolist())
    return [(x, n) for x, n in pairs if n and x]


def draw(kind: str, size: int = 5000) -> torch.Tensor:
    make = torch.Generator().manual_seed(0)
    normal = torch.randn(1, size, generator=make)
    return {
        "normal": normal,
        "relu": normal.relu(),
        "cubed": normal**3,
        "shifted": normal * 0.2 + 4,
        "outlier": torch.cat([normal, torch.tensor([[80.0]])], 1),
    }[kind]


@pytest.mark.parametrize("grid", [SYMMETRIC, ASYMMETRIC], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("kind", ["normal", "relu", "cubed", "shifted", "outlier"])
def test_the_divergence_is_the_plain_one(kind, grid):
    observer = observed(draw(kind))
    bins = plain_bins(observer)
    low, high = (observer.state()[end] for end in ("low", "high"))
    cost = observer.cost(observer.spectrum.compact(), grid)
    lowest, highest = low.clamp(max=0), high.clamp(min=0)
    for down in (1.0, 0.71, 0.3, 0.013):
        for up in (1.0, 0.61, 0.22, 0.017):
            ends = (lowest * down, highest * up)
            wanted = divergence(bins, ends[0].item(), ends[1].item(), grid)
            assert cost(ends[0][None], ends[1][None]).item() == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("grid", [SYMMETRIC, ASYMMETRIC], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("kind", ["normal", "relu", "cubed", "shifted", "outlier"])
def test_no_range_of_a_lattice_is_better(kind, grid):
    observer = observed(draw(kind))
    bins = plain_bins(observer)
    low, high = (end.item() for end in observer.range(grid))
    ours = divergence(bins, min(low, 0.0), max(high, 0.0), grid)
    bottom, top = min(observer.state()["low"].item(), 0.0), max(observer.state()["high"].item(), 0.0)
    if grid.symmetric:
        ranges = [(-max(-bottom, top) * i / 100, max(-bottom, top) * i / 100) for i in range(1, 101)]
    else:
        ranges = [(bottom * i / 10, top * j / 10) for i in range(1, 11) for j in range(1, 11)]
    assert ours <= min(divergence(bins, *ends, grid) for ends in ranges) + 1e-6


def test_a_long_tail_is_cut_and_a_flat_distribution_is_not():
    tail = observed(draw("outlier", 100_000), bins=2048)
    assert tail.range(Grid(Dtype.int8))[1].item() < 20  # of 80
    flat = observed(torch.rand(1, 100_000, generator=torch.Generator().manual_seed(0)) * 2 - 1, bins=2048)
    for grid in (Grid(Dtype.int8), Grid(Dtype.uint8, symmetric=False)):
        assert all(abs(end.item()) > 0.98 for end in flat.range(grid))


def test_a_range_of_one_bin_is_not_perfect():
    """The original's flaw: everything counted in the single bin left, and nothing but that bin to tell it from."""
    observer = observed(draw("shifted", 100_000), bins=2048)
    assert observer.range(Grid(Dtype.int8))[1].item() > 4.5


def test_the_zeros_of_a_relu_change_nothing():
    x = draw("normal", 20000).relu()
    zeros = torch.cat([x, torch.zeros(1, 200_000)], 1)
    for grid in (SYMMETRIC, ASYMMETRIC):
        assert torch.equal(torch.stack(observed(x).range(grid)), torch.stack(observed(zeros).range(grid)))


@pytest.mark.parametrize("symmetric", [True, False])
def test_more_levels_than_bins_lose_nothing(symmetric):
    x = draw("cubed")
    low, high = observed(x).range(Grid(Dtype.int16, symmetric=symmetric))
    assert low.item() == pytest.approx(x.amin().item()) and high.item() == pytest.approx(x.amax().item())


@pytest.mark.parametrize("grid", [Grid(Dtype.int8), Grid(Dtype.uint8, symmetric=False)])
@pytest.mark.parametrize("kind", ["normal", "relu", "shifted"])
def test_good_data_is_about_as_good_as_min_max(kind, grid):
    x = draw(kind, 100_000)
    errors = []
    for observer in (EntropyObserver(), MinMaxObserver()):
        observer.observe(x)
        low, high = observer.range(grid)
        moved = fake_quantize(x, from_range(low[:, None], high[:, None], grid, (1, x.shape[1])))
        errors.append((moved - x).square().mean().item())
    assert errors[0] <= 1.1 * errors[1]
