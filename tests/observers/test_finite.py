# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from fewbit.model.watch import reductions
from fewbit.observers._finite import FiniteGuard, NonFinite


def test_finite_values_pass_untouched():
    guard = FiniteGuard()
    x = torch.randn(5, 3)
    assert guard.admit(x, 0) is x
    assert guard.admit(torch.arange(3), 1).dtype is torch.int64
    assert guard.admit(torch.empty(0, 3), 2).shape == (0, 3)
    assert guard.found() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_first_item_and_counts(dtype):
    guard = FiniteGuard()
    guard.admit(torch.ones(4, dtype=dtype), 0)
    bad = torch.tensor([1.0, math.nan, math.inf, math.inf, -math.inf], dtype=dtype)
    assert guard.admit(bad, 3).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert bad.isnan().sum() == 1  # the caller's tensor stays as it was
    guard.admit(torch.ones(4, dtype=dtype), 4)
    guard.admit(torch.tensor([math.nan], dtype=dtype), 5)
    assert guard.found() == NonFinite(item=3, nan=2, positive=2, negative=1)


def test_what_was_found_reads_well():
    guard = FiniteGuard()
    guard.admit(torch.tensor([math.inf, math.nan, math.nan]), 12)
    assert str(guard.found()) == "2 NaN, 1 +inf"


def test_large_finite_values_are_no_fault():
    """Sums of these overflow; nothing is summed."""
    guard = FiniteGuard()
    x = torch.full((1000,), 3e38)
    assert guard.admit(x, 0) is x


def test_on_a_device_nothing_is_read_back(monkeypatch):
    """The path of accelerators, walked on the host: reading a value would wait for the device."""
    monkeypatch.setattr("fewbit.observers._finite._all_finite", lambda x: False)
    guard = FiniteGuard()
    reads = []
    for name in ("item", "__bool__", "__int__", "__float__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: reads.append(name))
    x = torch.ones(3)
    admitted = [guard.admit(x, 0), guard.admit(torch.tensor([1.0, math.nan]), 1), guard.admit(x, 2)]
    monkeypatch.undo()
    assert reads == []
    assert admitted[0].tolist() == [1, 1, 1] and admitted[1].tolist() == [1, 0]
    assert guard.found() == NonFinite(item=1, nan=1, positive=0, negative=0)


@pytest.mark.parametrize("needs", [{"low", "high"}, {"sum", "square", "count"}, {"taps"}, {"sample"}, {"square"}])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_where_the_values_are_not_at_hand(value, needs):
    guard = FiniteGuard()
    good, bad = torch.full((3, 2), 3e38), torch.ones(3, 2)
    bad[1, 1] = value
    for item, x in ((0, good), (1, good), (2, bad), (3, good), (4, bad)):
        known = reductions(x, frozenset(needs)) | ({"taps": x.double().sum(0)[:, None]} if "taps" in needs else {})
        assert guard.look(known, item) is (item not in (2, 4))
    found = guard.found()
    name = "NaN" if math.isnan(value) else "+inf" if value > 0 or needs == {"square"} else "-inf"
    assert found.item == 2 and str(found) == name


def test_squares_that_overflow_by_themselves_are_no_fault():
    guard = FiniteGuard()
    x = torch.full((2, 2), 1e200, dtype=torch.float64)
    assert guard.look(reductions(x, frozenset({"sum", "square"})), 0) and guard.found() is None
    assert not guard.look(reductions(x, frozenset({"low", "high"})), 1), "observers keep float32"
