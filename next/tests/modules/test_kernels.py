# SPDX-License-Identifier: Apache-2.0
"""Kernels compute what the layer's own forward computes, and give the packed integers back bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fewbit.backends.torch import _products
from fewbit.backends.torch._products import (
    Int8Matrix,
    has_onednn,
    has_onednn_convolution,
    int4_linear,
    int8_encoder,
    pack_int4,
    unpack_int4,
)
from fewbit.backends.torch.integer_kernels import split_bytes
from fewbit.backends.torch.kernels import freeze, unfreeze
from fewbit.backends.torch.layers import ActivationQuantizer
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType
from modules.conftest import (
    FP4,
    FP8,
    INT4,
    INT8,
    TENSOR,
    TOKEN,
    UINT4,
    UINT8,
    WEIGHT_GRIDS,
    encode,
    quantized,
    static_quantizer,
)

ACTIVATIONS = {
    "none": lambda: None,
    "token": lambda: ActivationQuantizer(TOKEN),
    "tensor": lambda: ActivationQuantizer(TENSOR),
    "static": lambda: static_quantizer(-3.0, 5.0),
    "uint8": lambda: ActivationQuantizer(QuantizationGrid(Dtype.uint8, QSchemeType.per_token, symmetric=False)),
    "uint8_symmetric": lambda: ActivationQuantizer(QuantizationGrid(Dtype.uint8, QSchemeType.per_token)),
    "int4": lambda: ActivationQuantizer(QuantizationGrid(Dtype.int4, QSchemeType.per_token)),
    "floor": lambda: ActivationQuantizer(QuantizationGrid(Dtype.int8, QSchemeType.per_token, rounding=RoundType.floor)),
    "fp8": lambda: ActivationQuantizer(QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_token)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("grid", WEIGHT_GRIDS)
@pytest.mark.parametrize("shape", [(40, 128), (1024, 1024)], ids=["small", "large"])
def test_a_frozen_linear_layer_equals_its_own_forward(shape, grid, activation):
    if shape[0] == 1024 and (grid not in ("int8", "uint8", "uint4") or activation in ("int4", "floor", "fp8")):
        pytest.skip("the same kernel as for a small layer")
    grid = WEIGHT_GRIDS[grid]
    layer, x = quantized(nn.Linear(shape[1], shape[0]), grid, ACTIVATIONS[activation]()), torch.randn(2, 3, shape[1])
    with torch.no_grad():
        expected, state = layer(x), {name: value.clone() for name, value in layer.state_dict().items()}
        (row,) = freeze(layer)
        out = layer(x)
    # bfloat16 has 8 bits; all other kernels differ in the order of summation only.
    tolerance = 0.01 if row["kernel"] == "int4" else 1e-5
    assert (out - expected).norm() <= tolerance * expected.norm(), row
    for name, value in layer.state_dict().items():
        assert torch.equal(value, state[name]), name
    unfreeze(layer)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize(
    ("grid", "activation", "kernel"),
    [
        (INT8, "token", "int8"), (INT8, "static", "int8"), (UINT8, "tensor", "int8"),
        (INT8, "none", "int8_weight_only"), (UINT8, "none", "int8_weight_only"), (UINT4, "none", "int4"),
        (INT4, "token", "int4"), (FP4, "none", "dequantize"),
        (FP8, "fp8", "dequantize"), (INT8, "fp8", "dequantize"),
    ],
)  # fmt: skip
def test_which_kernel_runs(grid, activation, kernel):
    layer = quantized(nn.Linear(1024, 1024), grid, ACTIVATIONS[activation]())
    (row,) = freeze(layer)
    assert row["kernel"] == kernel
    assert row["bytes"] < 0.4 * 4 * 1024 * 1024
    assert freeze(layer)[0]["kernel"] == kernel  # once more changes nothing


def test_exact_refuses_bfloat16():
    layer = quantized(nn.Linear(64, 64), UINT4)
    (row,) = freeze(layer, exact=True)
    assert row["kernel"] == "dequantize" and "bfloat16" in row["reason"]
    (row,) = freeze(quantized(nn.Linear(64, 64).bfloat16(), UINT4), exact=True)
    assert row["kernel"] == "int4"


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name not in ("none", "fp8")])
def test_activations_become_the_integers_of_numerics(activation):
    quantizer = ACTIVATIONS[activation]()
    x = torch.cat([torch.randn(6, 40) * 10.0 ** torch.arange(-3, 3)[:, None], torch.zeros(1, 40), -torch.rand(1, 40)])
    integers, scale, zero = int8_encoder(quantizer)(x)
    expected = quantize(x, quantizer.qparams(x))
    moved = 0 if expected.dtype is torch.int8 else 128
    assert torch.equal(integers.int() + moved, expected.int())
    reconstructed = (integers.float() - (0 if zero is None else zero)) * scale
    assert torch.allclose(reconstructed, quantizer(x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("large", [False, True])
def test_integer_products_are_exact_at_the_extremes(large, monkeypatch):
    monkeypatch.setattr(_products, "LARGE", 0 if large else 1 << 60)
    weight = torch.full((16, 4096), -128, dtype=torch.int8)
    weight[1] = 127
    x = torch.stack([torch.full((4096,), -128), torch.full((4096,), 127)]).to(torch.int8)
    matrix = Int8Matrix(weight)
    assert matrix.is_packed == (large and has_onednn())
    expected = (x.long() @ weight.long().T).float()
    assert torch.equal(matrix.product(x, torch.ones(16)), expected)
    assert torch.equal(matrix.integers(), weight)


def test_bytes_of_an_activation_have_its_precision():
    x = torch.cat([torch.randn(8, 100) * 1e-30, torch.randn(8, 100) * 1e30, torch.zeros(1, 100)])
    for count, precision in ((2, 2.0**-14), (3, 2.0**-22)):
        digits, unit = split_bytes(x, count)
        back = sum(digit.double() * 256**place for place, digit in enumerate(digits)) * unit.double()
        assert ((back - x).abs() <= precision * x.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("rows", [16, 32, 48, 64, 80, 112, 128, 208])
@pytest.mark.parametrize("columns", [32, 96])
def test_four_bits_come_back_from_the_packing_of_this_processor(rows, columns):
    integers = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    assert torch.equal(unpack_int4(pack_int4(integers)), integers)


@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_four_bit_products(tokens):
    integers = torch.randint(0, 16, (80, 128), dtype=torch.uint8)
    scale, zero = torch.rand(2, 2, 80)
    scales = torch.stack([scale, zero], -1).bfloat16()
    x = torch.randn(tokens, 128).bfloat16()
    values = (integers.double() - 8).view(80, 2, 64) * scales[..., 0].T.double()[..., None] + scales[..., 1].T.double()[
        ..., None
    ]
    expected = x.double() @ values.view(80, 128).T
    out = int4_linear(x, pack_int4(integers), scales, 64)
    assert (out.double() - expected).norm() < 0.01 * expected.norm()


CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(8, 12, 3, padding=1), (2, 8, 10)),
    "2d": (lambda: nn.Conv2d(8, 12, 3, padding=1, stride=2), (2, 8, 9, 9)),
    "grouped": (lambda: nn.Conv2d(8, 12, 3, groups=4, dilation=2), (2, 8, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8, padding="same"), (2, 8, 9, 9)),
    "unbatched": (lambda: nn.Conv2d(8, 12, 3, padding="valid", bias=False), (8, 9, 9)),
    "3d": (lambda: nn.Conv3d(4, 6, 2), (2, 4, 5, 5, 5)),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("activation", ["static", "tensor"])
def test_a_frozen_convolution_equals_its_own_forward(kind, activation):
    make, shape = CONVOLUTIONS[kind]
    quantizer = static_quantizer(-3.0, 5.0, 1 - len(make().weight.shape)) if activation == "static" else None
    layer = quantized(make(), INT8, quantizer or ActivationQuantizer(TENSOR, 1 - len(make().weight.shape)))
    x = torch.randn(shape)
    with torch.no_grad():
        expected, packed = layer(x), layer.weight_packed.clone()
        (row,) = freeze(layer)
        out = layer(x)
    if has_onednn_convolution():
        assert row["kernel"] == "int8_conv"
    assert torch.allclose(out, expected, atol=1e-4)
    assert torch.equal(layer.state_dict()["weight_packed"], packed)


def test_padding_of_a_convolution_is_the_value_zero():
    layer = nn.Conv2d(2, 3, 3, padding=1)
    nn.init.zeros_(layer.bias)
    layer = quantized(layer, INT8, static_quantizer(1.0, 5.0, -3))  # its zero point is far from zero
    x = torch.zeros(1, 2, 4, 4)
    freeze(layer)
    assert torch.equal(layer(x), torch.zeros(1, 3, 4, 4))


def test_a_convolution_keeps_the_memory_format_of_its_input():
    layer = quantized(nn.Conv2d(8, 8, 3), INT8, static_quantizer(-3.0, 3.0, -3))
    freeze(layer)
    x = torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        assert layer(x).is_contiguous()
        assert layer(x.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)


def test_only_the_rows_of_an_embedding_that_are_asked_for_are_dequantized():
    for grid in (INT8, UINT4, FP4, QuantizationGrid(Dtype.int8)):
        table, index = nn.Embedding(50, 32), torch.randint(0, 50, (4, 7))
        layer = quantized(table, grid)
        expected = layer(index)
        assert freeze(layer)[0]["kernel"] == "embedding"
        assert torch.equal(layer(index), expected)
        with pytest.raises(IndexError):
            layer(torch.tensor([50]))


def test_the_linear_layer_of_transformers_is_transposed():
    class Conv1D(nn.Module):
        def __init__(self, outputs, inputs):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

        def forward(self, x):
            return x @ self.weight + self.bias

    x = torch.randn(3, 64)
    for grid, quantizer, kernel in (
        (INT8.replace(axis=1), ActivationQuantizer(TOKEN), "int8"),
        (UINT4.replace(axis=1), None, "int4"),
        (FP8.replace(axis=1), None, None),
    ):
        layer = quantized(Conv1D(32, 64), grid, quantizer)
        with torch.no_grad():
            expected, packed = layer(x), layer.weight_packed.clone()
            assert freeze(layer)[0]["kernel"] == kernel
            assert torch.allclose(layer(x), expected, rtol=0.02, atol=0.1 if kernel == "int4" else 1e-4)
        assert torch.equal(layer.state_dict()["weight_packed"], packed)


def test_float16_is_scaled_before_its_sums_overflow():
    layer = nn.Linear(512, 8).half()
    nn.init.ones_(layer.weight)
    quantized(layer, INT8)
    x = torch.full((1, 512), 100.0, dtype=torch.float16)
    freeze(layer)
    assert torch.isfinite(layer(x)).all()


def test_what_the_packed_weight_decodes_to_is_what_was_given():
    weight = torch.randn(32, 64)
    tensor = encode(weight, UINT4)
    layer = quantized(nn.Linear(64, 32), UINT4)
    layer.load_state_dict(layer.state_dict() | {
        f"weight_{part}": array.view(torch.bfloat16) if array.dtype is torch.uint16 else array
        for part, array in tensor.tensors().items()
    })  # fmt: skip
    freeze(layer)
    assert torch.equal(layer.weight, tensor.dequantize())


def test_an_embedding_with_a_forward_of_its_own_runs_it_around_the_look_up(monkeypatch):
    class Scaled(nn.Embedding):
        def forward(self, index, factor=2.0):
            rows = super().forward(index + 1)
            return rows * factor * torch.tensor(1.0, dtype=self.weight.dtype, device=self.weight.device)

    class Positions(nn.Embedding):
        def forward(self, mask):
            return nn.functional.embedding(mask.cumsum(-1), self.weight) + self.weight[0].sum()

    complete = QTensor.dequantize
    for kind, calls in ((Scaled, 0), (Positions, 1)):
        layer, index = quantized(kind(50, 32), UINT4), torch.ones(3, 5, dtype=torch.long)
        expected = layer(index)
        assert freeze(layer)[0]["kernel"] == "embedding"
        rows = []

        def counted(tensor, dtype="float32", rows=rows):
            rows.append(tensor.shape[0])
            return complete(tensor, dtype)

        with monkeypatch.context() as patch:
            patch.setattr(QTensor, "dequantize", counted)
            assert torch.equal(layer(index), expected)
        assert rows.count(50) == calls  # the complete table only where it is used in another way
        assert layer.weight.shape == (50, 32) and not layer.weight.is_meta
