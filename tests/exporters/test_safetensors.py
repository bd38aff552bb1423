# SPDX-License-Identifier: Apache-2.0
"""fewbit's own format: what goes in comes out, bit by bit, for every grid and kind of layer."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import own_format
from fewbit.engine.delivering import export, load
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.errors import UsageError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.freezing import freeze
from fewbit.modules.quantized import float_weight, get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.schemes.presets import preset_names
from quantized_models import GRIDS, INT4, encode, mlp, numbers, quantize_linears
from small_models import images, mixed


def one_layer_a_grid(dtype=torch.float32):
    """A model whose layers have every grid there is; 12 rows and 40 columns, which groups of 16 do not divide."""
    torch.manual_seed(0)
    return nn.ModuleDict({f"as {name}": nn.Linear(40, 12) for name in GRIDS}).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_grid_comes_back_and_a_second_reader_agrees(tmp_path, dtype):
    model = one_layer_a_grid(dtype)
    for layer, grid in zip(model.values(), GRIDS.values()):
        set_weight(layer, "weight", encode(layer.weight, grid))
    export(model, tmp_path / "out")
    made = load(tmp_path / "out", one_layer_a_grid())
    read = own_format.weights(tmp_path / "out")
    for name, layer in model.items():
        assert torch.equal(made[name].weight, layer.weight) and made[name].weight.dtype is dtype, name
        theirs, ours = get_weight(made[name], "weight").tensors(), get_weight(layer, "weight").tensors()
        assert theirs.keys() == ours.keys()
        assert all(theirs[part].dtype is ours[part].dtype for part in ours)
        assert np.array_equal(read[f"{name}.weight"], get_weight(layer, "weight").dequantize().numpy()), name


class Layers(nn.Module):
    """Kinds of layers whose own layouts differ."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, groups=1)
        self.transposed = nn.ConvTranspose1d(8, 6, 3, groups=2)
        self.turned = Conv1D(12, 6)
        self.embed = nn.Embedding(10, 16)
        self.lstm = nn.LSTM(16, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.bag = nn.EmbeddingBag(10, 16)

    def forward(self, image, ids):
        x = self.transposed(self.conv(image).flatten(2))
        y = self.turned(x.transpose(1, 2).contiguous())
        tokens = self.embed(ids)
        out, (h, c) = self.lstm(tokens)
        return x, y, out, h, c, self.attention(tokens, tokens, tokens)[0], self.bag(ids)


def layers():
    torch.manual_seed(0)
    return Layers().eval()


def test_every_kind_of_layer_comes_back(tmp_path):
    from fewbit.modules.layout import to_ours

    model = layers()
    kinds = {
        "conv": ["weight"], "transposed": ["weight"], "turned": ["weight"], "embed": ["weight"], "bag": ["weight"],
        "lstm": ["weight_ih_l0", "weight_hh_l0"], "attention": ["in_proj_weight"], "attention.out_proj": ["weight"],
    }  # fmt: skip
    turned = {"transposed": ((1, 0, 2), 2), "turned": ((1, 0), 1)}
    for path, names in kinds.items():
        module = model.get_submodule(path)
        for name in names:
            own = getattr(module, name).detach()
            axes, groups = turned.get(path, (tuple(range(own.ndim)), 1))
            codes = encode(to_ours(own, axes, groups).contiguous(), INT4)
            set_weight(module, name, codes, axes, groups)
    export(model, tmp_path / "out")
    made = load(tmp_path / "out", layers())
    inputs = numbers(2, 3, 6, 6), torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad():
        for mine, theirs in zip(model(*inputs), made(*inputs), strict=True):
            assert torch.equal(mine, theirs)
    for path, names in kinds.items():
        for name in names:
            mine, theirs = (float_weight(m.get_submodule(path), name) for m in (model, made))
            assert torch.equal(mine, theirs) and mine.shape == getattr(layers().get_submodule(path), name).shape


@pytest.mark.parametrize("granularity", [QSchemeType.per_tensor, QSchemeType.per_channel, QSchemeType.per_group])
@pytest.mark.parametrize("fixed", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("dtype", [Dtype.int8, Dtype.uint8, Dtype.fp8_e4m3], ids=lambda dtype: dtype.name)
def test_activation_quantizers_come_back(tmp_path, granularity, fixed, dtype):
    grid = Grid(dtype, granularity, group_size=8, symmetric=dtype is not Dtype.uint8)
    model = quantize_linears(mlp())
    count = {QSchemeType.per_tensor: 1, QSchemeType.per_channel: 40, QSchemeType.per_group: 5}[granularity]
    qparams = from_range(-numbers(count).abs(), numbers(count).abs(), grid, (1,)) if fixed else None
    model[0].input_quantizer = ActivationQuantizer(grid, fixed=qparams)
    export(model, tmp_path / "out")
    made = load(tmp_path / "out", mlp())
    assert made[0].input_quantizer.dynamic is not fixed
    assert torch.equal(made(numbers(5, 40)), model(numbers(5, 40)))


def test_tied_codes_are_stored_once_and_shared_again(tmp_path):
    def tied():
        model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 10, bias=False))
        model[1].weight = model[0].weight
        return model.eval()

    model = tied()
    codes = encode(model[0].weight, INT4)
    for layer in model:
        set_weight(layer, "weight", codes)
    export(model, tmp_path / "out")
    assert set(own_format.raw_tensors(tmp_path / "out" / "fewbit.safetensors")) == {"0.weight_packed", "0.weight_scale"}
    made = load(tmp_path / "out", tied())
    assert made[0].weight_packed is made[1].weight_packed
    assert torch.equal(made(torch.tensor([[1, 2]])), model(torch.tensor([[1, 2]])))


