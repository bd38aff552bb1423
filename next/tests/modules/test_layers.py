# SPDX-License-Identifier: Apache-2.0
"""A quantized layer is a subclass of its own class: forward, casts, copies, state, gradients, tracing."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fewbit.backends.torch.kernels import freeze, unfreeze
from fewbit.backends.torch.layers import (
    ActivationQuantizer,
    QuantizedLayer,
    close_fast_paths,
    set_weight,
    share_weight,
)
from modules.conftest import FP8, INT4, INT8, TOKEN, UINT4, WEIGHT_GRIDS, encode, quantized, static_quantizer

LAYERS = {
    "linear": (lambda: nn.Linear(40, 24), (3, 40)),
    "conv1d": (lambda: nn.Conv1d(8, 12, 3, padding=1), (2, 8, 10)),
    "conv2d": (lambda: nn.Conv2d(8, 12, 3, groups=4, stride=2), (2, 8, 9, 9)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2, dilation=2), (2, 4, 5, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 6, 3, groups=2), (2, 8, 5, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("grid", WEIGHT_GRIDS.values(), ids=WEIGHT_GRIDS)
def test_the_forward_of_its_own_class_runs_on_dequantized_weights(kind, grid):
    make, shape = LAYERS[kind]
    module, x = make(), torch.randn(shape)
    reference = copy.deepcopy(module)
    tensor = encode(module.weight, grid)
    reference.weight.data = tensor.dequantize()
    set_weight(module, "weight", tensor)
    assert isinstance(module, type(reference)) and isinstance(module, QuantizedLayer)
    assert torch.equal(module(x), reference(x))
    assert "weight" not in dict(module.named_parameters()) and "bias" in dict(module.named_parameters())
    assert torch.equal(module.weight, reference.weight)


def test_an_embedding_reads_rows_of_its_packed_table():
    module, index = nn.Embedding(50, 32), torch.randint(0, 50, (4, 7))
    tensor = encode(module.weight, UINT4)
    set_weight(module, "weight", tensor)
    assert torch.equal(module(index), F.embedding(index, tensor.dequantize()))


def test_an_own_forward_of_a_subclass_is_kept():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module, x = Doubled(8, 4), torch.randn(3, 8)
    tensor = encode(module.weight, INT8)
    set_weight(module, "weight", tensor)
    assert torch.equal(module(x), 2 * F.linear(x, tensor.dequantize(), module.bias))
    assert freeze(module)[0]["kernel"] is None  # kernels compute plain products only
    assert torch.equal(module(x), 2 * F.linear(x, tensor.dequantize(), module.bias))


def test_recurrent_layers_and_attention_read_their_weights_by_name():
    x = torch.randn(5, 2, 16)
    lstm = nn.LSTM(16, 16)
    tensor = encode(lstm.weight_ih_l0, INT8)
    reference = copy.deepcopy(lstm)
    reference.weight_ih_l0.data = tensor.dequantize()
    set_weight(lstm, "weight_ih_l0", tensor)
    for module in (lstm, copy.deepcopy(lstm), pickle.loads(pickle.dumps(lstm)), lstm.double().float()):
        assert torch.equal(module(x)[0], reference(x)[0])
    attention = nn.MultiheadAttention(16, 4)
    tensor = encode(attention.in_proj_weight, INT8)
    reference = copy.deepcopy(attention)
    reference.in_proj_weight.data = tensor.dequantize()
    set_weight(attention, "in_proj_weight", tensor)
    assert torch.equal(attention(x, x, x)[0], reference(x, x, x)[0])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("grid", [INT8, INT4, FP8, UINT4], ids=["int8", "int4", "fp8", "uint4"])
def test_copy_pickle_state_dict_and_torch_save(grid, frozen):
    module, x = nn.Sequential(nn.Linear(128, 32), nn.ReLU()), torch.randn(3, 128)
    quantized(module[0], grid, ActivationQuantizer(TOKEN))
    buffers = {name: value.clone() for name, value in module.state_dict().items()}
    if frozen:
        freeze(module)
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), expected)
        assert type(other[0]).__name__ == "QuantizedLinear" and other[0].float_class is nn.Linear
    state = module.state_dict()
    assert state.keys() == buffers.keys()
    assert all(
        torch.equal(value, buffers[name]) and value.dtype is buffers[name].dtype for name, value in state.items()
    )
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    other = nn.Sequential(nn.Linear(128, 32), nn.ReLU())
    quantized(other[0], grid, ActivationQuantizer(TOKEN))
    if frozen:
        freeze(other)
    other.load_state_dict(torch.load(stream))
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casts_change_what_integers_stand_for_and_no_scale(dtype, frozen):
    module = nn.Sequential(nn.Linear(64, 32))
    quantized(module[0], INT4, static_quantizer(-3.0, 3.0))
    before = {name: value.clone() for name, value in module[0].named_buffers()}
    if frozen:
        freeze(module)
    module.to(dtype)
    assert module[0].weight.dtype is dtype and module[0].bias.dtype is dtype
    unfreeze(module)
    after = dict(module[0].named_buffers())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert module(torch.randn(2, 64, dtype=dtype)).dtype is dtype


def test_layers_that_share_buffers_share_them_after_a_move():
    first, second = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
    model = nn.ModuleList([first, second])
    share_weight(second, "weight", quantized(first, INT8), "weight")
    for other in (model, copy.deepcopy(model), model.to("cpu").half(), pickle.loads(pickle.dumps(model))):
        assert other[0].weight_packed.data_ptr() == other[1].weight_packed.data_ptr()
        assert other[0].weight_scale.data_ptr() == other[1].weight_scale.data_ptr()
    rows = freeze(model)
    assert [row["kernel"] for row in rows] == ["embedding", "dequantize"]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("quantizer", ["none", "token", "static"])
def test_gradients_reach_the_input_as_if_activations_were_not_rounded(quantizer, frozen):
    module, x = nn.Linear(64, 8), torch.randn(5, 64, requires_grad=True)
    chosen = {"none": None, "token": ActivationQuantizer(TOKEN), "static": static_quantizer(-4.0, 4.0)}[quantizer]
    quantized(module, INT8, chosen)
    if frozen:
        freeze(module)
    module(x).sum().backward()
    assert torch.allclose(x.grad, module.weight.sum(0).expand(5, -1), atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_gives_the_dtype_that_a_float_layer_gives(frozen):
    module, x = nn.Linear(64, 32), torch.randn(3, 64)
    quantized(module, INT8, ActivationQuantizer(TOKEN))
    if frozen:
        freeze(module)
    expected = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    assert out.dtype is torch.bfloat16
    assert torch.allclose(out.float(), expected, atol=0.1)


@pytest.mark.parametrize(
    ("grid", "quantizer", "frozen"),
    [
        (INT8, "token", True),
        (UINT4, "none", True),
        (INT8, "static", False),
        *(
            pytest.param(grid, quantizer, frozen, marks=pytest.mark.slow)
            for grid, quantizer in [(INT8, "none"), (INT8, "static"), (INT4, "token"), (FP8, "none"), (INT4, "none")]
            for frozen in (False, True)
        ),
    ],
)
def test_export_and_compile_compute_the_same(grid, quantizer, frozen):
    chosen = {"none": None, "token": ActivationQuantizer(TOKEN), "static": static_quantizer(-4.0, 4.0)}[quantizer]
    module, x = nn.Sequential(quantized(nn.Linear(64, 32), grid, chosen), nn.ReLU()), torch.randn(3, 64)
    if frozen:
        freeze(module)
    with torch.no_grad():
        expected = module(x)
        program = torch.export.export(module, (x,))
        assert torch.allclose(program.module()(x), expected, atol=1e-5)
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(x), expected, atol=1e-5)


def test_a_frozen_convolution_is_exported_with_plain_operators():
    module = nn.Sequential(quantized(nn.Conv2d(4, 8, 3, padding=1), INT8, static_quantizer(-4.0, 4.0, -3)))
    x = torch.randn(2, 4, 8, 8)
    freeze(module)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
        assert torch.allclose(program.module()(x), module(x), atol=1e-4)
    assert not any("fewbit" in str(node.target) for node in program.graph.nodes)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the compiler about its own tensors
def test_gradients_in_a_compiled_graph():
    module, x = nn.Sequential(quantized(nn.Linear(64, 8), INT8, ActivationQuantizer(TOKEN))), torch.randn(3, 64)
    freeze(module)
    torch._dynamo.reset()
    x.requires_grad_()
    torch.compile(module, backend="aot_eager")(x).sum().backward()
    assert torch.allclose(x.grad, module[0].weight.sum(0).expand(3, -1), atol=1e-5)


def test_an_output_quantizer_rounds_what_the_layer_returns():
    module, x = nn.Linear(16, 8), torch.randn(4, 16)
    layer = quantized(module, INT8)
    expected = module(x)
    layer.output_quantizer = ActivationQuantizer(TOKEN)
    assert torch.equal(module(x), ActivationQuantizer(TOKEN)(expected))
    assert torch.equal(module(input=x), module(x))


def test_empty_inputs_pass():
    module = quantized(nn.Linear(64, 8), INT8, ActivationQuantizer(TOKEN))
    assert module(torch.zeros(0, 64)).shape == (0, 8)
    freeze(module)
    assert module(torch.zeros(0, 64)).shape == (0, 8)


def test_the_fused_encoder_layer_calls_quantized_parts():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)
    quantized(encoder.layers[0].linear1, INT8, ActivationQuantizer(TOKEN))
    close_fast_paths(encoder)
    calls = []
    encoder.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        encoder(x)
    assert calls
    assert pickle.loads(pickle.dumps(encoder.layers[1])) is not None
