# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch
from torch import nn

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.modules.freezing import freeze, held_bytes, unfreeze
from fewbit.modules.frozen import Terms, freeze_layer
from fewbit.modules.quantized import Quantized, get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from frozen_layers import DEVICES, INT8, TENSOR, TOKEN, encoded, linear, quantizer, terms

INT4 = Grid(Dtype.int4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.bfloat16)
FP4 = Grid(Dtype.fp4, QSchemeType.per_group, group_size=16)


class Net(nn.Module):
    """A layer for every kernel a CPU has, and one for none."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.dynamic = nn.Linear(64, 1024)
        self.static = nn.Linear(1024, 1032)
        self.bytes = nn.Linear(1032, 1024)
        self.nibbles = nn.Linear(1024, 64)
        self.tiles = nn.Linear(64, 48)
        self.attention = nn.MultiheadAttention(48, 2, batch_first=True)
        self.head = nn.Linear(48, 8)

    def forward(self, index):
        x = self.table(index)
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.static(torch.tanh(self.dynamic(x)))
        x = self.tiles(torch.tanh(self.nibbles(torch.tanh(self.bytes(x)))))
        return self.head(self.attention(x, x, x, need_weights=False)[0])


KERNELS = {
    "table": "embedding",
    "conv": "int8_conv",
    "dynamic": "int8",
    "static": "int8",
    "bytes": "int8_weight_only",
    "nibbles": "int4_weight_only",
    "tiles": "dequantize",
    "attention": None,
}


def net():
    torch.manual_seed(0)
    model = Net().eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.ndim > 1:  # so that outputs depend on every layer
            parameter.normal_(0.0, 1.5 * parameter[0].numel() ** -0.5)
        else:
            parameter.normal_(0.0, 0.1)
    for name, grid, activation in (
        ("table", INT4, None),
        ("conv", INT8, quantizer(TENSOR, (-4.0, 4.0), features=1)),
        ("dynamic", INT8, quantizer(TOKEN)),
        ("static", INT8, quantizer(TENSOR, (-1.0, 1.0))),
        ("bytes", INT8, None),
        ("nibbles", INT4, None),
        ("tiles", FP4, quantizer(TOKEN)),
    ):
        layer = getattr(model, name)
        set_weight(layer, "weight", encoded(layer.weight, grid))
        layer.input_quantizer = activation
    set_weight(model.attention, "in_proj_weight", encoded(model.attention.in_proj_weight, INT8))
    return model


INDEX = torch.arange(14).reshape(2, 7)


def near(a, b, share=0.02):
    return (a.float() - b.float()).norm() < share * b.float().norm()


def test_every_layer_gets_its_kernel():
    model = net()
    before = model(INDEX)
    report = freeze(model)
    assert {line["layer"]: line["kernel"] for line in report} == KERNELS
    why = {line["layer"]: line["why"] for line in report}
    assert why["attention"] == "no kernel for this kind of layer"
    assert "bfloat16" in why["nibbles"]
    assert near(model(INDEX), before)


def test_a_second_time_changes_nothing():
    model = net()
    first = freeze(model)
    kernels = [module.kernel for module in model.modules() if isinstance(module, Quantized)]
    assert freeze(model) == first
    assert all(a is b for a, b in zip(kernels, [m.kernel for m in model.modules() if isinstance(m, Quantized)]))


def test_exact_is_exact_and_can_be_asked_for_later():
    model = net()
    before = model(INDEX)
    freeze(model)
    report = freeze(model, exact=True)
    line = next(line for line in report if line["layer"] == "nibbles")
    assert line["kernel"] == "dequantize"
    assert line["why"].startswith("not int4_weight_only: it rounds activations to bfloat16")
    # Activations near the middle between two codes may fall to either side where sums are rounded in another order.
    assert near(model(INDEX), before, 1e-3)


def test_unfreezing_puts_everything_back():
    model = net()
    before = model(INDEX)
    parts = {name: buffer.clone() for name, buffer in model.named_buffers()}
    freeze(model)
    unfreeze(model)
    after = dict(model.named_buffers())
    assert parts.keys() == after.keys()
    assert all(torch.equal(parts[name], after[name]) for name in parts)
    assert torch.equal(model(INDEX), before)


def test_codes_can_be_read_from_a_frozen_layer():
    model = net()
    before = {name: get_weight(getattr(model, name), "weight") for name in KERNELS if name != "attention"}
    freeze(model)
    for name, weight in before.items():
        after = get_weight(getattr(model, name), "weight")
        assert after.tensors().keys() == weight.tensors().keys()
        assert all(torch.equal(part, after.tensors()[key]) for key, part in weight.tensors().items())
        assert torch.equal(getattr(model, name).weight, weight.dequantize())


def test_memory_is_what_the_report_says_and_no_float_weight_is_left():
    model = net()
    report = {line["layer"]: line for line in freeze(model)}
    for name in KERNELS:
        layer = getattr(model, name)
        weight = get_weight(layer, next(iter(layer.coded)))
        line = report[name]
        assert line["bytes_after"] == held_bytes(layer)
        # Kernels may keep a scale in another form, and a few sums an output beside the codes.
        assert line["bytes_after"] <= weight.nbytes * 1.15 + 16 * weight.shape[0]
        assert line["bytes_before"] == weight.qparams.scale.new_empty(weight.shape, device="meta").nbytes
        floats = [tensor for tensor in everything(layer) if tensor.dtype is torch.float32]
        assert all(tensor.numel() <= max(weight.scale.numel(), weight.shape[0]) for tensor in floats)


def everything(layer):
    """Every tensor that a module keeps alive, its kernel's included."""
    seen = [*layer.parameters(recurse=False), *layer.buffers()]
    todo = [layer.kernel]
    for thing in todo:
        for value in vars(thing).values() if hasattr(thing, "__dict__") else ():
            if isinstance(value, torch.Tensor):
                seen.append(value)
            elif type(value).__module__.startswith("fewbit.kernels"):
                todo.append(value)
    return seen


