# SPDX-License-Identifier: Apache-2.0
import copy
import io
import pickle

import pytest
import torch
from torch import nn

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.kernels import int8_conv
from fewbit.modules import frozen
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
    "conv": "int8_conv" if int8_conv._available() else None,
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
    assert why["attention"] == "no kernel for this kind of layer; its weights are dequantized whole in each call"
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


def test_a_copy_on_another_device_chooses_kernels_for_that_device():
    model = nn.Sequential(linear(1024, 1024, INT8, quantizer(TOKEN)))
    freeze(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, map_location="meta", weights_only=False)
    assert other[0].frozen_terms.device.type == "meta"
    assert other[0].kernel.name == "dequantize" and model[0].kernel.name == "int8"


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_model_saved_on_a_gpu_and_loaded_without(device):
    model = net()
    before = model(INDEX)
    freeze(model.to(device))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, map_location="cpu", weights_only=False)
    assert {name: getattr(getattr(other, name).kernel, "name", None) for name in KERNELS} == KERNELS
    assert near(other(INDEX), before)


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
def test_gradients_pass_through_quantized_activations(activation):
    layer = linear(32, 64, INT8, activation)
    x = torch.randn(3, 64, requires_grad=True)
    right = torch.arange(32.0) @ layer.weight  # of a product with the weight, as if the input were not rounded
    for _ in range(2):
        (layer(x) @ torch.arange(32.0)).sum().backward()
        assert torch.allclose(x.grad, right.expand(3, 64))
        x.grad = None
        freeze_layer(layer, terms())
        assert layer.kernel.name == "int8"


def test_gradients_pass_through_quantized_outputs():
    layer = linear(32, 64, INT8)
    layer.output_quantizer = quantizer(TOKEN)
    freeze_layer(layer, terms())
    x = torch.randn(3, 64, requires_grad=True)
    layer(x).sum().backward()
    assert torch.allclose(x.grad, layer.weight.sum(0).expand(3, 64), atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grid", [INT4, INT8, FP4], ids=["int4", "int8", "fp4"])
def test_gradients_under_autocast(grid, device):
    layer = linear(32, 64, grid, device=device)
    right = layer.weight.sum(0).expand(3, 64)
    freeze_layer(layer, terms(device))
    x = torch.randn(3, 64, requires_grad=True, device=device)
    with torch.autocast(device, torch.bfloat16):
        out = layer(x)
    assert out.dtype is torch.bfloat16
    out.sum().backward()  # outside of it, as PyTorch says to
    assert x.grad.dtype is torch.float32 and near(x.grad, right, 0.02)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it after a break of the graph
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "grid", "activation"),
    [((64, 64), INT4, None), ((64, 64), INT8, quantizer(TOKEN)), ((1032, 1024), INT8, quantizer(TOKEN)),
     ((1032, 1024), INT8, None), ((64, 64), FP4, None)],
    ids=["int4", "int8", "int8 prepacked", "int8_weight_only", "dequantize"],
)  # fmt: skip
def test_gradients_when_compiled(sizes, grid, activation, device):
    layer = linear(*sizes, grid, activation, device=device)
    right = layer.weight.sum(0).expand(3, -1)
    freeze_layer(layer, terms(device))
    x = torch.randn(3, sizes[1], requires_grad=True, device=device)
    torch._dynamo.reset()
    out = torch.compile(layer, backend="aot_eager")(x)
    assert near(out, layer(x), 1e-3)
    out.sum().backward()
    assert torch.allclose(x.grad, right, atol=1e-4)


def test_what_float64_inputs_are_under_autocast_does_not_change():
    layer = linear(32, 64, FP4, dtype=torch.float64)
    freeze_layer(layer, terms())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 64, dtype=torch.float64)).dtype is torch.float64


def test_a_call_with_other_arguments_is_refused_as_the_layer_itself_does():
    layer = linear(32, 64, INT8, quantizer(TOKEN))
    freeze_layer(layer, terms())
    x = torch.randn(3, 64)
    assert torch.equal(layer(input=x), layer(x))
    with pytest.raises(TypeError, match="argument"):
        layer(x, x)
    with pytest.raises(TypeError, match="mask"):
        layer(mask=x, input=x)


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


class Doubling(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("layer", "name", "grid", "why"),
    [
        (nn.LSTM(16, 16), "weight_ih_l0", INT8, "no kernel for this kind of layer"),
        (nn.ConvTranspose1d(16, 16, 3), "weight", INT8, "no kernel for this kind of layer"),
        (nn.Conv1d(16, 16, 3), "weight", Grid(Dtype.int4), "no kernel for this kind of layer"),
        (nn.Conv1d(16, 16, 3), "weight", Grid(Dtype.fp8_e4m3), "no kernel for this kind of layer"),
        (
            Doubling(16, 16),
            "weight",
            Grid(Dtype.int4),
            "not int8, fp8, int8_weight_only, int4_weight_only, dequantize: Doubling has a forward of its own",
        ),
    ],
    ids=["LSTM", "ConvTranspose1d", "int4 Conv1d", "fp8 Conv1d", "own forward"],
)
def test_the_record_says_which_weights_are_dequantized_whole(layer, name, grid, why):
    set_weight(layer, name, encoded(getattr(layer, name).detach(), grid))
    (line,) = freeze(nn.Sequential(layer))
    assert line["kernel"] is None
    assert line["why"] == f"{why}; its weights are dequantized whole in each call"


@pytest.mark.parametrize("features", [64, 48])
def test_a_weight_that_is_another_transposed_is_not_taken_for_it(features):
    from fewbit import ModelQuantizer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(features, 64, bias=False), nn.Linear(64, features, bias=False)).eval()
    model[1].weight = nn.Parameter(model[0].weight.detach().T)
    quantizer = ModelQuantizer("w8a16")
    quantized = quantizer.quantize_model(model)
    x = torch.randn(3, features)
    with torch.no_grad():
        right = quantized(x)
        report = freeze(quantized)
        assert torch.allclose(quantized(x), right, atol=1e-5)
    assert report[0]["kernel"] == "dequantize" and report[1]["kernel"] is None
    assert "transposed" in report[1]["why"]


def test_conv1d_has_a_transposed_weight_of_its_own():
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    layer = pytorch_utils.Conv1D(48, 64)
    set_weight(layer, "weight", encoded(layer.weight.detach().T, INT8), axes=(1, 0))
    x = torch.randn(3, 64)
    right = layer(x)
    (line,) = freeze(nn.Sequential(layer))
    assert line["kernel"] == "dequantize" and torch.allclose(layer(x), right, atol=1e-5)


class Plugin:
    value = "their_package.kernel"

    def load(self):
        raise ImportError("no module named 'their_package'")


def test_a_plug_in_that_cannot_be_imported_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(registry, "_entry_points", lambda kind: {"theirs": Plugin()})
    frozen._fastest_first.cache_clear()
    try:
        (line,) = freeze(nn.Sequential(linear(16, 64, FP4)))
    finally:
        frozen._fastest_first.cache_clear()
    assert line["kernel"] == "dequantize"
    assert "not theirs: its plug-in: their_package.kernel is broken (ImportError: no module named" in line["why"]


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
