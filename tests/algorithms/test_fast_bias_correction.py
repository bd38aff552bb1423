# SPDX-License-Identifier: Apache-2.0
"""Fast bias correction against convolutions of every kind: the mean is put right exactly, and nothing is invented."""

from dataclasses import replace

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fewbit.algorithms import fast_bias_correction
from fewbit.algorithms._base import BiasProblem, Shift, Taps
from fewbit.errors import DataError, UsageError

PLAIN = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(weight, x, *, transposed=False, groups=1, **more):
    """The layer itself, with a weight in fewbit's layout `[out, in / groups, kernel…]`."""
    axes = weight.ndim - 3
    if weight.ndim == 2:
        return x @ weight.T
    if transposed:  # torch has [in, out / groups, kernel…]
        parted = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
        return TRANSPOSED[axes](x, parted.reshape(-1, *parted.shape[2:]), groups=groups, **more)
    return PLAIN[axes](x, weight, groups=groups, **more)


def mean(y):
    """By output channel."""
    return y.mean(0) if y.ndim == 2 else y.mean((0, *range(2, y.ndim)))


def taps_of(x, kernel, **more):
    """How much the sum of one output channel that reads every feature grows with each weight: its gradient."""
    probe = torch.zeros(1, x.shape[1], *kernel, dtype=torch.float64, requires_grad=True)
    y = run(probe, x, **(more | {"groups": 1}))
    y.sum().backward()
    return Taps(probe.grad[0], torch.tensor(y.numel()))


def rounded(weight):
    return (weight * 3).round() / 3


def problem(weight, x, held_out=None, **more):
    def taps(data):
        return None if data is None else taps_of(data, weight.shape[2:], **more)

    return BiasProblem(weight, rounded(weight), more.get("groups", 1), taps(x), taps(held_out), name="layer")


KINDS = {
    "linear": (draw(6, 4), (5, 4), {}),
    "1x1": (draw(6, 4, 1, 1), (2, 4, 5, 5), {}),
    "padding": (draw(6, 4, 3, 3), (2, 4, 7, 6), {"padding": 1}),
    "stride": (draw(6, 4, 3, 3), (2, 4, 9, 8), {"padding": (2, 1), "stride": (2, 3)}),
    "dilation": (draw(6, 4, 3, 2), (2, 4, 9, 9), {"padding": 2, "dilation": (2, 3)}),
    "groups": (draw(6, 2, 3, 3), (2, 4, 7, 7), {"padding": 1, "groups": 2}),
    "depthwise": (draw(4, 1, 5, 5), (2, 4, 7, 7), {"padding": 2, "stride": 2, "groups": 4}),
    "depthwise, two each": (draw(8, 1, 3), (2, 4, 11), {"padding": 1, "groups": 4}),
    "one axis": (draw(6, 4, 4), (3, 4, 12), {"padding": 1, "stride": 2}),
    "three axes": (draw(3, 2, 2, 3, 2), (1, 2, 4, 5, 4), {"padding": 1}),
    "transposed": (draw(6, 4, 3, 3), (2, 4, 5, 6), {"transposed": True, "padding": 1, "stride": 2}),
    "transposed, longer": (draw(6, 4, 3), (2, 4, 6), {"transposed": True, "stride": 2, "output_padding": 1}),
    "transposed, groups": (draw(6, 2, 4), (2, 4, 6), {"transposed": True, "stride": 2, "groups": 2, "dilation": 2}),
    "transposed, depthwise": (draw(4, 1, 3, 3), (2, 4, 5, 5), {"transposed": True, "padding": 2, "groups": 4}),
}  # fmt: skip


@pytest.mark.parametrize(("weight", "shape", "more"), KINDS.values(), ids=KINDS)
def test_the_mean_is_right_afterwards(weight, shape, more):
    x = draw(*shape, seed=1) + 1.0
    x[..., :2] += 5.0  # nothing like a constant picture
    wanted, found = (mean(run(w, x, **more)) for w in (weight, rounded(weight)))
    shift = fast_bias_correction.solve(problem(weight, x, **more))
    assert isinstance(shift, Shift) and shift.amount.dtype is torch.float32 and shift.amount.shape == (len(weight),)
    assert (wanted - found).abs().max() > 0.05
    torch.testing.assert_close(found + shift.amount, wanted, rtol=1e-6, atol=1e-6)
    assert shift.facts["kept"] == shift.facts["channels"] == len(weight) and "kept aside" in shift.facts["reason"]
    assert shift.facts["mean_error"] < 1e-12 < shift.facts["mean_error_before"]
    orjson.dumps(shift.facts)


