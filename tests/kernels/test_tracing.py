# SPDX-License-Identifier: Apache-2.0
"""Frozen models under `torch.compile` and `torch.export`."""

import io

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim

from fewbit.kernels import int8_conv
from fewbit.modules.freezing import freeze
from fewbit.modules.quantized import set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from frozen_layers import CUDA, INT8, TENSOR, TOKEN, UINT8, encoded, linear, quantizer

INT4 = Grid(Dtype.int4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.bfloat16)
MXFP4 = Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
LINEARS = {
    "int8": (64, 48, INT8, quantizer(TOKEN)),
    "int8 static": (64, 48, UINT8, quantizer(TENSOR, (-2.0, 3.0))),
    "int8 prepacked": (1024, 1032, INT8, quantizer(TOKEN)),
    "int8_weight_only": (1024, 1032, INT8, None),
    "int4_weight_only": (64, 64, INT4, None),
    "int4 and int8": (64, 64, INT4, quantizer(TOKEN)),
    "dequantize": (64, 64, MXFP4, None),
}


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 3


def conv_layer():
    layer = nn.Conv2d(4, 6, 3, padding=1)
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT8))
    layer.input_quantizer = quantizer(TENSOR, (-2.0, 2.0), features=1)
    return layer


def table_layer():
    layer = Scaled(50, 32)
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT4))
    return layer


def case(name):
    """A frozen layer and an input for it."""
    if name == "int8_conv":
        if not int8_conv._available():
            pytest.skip("PyTorch has no exact int8 convolution on this processor")
        layer, x = conv_layer(), torch.randn(3, 4, 8, 8)
    elif name == "embedding":
        layer, x = table_layer(), torch.arange(12).reshape(3, 4)
    else:
        outputs, features, grid, activation = LINEARS[name]
        layer, x = linear(outputs, features, grid, activation), torch.randn(3, 5, features)
    model = nn.Sequential(layer).eval().requires_grad_(False)
    (line,) = freeze(model)
    assert line["kernel"] in (name, "int8", "int4_weight_only")
    return model, x


CASES = [*LINEARS, "int8_conv", "embedding"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_compiled_whole(name):
    model, x = case(name)
    right = model(x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    out = compiled(x)
    assert torch.allclose(out, right, rtol=1e-5, atol=1e-5)
    assert out.stride() == right.stride()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiled_for_any_batch(name):
    model, x = case(name)
    right = model(x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.allclose(compiled(x), right, rtol=1e-5, atol=1e-5)
    assert torch.allclose(compiled(x[:2]), right[:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_exported_saved_and_loaded(name):
    model, x = case(name)
    right = model(x)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch")},))
    targets = {str(node.target) for node in program.graph.nodes}
    assert not any("fewbit" in target for target in targets)  # runs where fewbit is not
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert torch.allclose(loaded(x), right, rtol=1e-5, atol=1e-5)
    assert torch.allclose(loaded(x[:2]), right[:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*LINEARS])
def test_exported_behind_a_layer_that_learns(name):
    model, x = case(name)
    model = nn.Sequential(nn.Linear(x.shape[-1], x.shape[-1]), model)
    program = torch.export.export(model, (x,))
    assert torch.allclose(program.module()(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiled_by_inductor(name):
    model, x = case(name)
    right = model(x)
    compiled = torch.compile(model, fullgraph=True)
    assert torch.allclose(compiled(x), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["int8 prepacked", "int4_weight_only"])
def test_layers_alike_share_what_was_compiled(name):
    counter = CompileCounter()
    run = torch.compile(lambda model, x: model(x), backend=counter, fullgraph=True)
    for _ in range(3):
        model, x = case(name)
        run(model, x)
    assert counter.frame_count == 1


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("name", [*LINEARS, "fp8"])
def test_compiled_and_exported_on_cuda(name, device):
    fp8 = Grid(Dtype.fp8_e4m3, QSchemeType.per_token)
    outputs, features, grid, activation = {**LINEARS, "fp8": (64, 64, Grid(Dtype.fp8_e4m3), quantizer(fp8))}[name]
    model = nn.Sequential(linear(outputs, features, grid, activation, dtype=torch.bfloat16, device=device))
    freeze(model)
    x = torch.randn(3, 5, features, device=device).bfloat16()
    right = model(x).float()
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert (out - right).norm() <= 0.01 * right.norm()
    loaded = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch")},)).module()
    assert (loaded(x) - right).norm() <= 0.01 * right.norm()
    assert (loaded(x[:2]) - right[:2]).norm() <= 0.01 * right.norm()


def test_channels_last_are_known_to_the_compiler():
    model, x = case("int8_conv")
    x = x.contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert compiled(x).stride() == model(x).stride()
