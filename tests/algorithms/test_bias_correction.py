# SPDX-License-Identifier: Apache-2.0
"""Bias correction, layer by layer: driven over a small network of rounded layers as an engine would."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fewbit.algorithms import bias_correction, fast_bias_correction
from fewbit.algorithms._base import BiasProblem, OutputMeans, Taps
from fewbit.errors import DataError, UsageError


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def case(wanted, found, aside=None, **more):
    weight = torch.ones(len(wanted), 1)
    held_out = None if aside is None else OutputMeans(*map(torch.tensor, aside))
    means = OutputMeans(torch.tensor(wanted), torch.tensor(found))
    return BiasProblem(weight, weight, outputs=means, held_out_outputs=held_out, **more)


def test_the_shift_is_the_difference():
    shift = bias_correction.solve(case([1.0, 0.0, -3.0], [0.5, 0.0, -2.0]))
    torch.testing.assert_close(shift.amount, torch.tensor([0.5, 0.0, -1.0]))
    assert shift.facts["kept"] == 2 and shift.facts["mean_error_before"] == pytest.approx(1.25 / 3)
    assert shift.facts["mean_error"] == 0.0 and not shift.facts["relative"]


def test_channels_are_kept_one_by_one():
    aside = ([1.0, 1.0, 1.0], [0.7, 1.2, 0.5])  # off by 0.3, -0.2 and 0.5
    shift = bias_correction.solve(case([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], aside, mean_square=torch.full((3,), 4.0)))
    torch.testing.assert_close(shift.amount, torch.tensor([0.5, 0.0, 0.5]))
    assert shift.facts["held_out_mean_error_before"] == pytest.approx((0.09 + 0.04 + 0.25) / 12)
    assert shift.facts["held_out_mean_error"] == pytest.approx((0.04 + 0.04) / 12)


def test_large_means_keep_their_digits():
    shift = bias_correction.solve(case([1e8], [1e8 - 8]))
    assert shift.amount.item() == 8.0


def test_it_sees_what_the_fast_form_cannot():
    """Three layers, each on the rounded output of the one before: in the end the means are those of the float model."""
    weights, x = [draw(16, 16, seed=seed) / 4 for seed in range(3)], draw(4000, 16, seed=9).abs()
    rounded = [(w * 4).round() / 4 for w in weights]

    def forward(weights, shifts):
        outputs, now = [], x
        for w, b in zip(weights, shifts):
            outputs.append(F.linear(now, w, b))
            now = outputs[-1].relu()
            now = now if weights is not rounded else (now * 2).round() / 2
        return outputs

    none = [torch.zeros(16)] * 3
    wanted = [y.mean(0) for y in forward(weights, none)]
    inputs = [x, *(y.relu() for y in forward(weights, none)[:2])]
    slow, fast = list(none), list(none)
    for at in range(3):
        found = forward(rounded, slow)[at].mean(0)
        problem = BiasProblem(
            weights[at],
            rounded[at],
            taps=Taps(inputs[at].double().sum(0), len(x)),
            outputs=OutputMeans(wanted[at], found),
        )
        slow[at] = bias_correction.solve(problem).amount
        fast[at] = fast_bias_correction.solve(problem).amount
    off = {
        name: (forward(rounded, shifts)[-1].mean(0) - wanted[-1]).abs().max()
        for name, shifts in (("none", none), ("fast", fast), ("slow", slow))
    }
    assert off["slow"] < 1e-5 < off["fast"] < off["none"]


def test_nothing_reached_the_layer():
    shift = bias_correction.solve(BiasProblem(torch.ones(2, 2), torch.zeros(2, 2)))
    assert shift.amount is None and "reached" in shift.facts["reason"]


def test_what_does_not_fit():
    with pytest.raises(UsageError, match=r"outputs\.found of shape \[2\]"):
        bias_correction.solve(case([1.0], [1.0, 2.0]))
    with pytest.raises(DataError, match=r"outputs\.wanted"):
        bias_correction.solve(case([float("inf")], [1.0]))
    with pytest.raises(UsageError, match="mean_square"):
        bias_correction.solve(replace(case([1.0], [1.0]), mean_square=torch.ones(2)))


numbers = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=6))
def test_never_worse(rows):
    wanted, found, other, aside = map(list, zip(*rows))
    shift = bias_correction.solve(case(wanted, found, (other, aside)))
    off = torch.tensor(other, dtype=torch.float64) - torch.tensor(aside, dtype=torch.float64)
    amount = torch.zeros(len(off)) if shift.amount is None else shift.amount
    assert ((off - amount).abs() <= off.abs()).all()
    assert shift.facts["held_out_mean_error"] <= shift.facts["held_out_mean_error_before"]