def test_everything_a_kernel_keeps_is_counted():
    model = net()
    freeze(model)
    for name, kernel in KERNELS.items():
        layer = getattr(model, name)
        if kernel is not None:
            named = {id(tensor) for tensor in layer.kernel.tensors()}
            buffers = {id(tensor) for tensor in layer.buffers()}
            found = {id(tensor) for tensor in everything(layer)} - {id(p) for p in layer.parameters()}
            assert found <= named | buffers, name


def test_a_state_dict_is_that_of_the_layer_before():
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    freeze(model)
    after = model.state_dict()
    assert list(before) == list(after) or before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_state_dict_is_loaded_into_a_frozen_layer():
    one, other = net(), net()
    with torch.no_grad():
        for name in ("static", "nibbles"):
            layer = getattr(other, name)
            set_weight(layer, "weight", encoded(-layer.weight, layer.coded["weight"].grid))
    freeze(one)
    freeze(other)
    assert not near(one(INDEX), other(INDEX), 0.1)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(INDEX), other(INDEX))
    assert one.static.kernel.name == "int8"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_frozen_too(copied):
    model = net()
    freeze(model)
    right = model(INDEX)
    other = copied(model)
    assert torch.equal(other(INDEX), right)
    assert other.nibbles.kernel is not model.nibbles.kernel
    assert {name: getattr(getattr(other, name).kernel, "name", None) for name in KERNELS} == KERNELS
    other.nibbles.bias.fill_(7.0)
    unfreeze(other)
    assert torch.equal(model(INDEX), right)


def test_a_cast_chooses_kernels_anew():
    model = net()
    before = model(INDEX)
    freeze(model)
    model.bfloat16()
    assert model.nibbles.kernel.note == ""
    assert model(INDEX).dtype is torch.bfloat16
    assert near(model(INDEX), before, 0.05)
    model.float()
    assert near(model(INDEX), before)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_moving_chooses_kernels_anew(device):
    model = net()
    before = model(INDEX)
    freeze(model)
    model.to(device)
    assert model.conv.kernel is None and model.nibbles.kernel.weight.device.type == "cuda"
    assert near(model(INDEX.to(device)).cpu(), before, 0.02)
    model.cpu()
    assert {name: getattr(getattr(model, name).kernel, "name", None) for name in KERNELS} == KERNELS
    assert near(model(INDEX), before)


def test_layers_that_share_codes_keep_sharing_them():
    table, head = nn.Embedding(1024, 1024), nn.Linear(1024, 1024, bias=False)
    codes = encoded(table.weight.detach(), INT8)
    set_weight(table, "weight", codes)
    set_weight(head, "weight", codes)
    model = nn.Sequential(table, head).eval()
    right = model(INDEX)
    report = freeze(model)
    assert [line["kernel"] for line in report] == ["embedding", "int8_weight_only"]
    assert head.weight_packed.data_ptr() == table.weight_packed.data_ptr()
    assert torch.allclose(model(INDEX), right, atol=1e-4)
    assert freeze(model) == report