def test_equal_frozen_layers_come_back_independent(tmp_path):
    def twins():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model[1].load_state_dict(model[0].state_dict())
        return model.eval()

    quantizer = ModelQuantizer("w4a16")
    model = quantizer.freeze(quantizer.quantize_model(twins()))
    export(model, tmp_path / "out")
    made, x = load(tmp_path / "out", twins(), freeze=True), numbers(5, 64)
    assert [layer.kernel.name for layer in made] == [layer.kernel.name for layer in model]
    with torch.no_grad():
        assert torch.equal(made(x), model(x))
    made = load(tmp_path / "out", twins())
    made[0].weight_packed.zero_()
    assert made[1].weight_packed.any()


def test_tied_frozen_layers_come_back_tied(tmp_path):
    def tied():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64, bias=False))
        model[1].weight = model[0].weight
        return model.eval()

    model = tied()
    codes = encode(model[0].weight, INT4)
    for layer in model:
        set_weight(layer, "weight", codes)
    freeze(model)
    export(model, tmp_path / "out")
    made = load(tmp_path / "out", tied(), freeze=True)
    assert made[0].weight_packed is made[1].weight_packed


def test_large_models_are_cut_into_files(tmp_path):
    model = quantize_linears(mlp())
    export(model, tmp_path / "out", shard_bytes=300)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"fewbit-00001-of-{len(names):05}.safetensors"
    for name in names:
        tensors = own_format.raw_tensors(tmp_path / "out" / name)
        assert len(tensors) == 1 or sum(array.nbytes for array in tensors.values()) <= 300
    assert torch.equal(load(tmp_path / "out", mlp())(numbers(5, 40)), model(numbers(5, 40)))


def test_a_model_without_tensors(tmp_path):
    export(nn.ReLU(), tmp_path / "out")
    assert load(tmp_path / "out", nn.ReLU())(torch.tensor(-1.0)) == 0


