# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from fewbit import HistogramObserver, PerTensorHistogramObserver, UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range

SYMMETRIC, ASYMMETRIC = Grid(Dtype.int8), Grid(Dtype.uint8, symmetric=False)


def seen(x: torch.Tensor, **parameters: float) -> HistogramObserver:
    observer = HistogramObserver(**parameters)
    observer.observe(x)
    return observer


def test_the_range_reaches_the_scale():
    """Defect 3: the range was never set, and the scale was 1.0 without a word."""
    observer = PerTensorHistogramObserver()
    x = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0))
    observer.observe(x)
    scale = from_range(*observer.range(SYMMETRIC), SYMMETRIC, (4000,)).scale
    assert scale.item() == pytest.approx(x.abs().amax().item() / 127.5)


def test_lone_outliers_go_and_full_tails_stay():
    x = torch.linspace(-1, 1, 100_001)[None].clone()
    x[0, 0], x[0, 1] = 50.0, -40.0
    observer = seen(x, mass=1e-4)
    width = 2.0 ** int(observer.state()["exponent"])
    for grid in (SYMMETRIC, ASYMMETRIC):
        low, high = observer.range(grid)
        assert -1 - width <= low.item() <= -1 + 1e-3 and 1 - 1e-3 <= high.item() <= 1 + width


def test_against_a_plain_walk_from_the_ends():
    x = torch.randn(1, 3000, generator=torch.Generator().manual_seed(1)) ** 3
    observer = seen(x, mass=0.01, bins=64)
    spectrum = observer.spectrum
    counts = spectrum.counts[0].tolist()
    first, last = 0, len(counts) - 1
    while counts[first] < 30:
        first += 1
    while counts[last] < 30:
        last -= 1
    low, high = observer.range(ASYMMETRIC)
    assert low == spectrum.bottoms[0, first] and high == spectrum.tops[0, last]


@pytest.mark.parametrize("mass", [0.0, 1e-6])
def test_few_values_are_all_kept(mass):
    x = torch.tensor([[-3.0, 0.1, 0.2, 90.0]])
    for grid in (SYMMETRIC, ASYMMETRIC):
        assert [end.item() for end in seen(x, mass=mass).range(grid)] == [-3.0, 90.0]


def test_if_no_bin_is_full_enough_all_are_kept():
    x = torch.linspace(-1, 2, 1000)[None]
    for grid in (SYMMETRIC, ASYMMETRIC):
        assert [end.item() for end in seen(x, mass=0.5).range(grid)] == [-1.0, 2.0]


def test_if_only_the_zeros_are_enough_all_are_kept():
    x = torch.cat([torch.zeros(1, 1000), torch.tensor([[1.0, 2.0]])], 1)
    for grid in (SYMMETRIC, ASYMMETRIC):
        assert seen(x, mass=0.5).range(grid)[1].item() == 2.0


@pytest.mark.parametrize("mass", [-0.1, 1.0])
def test_a_mass_out_of_range(mass):
    with pytest.raises(UsageError, match="mass"):
        HistogramObserver(mass=mass)
