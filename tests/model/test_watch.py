# SPDX-License-Identifier: Apache-2.0
from math import gcd

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.model.watch import NEEDS, Watch, reductions, stride

ALL = frozenset(NEEDS)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    features=st.integers(-4, 3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.float64]),
    seed=st.integers(0, 9),
)
def test_reductions_are_those_of_numpy_whichever_axis_holds_the_features(shape, features, dtype, seed):
    features %= len(shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before = x.clone()
    rows = np.moveaxis(x.double().numpy(), features, -1).reshape(-1, shape[features])
    found = reductions(x, ALL, sample=10_000, features=features)
    assert found.keys() == ALL - {"taps", "windows", "products"} and torch.equal(x, before)
    assert np.array_equal(found["values"].double().numpy(), rows)
    assert np.array_equal(found["low"].double().numpy(), rows.min(0))
    assert np.array_equal(found["high"].double().numpy(), rows.max(0))
    np.testing.assert_allclose(found["sum"].numpy(), rows.sum(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["square"].numpy(), (rows**2).sum(0), rtol=1e-12)
    assert found["count"].dtype is torch.int64 and found["count"].ndim == 0 and int(found["count"]) == len(rows)
    assert sorted(found["sample"].tolist()) == sorted(x.flatten().tolist()), "fewer than asked for: all"


def test_sums_of_large_tensors_are_exact_in_any_layout():
    x = torch.arange(3 * 7 * 20_000).reshape(3, 7, 20_000).float() % 1009
    for each in (x, x.movedim(1, 2).contiguous().movedim(2, 1), x[:, :, ::3]):
        found = reductions(each, frozenset({"sum", "square"}), features=1)
        assert torch.equal(found["sum"], each.long().sum((0, 2)).double())
        assert torch.equal(found["square"], each.long().square().sum((0, 2)).double())


def test_what_is_not_finite_comes_through():
    x = torch.tensor([[1.0, torch.nan, torch.inf], [2.0, 0.0, 0.0]])
    for name, found in reductions(x, frozenset({"low", "high", "sum", "square"})).items():
        assert found[0].isfinite() and found[1].isnan(), name
        assert found[2] == (0 if name == "low" else torch.inf), name


@given(positions=st.integers(1, 3000), features=st.integers(1, 800), sample=st.integers(1, 2000))
def test_a_sample_is_large_enough_and_meets_every_feature_alike(positions, features, sample):
    count = positions * features
    step = stride(count, sample)
    taken = range(0, count, step)
    assert len(taken) >= min(sample, count) and gcd(step, features) == 1
    if count <= 200_000:
        met = np.bincount(np.array(taken) % features, minlength=features)
        assert met.max() - met.min() <= 1 + len(taken) // features, "no feature is passed by for another"
        if step <= positions:
            assert met.min() >= 1


def test_a_need_that_nobody_knows_is_refused():
    with pytest.raises(UsageError, match="nobody can tell median"):
        Watch(frozenset({"low", "median"}), lambda found, item: None)