def test_the_same_model_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        export(quantize_linears(mlp()), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_compiled_model_is_written_as_itself(tmp_path):
    model = quantize_linears(mlp())
    export(torch.compile(model, backend="eager"), tmp_path / "out")
    assert torch.equal(load(tmp_path / "out", mlp())(numbers(5, 40)), model(numbers(5, 40)))


def test_the_factory_is_noted_and_not_run(tmp_path):
    (tmp_path / "build.py").write_text("raise SystemExit('this ran')\n")
    export(quantize_linears(mlp()), tmp_path / "out", factory=f"{tmp_path}/build.py:make")
    with pytest.raises(UsageError, match="Sequential") as error:
        load(tmp_path / "out")
    assert "build.py:make" in error.value.try_


@pytest.mark.parametrize(
    ("options", "what"), [({"shard_bytes": 0}, "shard_bytes=0"), ({"factory": "make"}, "does not name a function")]
)
def test_wrong_options_leave_nothing(tmp_path, options, what):
    with pytest.raises(UsageError, match=what):
        export(quantize_linears(mlp()), tmp_path / "out", **options)
    assert not any(tmp_path.iterdir())


def test_the_manifest_says_everything(tmp_path):
    model = quantize_linears(mlp())
    export(model, tmp_path / "out", factory="build.py:make")
    manifest = json.loads((tmp_path / "out" / "fewbit.json").read_text())
    assert manifest["version"] == 1 and manifest["format"] == "safetensors" and manifest["factory"] == "build.py:make"
    assert set(manifest["tensors"]) == {f"{i}.{n}" for i in (0, 2) for n in ("weight_packed", "weight_scale", "bias")}
    assert manifest["tensors"]["0.bias"]["kind"] == "parameter" and len(manifest["tensors"]["0.bias"]["sha256"]) == 64
    weight = manifest["layers"]["2"]["weights"]["weight"]
    assert weight["shape"] == [8, 24] and weight["block"] == [1, 16] and weight["grid"]["dtype"] == "int4"


def test_a_change_while_it_is_exported_is_noticed(tmp_path, monkeypatch):
    from fewbit.errors import DataError
    from fewbit.exporters import safetensors as exporter

    model = quantize_linears(mlp())
    write = exporter.write

    def write_and_change(*arguments, **options):
        content = write(*arguments, **options)
        with torch.no_grad():
            model[0].bias += 1
        return content

    monkeypatch.setattr(exporter, "write", write_and_change)
    with pytest.raises(DataError, match="not what the model holds") as error:
        export(model, tmp_path / "out")
    assert error.value.where == "0.bias" and not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_comes_back_frozen_or_not(tmp_path, name):
    quantizer = ModelQuantizer(name)
    model = quantizer.quantize_model(mixed(), images())
    frozen = quantizer.freeze(model)
    export(model, tmp_path / "out")
    export(frozen, tmp_path / "frozen")
    made, again = load(tmp_path / "out", mixed()), load(tmp_path / "frozen", mixed(), freeze=True)
    with torch.no_grad():
        assert torch.equal(made(images()[0]), model(images()[0]))
        assert torch.equal(again(images()[0]), frozen(images()[0]))
    assert made.fewbit_config == quantizer.config
    file = "fewbit.safetensors"
    assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "frozen" / file).read_bytes()
    for layer, values in own_format.weights(tmp_path / "frozen").items():
        path, _, weight = layer.rpartition(".")
        assert np.array_equal(values, get_weight(model.get_submodule(path), weight).dequantize().numpy())


def peak(setup, work):
    """The megabytes by which a process grew, at most, while it did some work."""
    script = f"""
import torch
from torch import nn
from fewbit.engine.delivering import export, load
def build():
    return nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8)))
def most():  # not getrusage: its peak begins with that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
{setup}
before = most()
{work}
print((most() - before) >> 10)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(out.stdout)


@pytest.mark.slow
def test_memory_does_not_double(tmp_path):
    """Exporting 512 MB of weights takes far less than a second copy of them; loading and using them takes one."""
    folder = repr(str(tmp_path / "out"))
    # The pages of the mapped files count too until they are let go.
    assert peak("model = build()", f"export(model, {folder}, shard_bytes=100 << 20)") < 256
    use = f"total = sum(float(weight.sum()) for weight in load({folder}, empty).parameters())"
    assert 400 < peak("with torch.device('meta'): empty = build()", use) < 512 + 256
