# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from fewbit.kernels import fp8
from fewbit.modules.frozen import freeze_layer
from fewbit.modules.quantized import get_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleType
from frozen_layers import CUDA, INT8, TOKEN, expected, linear, quantizer, terms

E4M3, E5M2 = Grid(Dtype.fp8_e4m3), Grid(Dtype.fp8_e5m2)
CHANNEL = Grid(Dtype.fp8_e4m3, QSchemeType.per_channel)
PER_TOKEN = Grid(Dtype.fp8_e4m3, QSchemeType.per_token)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 100])
@pytest.mark.parametrize(
    ("weight", "activation", "span"),
    [(E4M3, E4M3, (-4.0, 4.0)), (E4M3, E4M3, None), (CHANNEL, PER_TOKEN, None), (E4M3, PER_TOKEN, None),
     (CHANNEL, E4M3, (-4.0, 4.0)), (E5M2, PER_TOKEN, None), (CHANNEL, E5M2, None)],
)  # fmt: skip
def test_a_frozen_layer_computes_the_same(weight, activation, span, tokens, dtype, device):
    layer = linear(48, 64, weight, quantizer(activation, span), dtype=dtype, device=device)
    before = get_weight(layer, "weight").packed.clone()
    x = torch.randn(tokens, 64, device=device).to(dtype)
    right, size = expected(layer, x)
    assert freeze_layer(layer, terms(device)) == {}
    assert layer.kernel.name == "fp8"
    out = layer(x)
    assert out.dtype is dtype
    # fp8 products are summed in a little less than float32 on these GPUs; the output's own precision adds to that.
    assert ((out.double() - right).abs() <= 2e-3 * size + torch.finfo(dtype).eps * right.abs()).all()
    assert torch.equal(get_weight(layer, "weight").packed.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("span", [None, (-2.0, 3.0)])
@pytest.mark.parametrize(
    "grid",
    [
        E4M3,
        E5M2,
        PER_TOKEN,
        Grid(Dtype.fp8_e4m3, rounding=RoundType.floor),
        Grid(Dtype.fp8_e4m3, scale_type=ScaleType.pof2),
    ],
    ids=["tensor", "e5m2", "token", "floor", "power of two"],
)
def test_codes_are_those_of_the_definition(grid, span):
    x = torch.randn(9, 33) * torch.logspace(-5, 5, 9)[:, None]
    x[4] = 0.0
    how = quantizer(grid, span)
    codes, scale = fp8.encoder(how)(x)
    qparams = how.qparams(x)
    assert torch.equal(codes.view(torch.uint8), quantize(x, qparams).view(torch.uint8))
    where = x.any(-1, keepdim=True)
    assert torch.equal((scale * where).expand(9, 1), (qparams.step * where).expand(9, 1))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ((16, 32, E4M3, E4M3), "not on cpu"),
        ((16, 32, E4M3, None), ""),
        ((16, 32, INT8, TOKEN), ""),
    ],
)
def test_what_it_refuses(layer, why):
    *sizes, grid, activation = layer
    found = fp8.refuses(linear(*sizes, grid, activation and quantizer(activation)), terms())
    assert (why in found) if why else found == ""


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ((16, 32, E4M3, TOKEN), "int8"),
        ((16, 32, E5M2, E5M2), "two e5m2"),
        ((16, 40, E4M3, E4M3), "multiples of 16"),
        ((16, 32, Grid(Dtype.fp8_e4m3, QSchemeType.per_group, group_size=16), E4M3), "per_group"),
        ((16, 32, E4M3, Grid(Dtype.fp8_e4m3, QSchemeType.per_group, group_size=16)), "per_group"),
        ((16, 32, E4M3, E4M3), None),
    ],
)
def test_what_it_refuses_on_cuda(layer, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    *sizes, grid, activation = layer
    found = fp8.refuses(linear(*sizes, grid, quantizer(activation)), terms("cuda"))
    assert found is None if why is None else why in found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_exact_layers_keep_their_own_sums(dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = fp8.refuses(linear(16, 32, E4M3, quantizer(E4M3), dtype=dtype), terms("cuda", exact=True))
    assert found is None if dtype is torch.bfloat16 else "less precisely" in found


def test_older_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "older" in fp8.refuses(linear(16, 32, E4M3, quantizer(E4M3)), terms("cuda"))
