# SPDX-License-Identifier: Apache-2.0
"""Taps against the convolution itself: its mean output is the weight times taps, divided by windows."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fewbit.model import taps as module
from fewbit.model.taps import conv_reach, taps, transposed_reach, windows

AXIS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 9),
        "kernel": st.integers(1, 4),
        "stride": st.integers(1, 4),
        "dilation": st.integers(1, 3),
        "pad": st.integers(0, 4),
        "more": st.integers(0, 2),
    }
)


def weight_sum(weight: torch.Tensor, found: torch.Tensor, groups: int) -> torch.Tensor:
    """The grouped contraction, one output channel at a time; the weight is `[out, in / groups, kernel…]`."""
    out, inner = weight.shape[:2]
    owners = [channel // (out // groups) for channel in range(out)]
    return torch.stack([(weight[i] * found[g * inner : (g + 1) * inner]).sum() for i, g in enumerate(owners)])


@contextmanager
def short(side: int) -> Iterator[None]:
    """Axes up to this length are looked at position by position, longer ones in the middle and at the ends."""
    with patch.object(module, "_SHORT", side):
        module._members.cache_clear()
        yield
    module._members.cache_clear()


@pytest.mark.parametrize("side", [0, 128], ids=["middle and ends", "one by one"])
@settings(max_examples=60, deadline=None)
@given(axes=st.lists(AXIS, min_size=1, max_size=3), batch=st.integers(1, 3), groups=st.integers(1, 3))
def test_convolutions(side, axes, batch, groups):
    torch.manual_seed(0)
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(axes) - 1]
    sides = [(a["length"], a["kernel"], a["stride"], a["dilation"], (a["pad"], a["pad"] + a["more"])) for a in axes]
    assume(all(a["length"] + 2 * a["pad"] + a["more"] > a["dilation"] * (a["kernel"] - 1) for a in axes))
    x = torch.randn(batch, 2 * groups, *(a["length"] for a in axes), dtype=torch.float64)
    weight = torch.randn(3 * groups, 2, *(a["kernel"] for a in axes), dtype=torch.float64)
    padded = F.pad(x, [p for each in reversed(sides) for p in each[4]])
    strides, dilations = ([a[name] for a in axes] for name in ("stride", "dilation"))
    expected = conv(padded, weight, None, strides, 0, dilations, groups)
    assert [windows(*each) for each in sides] == list(expected.shape[2:])
    with short(side):
        found = taps(x, tuple(conv_reach(*each) for each in sides))
    assert found.shape == (2 * groups, *weight.shape[2:])
    count = batch * prod(windows(*each) for each in sides)
    mean = expected.movedim(1, -1).flatten(0, -2).mean(0)
    torch.testing.assert_close(weight_sum(weight, found, groups) / count, mean)


@pytest.mark.parametrize("side", [0, 128], ids=["middle and ends", "one by one"])
@settings(max_examples=60, deadline=None)
@given(axes=st.lists(AXIS, min_size=1, max_size=3), batch=st.integers(1, 3), groups=st.integers(1, 3))
def test_transposed_convolutions(side, axes, batch, groups):
    torch.manual_seed(0)
    conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(axes) - 1]
    for a in axes:
        a["more"] = min(a["more"], max(a["stride"], a["dilation"]) - 1)
        a["out"] = (a["length"] - 1) * a["stride"] - 2 * a["pad"] + a["dilation"] * (a["kernel"] - 1) + a["more"] + 1
    assume(all(a["out"] > 0 for a in axes))
    x = torch.randn(batch, 2 * groups, *(a["length"] for a in axes), dtype=torch.float64)
    weight = torch.randn(3 * groups, 2, *(a["kernel"] for a in axes), dtype=torch.float64)
    own = torch.cat([part.transpose(0, 1) for part in weight.chunk(groups)])
    strides, pads, more, dilations = ([a[n] for a in axes] for n in ("stride", "pad", "more", "dilation"))
    expected = conv(x, own, None, strides, pads, more, groups, dilations)
    assert [a["out"] for a in axes] == list(expected.shape[2:])
    found = taps(
        x,
        tuple(transposed_reach(a["length"], a["kernel"], a["out"], a["stride"], a["dilation"], a["pad"]) for a in axes),
    )
    torch.testing.assert_close(weight_sum(weight, found, groups), expected.movedim(1, -1).flatten(0, -2).sum(0))


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (10, 5, 1), (7, 2, 3), (2, 4, 1)])
def test_long_axes_and_many_features(kernel, stride, dilation):
    x = torch.arange(2 * 5 * 301 * 150).reshape(2, 5, 301, 150).float() % 17
    reaches = tuple(conv_reach(side, kernel, stride, dilation, (2, 1)) for side in (301, 150))
    expected = torch.zeros(5, kernel, kernel, dtype=torch.float64)
    for i, rows in enumerate(reaches[0]):
        for j, columns in enumerate(reaches[1]):
            expected[:, i, j] = x[:, :, list(rows)][..., list(columns)].double().sum((0, 2, 3))
    assert torch.equal(taps(x, reaches), expected)
    assert torch.equal(taps(x.half().repeat(1, 30, 1, 1), reaches), expected.repeat(30, 1, 1)), "in several pieces"