def test_gradients_reach_the_input():
    layer = linear(32, 64, INT4)
    x = torch.randn(3, 64, requires_grad=True)
    layer(x).square().sum().backward()
    right, x.grad = x.grad, None
    freeze_layer(layer, terms())
    out = layer(x)
    assert out.requires_grad
    out.square().sum().backward()
    assert near(x.grad, right, 0.02)
    with torch.no_grad():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("activation", [quantizer(TOKEN), quantizer(TENSOR, (-2.0, 2.0))], ids=["dynamic", "static"])
def test_gradients_of_quantized_activations_are_those_of_the_layer_before(activation):
    layer = linear(32, 64, INT8, activation)
    x = torch.randn(3, 64, requires_grad=True)
    (layer(x).sum() + x.sum()).backward()
    right, x.grad = x.grad, None
    freeze_layer(layer, terms())
    (layer(x).sum() + x.sum()).backward()
    assert torch.allclose(x.grad, right)


def test_new_codes_end_a_freeze():
    layer = linear(32, 64, INT4)
    freeze_layer(layer, terms())
    codes = encoded(torch.ones(32, 64), INT4)
    set_weight(layer, "weight", codes)
    assert layer.kernel is None
    assert torch.equal(layer.weight, codes.dequantize())


def test_quantized_outputs():
    layer = linear(32, 64, INT8, quantizer(TOKEN))
    layer.output_quantizer = quantizer(Grid(Dtype.int4), (-1.0, 1.0))
    x = torch.randn(3, 64)
    right = layer(x)
    freeze_layer(layer, terms())
    assert torch.equal(layer(x), right)


def test_the_record_says_why_a_slower_kernel_was_taken():
    model = nn.Sequential(linear(16, 48, Grid(Dtype.int4, QSchemeType.per_group, group_size=16)))
    (line,) = freeze(model)
    assert line["kernel"] == "dequantize"
    assert line["why"] == "not int4_weight_only: it takes whole groups of 32, 64, 128 or 256, not 16 of 48 features"


def test_what_is_no_module_cannot_be_frozen():
    with pytest.raises(UsageError, match="cannot be frozen"):
        freeze({"weight": 1})


def test_a_float_model_has_nothing_to_freeze():
    assert freeze(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("name", registry.names("kernels"))
def test_the_contract_of_a_kernel(name):
    member = registry.get("kernels", name)
    assert isinstance(member.SPEED, int)
    assert registry.summary("kernels", name)
    other = nn.LSTM(2, 2)
    set_weight(other, "weight_ih_l0", encoded(other.weight_ih_l0.detach(), INT8))
    assert member.refuses(other, Terms(torch.device("cpu"))) == ""
    assert hasattr(member.Kernel, "run") and hasattr(member.Kernel, "restore")


@pytest.mark.parametrize(
    "preset", ["w8a8_dynamic", "w8a8", "w8a16", "w4a16", "w4a8_dynamic", "fp8_dynamic", "mxfp4", "w3a16"]
)
@pytest.mark.parametrize("layout", ["transposed", "turned", "strided", "one batch"])
def test_inputs_may_lie_in_memory_as_they_like(preset, layout):
    from fewbit import ModelQuantizer

    torch.manual_seed(0)
    x = {
        "transposed": torch.randn(2, 64, 8).transpose(1, 2),
        "turned": torch.randn(64, 8).t(),
        "strided": torch.randn(8, 128)[:, ::2],
        "one batch": torch.randn(1, 64, 8).transpose(1, 2),
    }[layout]
    quantizer = ModelQuantizer(preset)
    data = [torch.randn(4, 64)] if preset == "w8a8" else None
    frozen = quantizer.freeze(quantizer.quantize_model(nn.Sequential(nn.Linear(64, 64)).eval(), data))
    with torch.no_grad():
        assert torch.equal(frozen(x), frozen(x.contiguous()))


@pytest.mark.parametrize("preset", ["w8a8_dynamic", "w8a16", "w4a16", "mxfp4"])
def test_autocast_decides_the_dtype_as_for_float_layers(preset):
    from fewbit import ModelQuantizer

    quantizer = ModelQuantizer(preset)
    frozen = quantizer.freeze(quantizer.quantize_model(nn.Sequential(nn.Linear(64, 64)).eval()))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert frozen(torch.randn(3, 64)).dtype is torch.bfloat16
    assert frozen(torch.randn(3, 64)).dtype is torch.float32
