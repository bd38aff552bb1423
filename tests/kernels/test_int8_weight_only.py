# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.kernels import int8_weight_only
from fewbit.kernels.int8_weight_only import Kernel, split
from fewbit.modules.frozen import freeze_layer
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from frozen_layers import CUDA, DEVICES, INT8, UINT8, expected, linear, terms

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)


def joined(digits, unit):
    return sum(256.0**place * part.double() for place, part in enumerate(digits)) * unit.double()


@pytest.mark.parametrize("digits", [2, 3])
@given(rows=st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=1, max_size=4))
def test_bytes_give_the_number_back(digits, rows):
    x = torch.tensor(rows)
    parts, unit = split(x, digits)
    largest = x.double().abs().amax(-1, keepdim=True)
    # Half a unit for rounding to one, and float32's own rounding of the quotient.
    assert ((joined(parts, unit) - x.double()).abs() <= 0.5 * unit.double() + largest * 2.0**-23).all()
    assert (unit.double() <= (largest / (127 * 256.0 ** (digits - 1))).clamp(min=2.0**-126)).all()


@pytest.mark.parametrize("digits", [2, 3])
def test_the_largest_number_of_a_token_does_not_carry_over(digits):
    x = torch.rand(100_000, 2, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    parts, unit = split(x, digits)
    assert ((joined(parts, unit) - x).abs() <= 0.5001 * unit + 2.0**-23).all()


def test_zeros_and_a_nan():
    parts, _ = split(torch.zeros(1, 3), 3)
    assert not parts.any()
    layer = linear(8, 16, INT8)
    layer.kernel = Kernel(layer, terms())
    x = torch.randn(2, 16)
    x[0, 3] = float("nan")
    assert layer(x).isnan().all(-1).tolist() == [True, False]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(24, 40), (1032, 1024)], ids=str)
@pytest.mark.parametrize("grid", [INT8, UINT8, Grid(Dtype.int8), Grid(Dtype.int8, symmetric=False)], ids=str)
def test_as_precise_as_float32(grid, sizes, device):
    layer = linear(*sizes, grid, device=device)
    x = torch.randn(5, 2, sizes[1], device=device) * torch.logspace(-4, 4, 5, device=device)[:, None, None]
    right, size = expected(layer, x)
    layer.kernel = Kernel(layer, terms(device))
    out = layer(x)
    assert out.dtype is torch.float32
    assert ((out - right).abs() <= 1e-6 * size).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_closer_to_the_truth_than_the_layer_itself(dtype):
    layer = linear(1032, 1024, INT8, dtype=dtype)
    x = torch.randn(9, 1024).to(dtype)
    right, _ = expected(layer, x)
    before = (layer(x) - right).norm()
    freeze_layer(layer, terms())
    assert layer.kernel.name == "int8_weight_only"
    assert (layer(x) - right).norm() < before


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("grid", [INT8, UINT8], ids=["int8", "uint8"])
def test_many_tokens_on_a_gpu(grid, device):
    layer = linear(64, 96, grid, device=device, dtype=torch.bfloat16)
    x = torch.randn(300, 96, device=device).bfloat16()
    right, _ = expected(layer, x)
    layer.kernel = Kernel(layer, terms(device))
    assert (layer(x) - right).norm() < 0.006 * right.norm()


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("grid", [INT8, UINT8], ids=["int8", "uint8"])
def test_many_tokens_on_a_gpu_do_not_overflow_float16(grid, device):
    layer = linear(64, 1024, grid, device=device, dtype=torch.float16)
    x = torch.full((300, 1024), 8.0, device=device).half() * layer.weight[:1].sign()
    right, _ = expected(layer, x)
    layer.kernel = Kernel(layer, terms(device))
    assert (layer(x) - right).norm() < 0.002 * right.norm()


def test_float64_inputs_get_no_less_than_float32():
    layer = linear(1032, 1024, INT8, dtype=torch.float64)
    x = torch.randn(3, 1024, dtype=torch.float64)
    right, size = expected(layer, x)
    assert freeze_layer(layer, terms()) == {}
    assert layer.kernel.name == "int8_weight_only"
    out = layer(x)
    assert out.dtype is torch.float64
    assert ((out - right).abs() <= 1e-6 * size).all()


def test_exact_is_as_precise_as_float64():
    layer = linear(1032, 1024, INT8, dtype=torch.float64)
    x = torch.randn(3, 1024, dtype=torch.float64)
    right, size = expected(layer, x)
    assert "float64" in freeze_layer(layer, terms(exact=True))["int8_weight_only"]
    assert ((layer(x) - right).abs() <= 1e-12 * size).all()


def test_a_bias_may_learn():
    layer = linear(1032, 1024, INT8)
    layer.bias.requires_grad_()
    freeze_layer(layer, terms())
    assert layer.kernel.name == "int8_weight_only"
    layer(torch.randn(3, 1024)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((1032,), 3.0))


def test_small_layers_are_faster_dequantized():
    layer = linear(64, 64, INT8)
    assert int8_weight_only.refuses(layer, terms()) == ""
    freeze_layer(layer, terms())
    assert layer.kernel.name == "dequantize"
