# SPDX-License-Identifier: Apache-2.0
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewbit.kernels import int8
from fewbit.kernels._products import LONGEST, has_onednn
from fewbit.modules.frozen import freeze_layer
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from frozen_layers import DEVICES, INT8, TENSOR, TOKEN, UINT8, encoded, expected, linear, quantizer, terms

WEIGHTS = {
    "channel": INT8,
    "tensor": Grid(Dtype.int8),
    "asymmetric": Grid(Dtype.int8, QSchemeType.per_channel, symmetric=False),
    "unsigned": UINT8,
    "unsigned symmetric": Grid(Dtype.uint8, QSchemeType.per_channel),
}
ACTIVATIONS = {
    "token": (TOKEN, None),
    "token asymmetric": (Grid(Dtype.uint8, QSchemeType.per_token, symmetric=False), None),
    "tensor": (Grid(Dtype.int8), None),
    "static": (TENSOR, (-2.0, 3.0)),
    "static symmetric": (Grid(Dtype.int8), (-3.0, 3.0)),
    "static unsigned": (Grid(Dtype.uint8, symmetric=False), (-1.0, 4.0)),
    "four bits": (Grid(Dtype.int4, QSchemeType.per_token), None),
}
LARGE = (1032, 1024)  # outputs and features: enough for oneDNN's layout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("weight", "activation", "sizes"),
    [
        *product(WEIGHTS, ACTIVATIONS, [(24, 40)]),
        ("channel", "token", LARGE),
        ("unsigned", "token asymmetric", LARGE),
        ("channel", "static", LARGE),
    ],
    ids=str,
)
def test_a_frozen_layer_computes_the_same(weight, activation, sizes, device):
    layer = linear(*sizes, WEIGHTS[weight], quantizer(*ACTIVATIONS[activation]), device=device)
    before = get_weight(layer, "weight").tensors()
    x = torch.randn(5, 2, sizes[1], device=device)
    right, size = expected(layer, x)
    assert freeze_layer(layer, terms(device)) == {}
    assert layer.kernel.name == "int8"
    out = layer(x)
    assert out.dtype is torch.float32
    # The sums are exact; the epilogue rounds about five times. Reference activations are rounded once more, to float32.
    assert ((out - right).abs() <= 2e-6 * size).all()
    after = get_weight(layer, "weight").tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[part], after[part]) for part in before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_closer_to_the_truth_than_the_layer_itself(dtype, device):
    layer = linear(64, 256, INT8, quantizer(TOKEN), dtype=dtype, device=device)
    x = torch.randn(33, 256, device=device).to(dtype)
    right, _ = expected(layer, x)
    before = (layer(x) - right).norm()
    freeze_layer(layer, terms(device))
    out = layer(x)
    assert out.dtype is dtype
    assert (out - right).norm() < before


@pytest.mark.parametrize("shape", [(16,), (1, 16), (7, 16), (2, 3, 16), (2, 1, 3, 16)])
def test_any_shape(shape):
    layer = linear(8, 16, INT8, quantizer(TENSOR, (-2.0, 2.0)), bias=False)
    x = torch.randn(shape)
    right = layer(x)
    freeze_layer(layer, terms())
    assert layer(x).shape == right.shape
    assert torch.allclose(layer(x), right, atol=1e-5)
    assert torch.equal(layer(input=x), layer(x))


@given(st.integers(1, 20), st.integers(1, 40), st.integers(2, 50), st.integers(0, 2**31))
def test_any_sizes(tokens, outputs, features, seed):
    torch.manual_seed(seed)
    layer = linear(outputs, features, UINT8, quantizer(TOKEN))
    x = torch.randn(tokens, features)
    right, size = expected(layer, x)
    freeze_layer(layer, terms())
    assert layer.kernel.name == "int8"
    assert ((layer(x) - right).abs() <= 2e-6 * size).all()


def test_no_tokens_give_no_rows():
    layer = linear(8, 16, INT8, quantizer(Grid(Dtype.int8)))
    freeze_layer(layer, terms())
    assert layer(torch.empty(0, 3, 16)).shape == (0, 3, 8)


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN here")
def test_nothing_is_kept_twice():
    small, large = (linear(*sizes, INT8, quantizer(TOKEN)) for sizes in ((8, 16), LARGE))
    freeze_layer(small, terms())
    freeze_layer(large, terms())
    assert small.kernel.product.weight is small.weight_packed
    assert large.weight_packed is None and large.kernel.product.weight.is_mkldnn


def test_shared_codes_stay_where_they_are():
    layer = linear(*LARGE, INT8, quantizer(TOKEN))
    freeze_layer(layer, terms(shared=True))
    assert layer.kernel.product.weight is layer.weight_packed


class Doubling(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def test_a_forward_of_its_own_is_respected():
    layer = linear(8, 16, INT8, quantizer(TOKEN), kind=Doubling)
    x = torch.randn(3, 16)
    right = layer(x)
    assert freeze_layer(layer, terms())["int8"] == "Doubling has a forward of its own"
    assert layer.kernel is None
    assert torch.equal(layer(x), right)


def test_hugging_face_conv1d():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(24, 16)
    weight = layer.weight.detach().t().contiguous()
    set_weight(layer, "weight", encoded(weight, INT8), axes=(1, 0))
    layer.input_quantizer = quantizer(TOKEN)
    x = torch.randn(5, 16)
    right = layer(x)
    freeze_layer(layer, terms())
    assert layer.kernel.name == "int8"
    assert torch.allclose(layer(x), right, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "given", "why"),
    [
        ((8, 16, Grid(Dtype.int8, QSchemeType.per_group, group_size=4), TOKEN), {}, "per_group"),
        ((8, 16, INT8, Grid(Dtype.int16)), {}, "int16"),
        ((8, 1, INT8, TOKEN), {}, "single feature"),
        ((8, LONGEST + 1, INT8, TOKEN), {}, "int32"),
        ((8, 16, UINT8, TOKEN), {"shared": True}, "other layers"),
        ((8, 16, Grid(Dtype.uint8, symmetric=False, float_zero=True), TOKEN), {}, "no integers"),
        ((8, 16, INT8, TOKEN), {"device": "xpu"}, "xpu"),
        ((9, 16, INT8, TOKEN), {"device": "cuda"}, "multiples of 8"),
        ((8, 16, Grid(Dtype.int4), TOKEN), {}, ""),
    ],
)
def test_what_it_refuses(layer, given, why):
    *sizes, grid, activation = layer
    found = int8.refuses(linear(*sizes, grid, quantizer(activation)), terms(**given))
    assert (why in found) if why else found == ""


def test_other_layers_are_none_of_its_business():
    layer = nn.Conv2d(2, 2, 1)
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT8))
    assert int8.refuses(layer, terms()) == ""
    assert int8.refuses(linear(8, 16, INT8), terms()) == ""


def test_the_attention_around_its_output_projection_reads_the_weight():
    layer = nn.MultiheadAttention(8, 2).out_proj
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT8))
    layer.input_quantizer = quantizer(TOKEN)
    assert "never calls it" in int8.refuses(layer, terms())
