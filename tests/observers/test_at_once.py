# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from fewbit import MinMaxObserver, MSEObserver
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from fewbit.observers import _at_once
from fewbit.observers._at_once import ranges_of


@pytest.mark.parametrize("grid", [Grid(Dtype.int4), Grid(Dtype.fp4, scale_type=ScaleType.float8_e4m3fn)])
@pytest.mark.parametrize("make", [MinMaxObserver, MSEObserver])
def test_a_few_rows_at_a_time_give_the_same_ranges(make, grid, monkeypatch):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(0)) ** 3
    whole = make()
    whole.observe(rows)
    monkeypatch.setattr(_at_once, "_ROWS", 7)
    low, high = ranges_of(rows, grid, make)
    torch.testing.assert_close(low, whole.range(grid)[0])
    torch.testing.assert_close(high, whole.range(grid)[1])
