# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.batch import count_samples, cut, stack
from fewbit.errors import DataError


@pytest.mark.parametrize(
    ("item", "count"),
    [
        (torch.zeros(4, 3), 4),
        ((torch.zeros(4, 3), torch.zeros(4)), 4),
        ({"ids": np.zeros((8, 5)), "mask": np.zeros((8, 5)), "bias": np.zeros((1, 1, 5, 5))}, 8),
        ({"n": 3}, 1),
        (torch.tensor(1.0), 1),
        ([{"x": torch.zeros(2, 2)}], 2),
    ],
)
def test_an_item_counts_as_the_samples_it_holds(item, count):
    assert count_samples(item) == count


@given(st.integers(1, 9), st.integers(0, 12))
def test_a_cut_item_holds_that_many_samples_and_keeps_what_is_shared(size, wanted):
    item = {"x": np.arange(size * 2).reshape(size, 2), "more": (torch.arange(size), np.zeros((size + 1, 1)))}
    short = cut(item, wanted)
    assert np.array_equal(short["x"], item["x"][:wanted])
    assert torch.equal(short["more"][0], item["more"][0][:wanted])
    assert short["more"][1].shape == (size + 1, 1)


def test_samples_stack_on_a_new_axis():
    batch = stack([{"x": np.ones((2, 3)), "y": np.ones(2)}] * 4)
    assert batch["x"].shape == (4, 2, 3) and batch["y"].shape == (4, 2)


def test_samples_of_different_shape_are_named():
    with pytest.raises(DataError, match=r"\(3,\) in sample 10 and \(4,\) in sample 11") as caught:
        stack([{"x": np.zeros(3)}, {"x": np.zeros(4)}], numbers=[10, 11])
    assert "batch_size=1" in caught.value.try_
