# SPDX-License-Identifier: Apache-2.0
"""The closed form of the error of a fine grid, against rounding the values themselves."""

import pytest
import torch

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._tails import Tails
from fewbit.observers.mse import MSEObserver

DRAWS = {
    "normal": lambda g: torch.randn(1, 200_000, generator=g),
    "relu": lambda g: torch.randn(1, 200_000, generator=g).relu(),
    "heavy": lambda g: torch.randn(1, 200_000, generator=g) / torch.rand(1, 200_000, generator=g).add(0.05),
}


@pytest.mark.parametrize("share", [1.0, 0.7, 0.3, 0.05])
@pytest.mark.parametrize("grid", [Grid(Dtype.int8), Grid(Dtype.uint8, symmetric=False)], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", DRAWS)
def test_the_closed_form_is_the_error_of_rounding(kind, grid, share):
    values = DRAWS[kind](torch.Generator().manual_seed(0))
    observer = MSEObserver(bins=8192)
    observer.observe(values)
    seen = observer.spectrum
    low, high = share * values.amin(1), share * values.amax(1)
    found = Tails(seen, torch.ones(1)).error(low[None], high[None], grid)[0, 0]
    rounded = fake_quantize(values, from_range(low[:, None], high[:, None], grid, values.shape))
    torch.testing.assert_close(found, (rounded - values).square().mean(), rtol=0.03, atol=0)
