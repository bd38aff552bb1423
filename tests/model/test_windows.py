# SPDX-License-Identifier: Apache-2.0
"""Second moments of windows, against PyTorch's own convolutions and `unfold`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewbit.backends.eager.windows import products_of
from fewbit.model import windows
from fewbit.model.watch import PRODUCTS, WINDOWS


def energy(layer, x, size=None):
    """What a layer without a bias answers, squared and summed by output, and how many positions it has."""
    with torch.no_grad():
        y = layer(x) if size is None else layer(x, size)
    return y.double().square().transpose(0, 1).flatten(1).sum(1), y[:, 0].numel()


def quadratic(weight, products):
    rows = weight.detach().double().flatten(1)
    return ((rows @ products.double()) * rows).sum(1)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([nn.Conv1d, nn.Conv2d, nn.Conv3d]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, 1, 2, "same"]),
    mode=st.sampled_from(["zeros", "reflect"]),
)
def test_convolutions(kind, kernel, stride, dilation, padding, mode):
    torch.manual_seed(0)
    stride = 1 if padding == "same" else stride
    layer = kind(2, 3, kernel, stride, padding, dilation, bias=False, padding_mode=mode)
    x = torch.randn(2, 2, *(7, 6, 5)[: len(layer.kernel_size)])
    found = products_of(layer, x)
    wanted, count = energy(layer, x)
    assert int(found[WINDOWS]) == count
    torch.testing.assert_close(quadratic(layer.weight, found[PRODUCTS]), wanted, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    extra=st.integers(0, 1),
)
def test_transposed_convolutions(kernel, stride, dilation, padding, extra):
    torch.manual_seed(0)
    extra = min(extra, max(stride, dilation) - 1)
    layer = nn.ConvTranspose2d(2, 3, kernel, stride, padding, extra, bias=False, dilation=dilation)
    x = torch.randn(2, 2, 5, 6)
    if any((side - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1 < 1 for side in x.shape[2:]):
        return
    found = products_of(layer, x)
    wanted, count = energy(layer, x)
    assert int(found[WINDOWS]) == count
    ours = layer.weight.transpose(0, 1)
    torch.testing.assert_close(quadratic(ours, found[PRODUCTS]), wanted, rtol=1e-4, atol=1e-4)


def test_the_order_is_that_of_the_weight_and_pieces_do_not_matter(monkeypatch):
    x = torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    rows = nn.functional.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1)).transpose(1, 2).flatten(0, 1)
    meets = [windows.conv_meets(9, 3, 2, pad=(1, 1)), windows.conv_meets(8, 2)]
    whole = windows.window_products(x, meets)
    torch.testing.assert_close(whole, rows.T @ rows, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(windows, "_PIECE", 1)
    torch.testing.assert_close(windows.window_products(x, meets), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(10, 13), None])
def test_an_output_size_that_was_asked_for(size):
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(2, 3, 3, 2, 1, bias=False)
    x = torch.randn(1, 2, 5, 7)
    wanted, count = energy(layer, x, size)
    found = products_of(layer, x, size)
    assert int(found[WINDOWS]) == count
    torch.testing.assert_close(quadratic(layer.weight.transpose(0, 1), found[PRODUCTS]), wanted, rtol=1e-4, atol=1e-4)
