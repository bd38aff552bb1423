# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewbit.kernels import int8_conv
from fewbit.modules.frozen import freeze_layer
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from frozen_layers import INT8, TOKEN, UINT8, encoded, quantizer, terms, values

pytestmark = pytest.mark.skipif(not int8_conv._available(), reason="no oneDNN here")
FLOAT = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
STATIC = (Grid(Dtype.uint8, symmetric=False), (-1.0, 3.0))


def conv(kind=nn.Conv2d, *args, activation=STATIC, grid=INT8, **options):
    layer = kind(*(args or (6, 8, 3)), **options).eval().requires_grad_(False)
    set_weight(layer, "weight", encoded(layer.weight, grid))
    layer.input_quantizer = None if activation is None else quantizer(*activation, features=1)
    return layer


def expected(layer, x):
    x = layer.input_quantizer(x).double()
    weight = values(get_weight(layer, "weight"))
    geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
    bias = None if layer.bias is None else layer.bias.double()
    run = FLOAT[layer.float_class]
    return run(x, weight, bias, *geometry), run(x.abs(), weight.abs(), bias, *geometry).abs()


@pytest.mark.parametrize(
    "activation",
    [STATIC, (Grid(Dtype.int8), (-3.0, 3.0)), (TOKEN, (-3.0, 3.0)), (Grid(Dtype.int8), None),
     (Grid(Dtype.uint8, symmetric=False), None)],
    ids=["static", "symmetric", "fixed token", "dynamic", "dynamic asymmetric"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "args", "options"),
    [
        (nn.Conv2d, (6, 8, 3), {}),
        (nn.Conv2d, (6, 8, 3), {"padding": 2, "stride": 2, "bias": False}),
        (nn.Conv2d, (6, 8, (1, 3)), {"padding": (0, 1), "dilation": 2, "groups": 2}),
        (nn.Conv2d, (8, 8, 3), {"padding": "same", "groups": 8}),
        (nn.Conv2d, (3, 5, 1), {"padding": "valid"}),
        (nn.Conv1d, (6, 8, 5), {"padding": 2, "stride": 2}),
        (nn.Conv3d, (4, 6, 3), {"padding": 1}),
    ],
)
def test_a_frozen_layer_computes_the_same(kind, args, options, activation):
    layer = conv(kind, *args, activation=activation, **options)
    before = get_weight(layer, "weight").packed
    x = torch.randn(2, args[0], *(9, 10, 7)[: len(layer.stride)])
    right, size = expected(layer, x)
    assert freeze_layer(layer, terms()) == {}
    assert layer.kernel.name == "int8_conv" and layer.weight_packed is None
    out = layer(x)
    assert ((out - right).abs() <= 2e-6 * size + 1e-6).all()
    assert out.is_contiguous()
    assert torch.equal(get_weight(layer, "weight").packed, before)


def test_channels_last_stay_last():
    layer = conv()
    x = torch.randn(2, 6, 9, 9).contiguous(memory_format=torch.channels_last)
    right = layer(x)
    freeze_layer(layer, terms())
    out = layer(x)
    assert out.is_contiguous(memory_format=torch.channels_last) and not out.is_contiguous()
    assert torch.allclose(out, right, atol=1e-5)


def test_one_picture_without_a_batch():
    layer = conv(padding=1)
    x = torch.randn(6, 9, 9)
    right = layer(x)
    freeze_layer(layer, terms())
    assert layer(x).shape == right.shape
    assert torch.allclose(layer(x), right, atol=1e-5)


def test_padding_is_zero_and_not_code_zero():
    layer = conv(
        nn.Conv2d, 1, 1, 3, padding=1, bias=False, activation=(Grid(Dtype.uint8, symmetric=False), (-5.0, 1.0))
    )
    freeze_layer(layer, terms())
    assert not layer(torch.zeros(1, 1, 4, 4)).any()


class Doubling(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


def too_short(codes, scale, zero, weight, step, bias, stride, padding, dilation, groups):
    """A convolution as processors without VNNI do it: two products of bytes at a time in int16, which saturates."""
    dense = weight.to_dense().reshape(step.shape[0], -1).int()
    windows = F.unfold(codes.float() - float(zero), tuple(weight.shape[2:]), padding=padding).int() + int(zero)
    each = dense[:, :, None] * windows  # [out, products, places]
    pairs = each.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1).sum(1) - int(zero) * dense.sum(1)[:, None]
    sides = [n + 2 * p - k + 1 for n, p, k in zip(codes.shape[2:], padding, weight.shape[2:])]
    return pairs.reshape(1, -1, *sides).float()


def test_sums_that_saturate_are_noticed(monkeypatch):
    assert int8_conv._available.__wrapped__()
    monkeypatch.setattr(int8_conv._operators, "packed_convolution", too_short)
    assert not int8_conv._available.__wrapped__()


def test_the_test_of_the_test_computes_the_same_with_small_numbers():
    weight, codes = torch.arange(-8, 8).to(torch.int8).reshape(2, 2, 2, 2), torch.arange(18).to(torch.uint8)
    codes, geometry = codes.reshape(1, 2, 3, 3), ([1, 1], [1, 1], [1, 1], 1)
    packed = torch.ops.onednn.qconv_prepack(weight, torch.ones(2), 1.0, 0, *geometry, None)
    out = too_short(codes, torch.ones(()), torch.full((), 7), packed, torch.ones(2), None, *geometry)
    assert torch.equal(out, F.conv2d(codes - 7.0, weight.float(), padding=1))


def transposed():
    layer = nn.Conv2d(6, 6, 1)
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT8), axes=(1, 0, 2, 3))
    layer.input_quantizer = quantizer(*STATIC, features=1)
    return layer


@pytest.mark.parametrize(
    ("layer", "given", "why"),
    [
        (lambda: conv(Doubling), {}, "forward of its own"),
        (lambda: conv(activation=(TOKEN, None)), {}, "by token"),
        (lambda: conv(activation=(Grid(Dtype.int16), None)), {}, "int16"),
        (lambda: conv(), {"device": "cuda"}, "cuda"),
        (lambda: conv(), {"shared": True}, "other layers"),
        (lambda: conv().double(), {"exact": True}, "float64"),
        (transposed, {}, "transposed"),
        (lambda: conv(grid=Grid(Dtype.int8, symmetric=False)), {}, "no zero point"),
        (lambda: conv(padding_mode="reflect", padding=1), {}, "pads"),
        (lambda: conv(nn.Conv2d, 6, 8, 2, padding="same"), {}, "pads"),
        (lambda: conv(grid=UINT8), {}, ""),
        (lambda: conv(activation=None), {}, ""),
    ],
)
def test_what_it_refuses(layer, given, why):
    found = int8_conv.refuses(layer(), terms(**given))
    assert (why in found) if why else found == ""
