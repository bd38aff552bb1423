# SPDX-License-Identifier: Apache-2.0
from math import isnan, nan

import pytest
import torch

from fewbit.engine.nearness import nearness


def answers(*items):
    return [[torch.tensor(output) for output in item] for item in items]


def test_every_item_counts_alike_and_the_worst_is_named():
    small, large = [[0.0, 1.0]], [[0.0, 1000.0]]
    found = nearness(answers([small], [large], [small]), answers([[[0.0, 1.5]]], [[[0.0, 1000.0]]], [[[0.0, 1.1]]]))
    # The energy about the mean of (0, 1) is 1/2; the differences are 0.5 and 0.1.
    assert found["error"] == pytest.approx((0.25 / 0.5 + 0 + 0.01 / 0.5) / 3)
    assert found["worst"] == pytest.approx(0.5) and found["worst_item"] == 0 and found["items"] == 3


def test_the_worst_is_of_an_item_with_all_its_outputs():
    wanted = answers([[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]])
    found = nearness(wanted, answers([[0.0, 2.0], [0.0, 1.0]], [[0.0, 1.8], [0.0, 1.8]]))
    assert found["worst_item"] == 1 and found["worst"] == pytest.approx(0.64 / 0.5)


def test_what_is_not_a_number_is_the_worst():
    found = nearness(answers([[0.0, 1.0]], [[0.0, nan]]), answers([[0.0, 9.0]], [[0.0, nan]]))
    assert isnan(found["worst"]) and found["worst_item"] == 1


def test_no_items():
    assert nearness([], []) == {"items": 0, "error": 0.0, "worst": 0.0, "worst_item": None, "agreement": None}