@pytest.mark.parametrize(("weight", "shape", "more"), KINDS.values(), ids=KINDS)
def test_without_rounding_nothing_is_shifted(weight, shape, more):
    """Borders too: a mean over a constant picture with zero padding would be off by 6 to 16 % of the output's size."""
    x = draw(*shape, seed=1)
    x[(..., *(slice(2, 3),) * (x.ndim - 2))] += 50.0
    case = replace(problem(weight, x, **more), rounded=weight)
    shift = fast_bias_correction.solve(case)
    assert shift.amount is None and shift.facts["kept"] == 0 and shift.facts["mean_error_before"] == 0.0


def test_biases_have_no_say():
    """One that is zero, or much smaller than the shift, stops nothing: they are not even asked for."""
    weight, x = draw(6, 4, 3, 3), draw(2, 4, 7, 7, seed=1).abs()
    shift = fast_bias_correction.solve(problem(weight, x, padding=1)).amount
    for bias in (torch.zeros(6), torch.tensor([0.0, 1e-9, 1.0, 5.0, -3.0, 0.0])):
        wanted, found = (F.conv2d(x, w, bias.double(), padding=1) for w in (weight, rounded(weight)))
        torch.testing.assert_close(mean(found) + shift, mean(wanted), rtol=1e-6, atol=1e-6)


def test_channels_are_kept_one_by_one():
    """Held out, one channel is off the other way: it stays as it is, and the others are corrected."""
    weight = torch.tensor([[0.4, 0.0], [0.0, 0.4], [0.4, 0.4]])
    case = BiasProblem(weight, torch.zeros(3, 2), taps=Taps(torch.tensor([10.0, 10.0]), 10))
    case = replace(case, held_out_taps=Taps(torch.tensor([30.0, -10.0]), 20))
    shift = fast_bias_correction.solve(replace(case, mean_square=torch.tensor([1.0, 1.0, 2.0])))
    torch.testing.assert_close(shift.amount, torch.tensor([0.4, 0.0, 0.0]))
    assert shift.facts["kept"] == 1 and shift.facts["channels"] == 3 and shift.facts["relative"]
    # Wanted on the items kept aside: 0.6, -0.2 and 0.4, the last of which 0.8 would miss by as much.
    assert shift.facts["held_out_mean_error_before"] == pytest.approx((0.36 + 0.04 + 0.16) / 4)
    assert shift.facts["held_out_mean_error"] == pytest.approx((0.04 + 0.04 + 0.16) / 4)
    assert shift.facts["mean_error"] == pytest.approx((0.16 + 0.64) / 4)
    opposite = replace(case, held_out_taps=Taps(torch.tensor([-1.0, -1.0]), 1))
    assert fast_bias_correction.solve(opposite).amount is None


def test_half_precision_weights():
    weight, x = draw(6, 4, 3, 3), draw(2, 4, 7, 7, seed=1)
    case = problem(weight, x, padding=1)
    half = fast_bias_correction.solve(replace(case, weight=weight.half(), rounded=case.rounded.half()))
    wanted = case.taps.mean_output(weight.half().double() - case.rounded.half().double())
    torch.testing.assert_close(half.amount, wanted.float())


def test_nothing_reached_the_layer():
    shift = fast_bias_correction.solve(BiasProblem(torch.ones(2, 2), torch.zeros(2, 2)))
    assert shift.amount is None and "reached" in shift.facts["reason"]


def test_what_does_not_fit():
    case = problem(draw(6, 2, 3), draw(2, 4, 9), groups=2)
    with pytest.raises(UsageError, match=r"taps of shape \[4, 3\] .* groups 1"):
        fast_bias_correction.solve(replace(case, groups=1))
    with pytest.raises(UsageError, match="rounded"):
        fast_bias_correction.solve(replace(case, rounded=torch.ones(6, 2)))
    bad = replace(case, held_out_taps=Taps(torch.full((4, 3), float("nan")), 3))
    with pytest.raises(DataError, match="held_out_taps"):
        fast_bias_correction.solve(bad)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.0, 1e-12, 1.0, 1e6]), drift=st.floats(0, 20))
def test_never_worse(seed, size, drift):
    """No channel's mean is farther off on the items kept aside than without, whatever these are."""
    weight, x = draw(6, 2, 3, seed=seed) * size, draw(2, 4, 9, seed=seed + 1)
    more = {"groups": 2, "padding": 1}
    other = x + drift * draw(2, 4, 9, seed=seed + 2)
    shift = fast_bias_correction.solve(problem(weight, x, other, **more))
    off = mean(run(weight, other, **more)) - mean(run(rounded(weight), other, **more))
    amount = torch.zeros(6) if shift.amount is None else shift.amount
    assert ((off - amount).abs() <= off.abs() * (1 + 1e-6)).all()
    assert shift.facts["held_out_mean_error"] <= shift.facts["held_out_mean_error_before"]
