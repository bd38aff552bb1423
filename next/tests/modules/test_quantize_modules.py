# SPDX-License-Identifier: Apache-2.0
"""`ModelQuantizer` end to end on small nets: data, ties, corrections, what is refused and what is said."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit import (
    Config,
    DataError,
    Dataset,
    FewbitWarning,
    ModelError,
    ModelQuantizer,
    QuantizationConfig,
    QuantizationSpec,
    UsageError,
)
from fewbit.api._modules import ModuleRequest, run_module
from fewbit.backends._base import ModuleLayer
from fewbit.backends.torch.module_model import ModuleModel, copy_module
from fewbit.config.presets import preset_names
from fewbit.progress import Run
from fewbit.quantization.module_weights import quantize_weight
from fewbit.quantization.modules import _columns
from fewbit.record.schema import Record
from fewbit.registry import get

few_samples = pytest.mark.filterwarnings("ignore::fewbit.FewbitWarning")
INT8 = QuantizationSpec("int8", qscheme="per_channel", ch_axis=0)
GGUF = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "q4_0", "q4_1", "q3_k_m", "q2_k")


def quantize(model, data=None, config="w8a8", **options):
    """Through the same code as the verbs; returns the module and its record."""
    record = Record("quantize")
    return run_module(model, data, ModuleRequest(config, **options), Run(), record), record


@pytest.mark.parametrize("preset", [name for name in preset_names() if name not in GGUF])
def test_every_preset_quantizes_convolutions_and_linear_layers(conv_net, preset):
    data, x = torch.randn(60, 3, 16, 16), torch.randn(4, 3, 16, 16)
    quantized, record = quantize(conv_net, DataLoader(data, 10), preset)
    assert all(row["quantized"] for row in record.layers) and len(record.layers) == 5
    with torch.no_grad():
        error = (quantized(x) - conv_net(x)).norm() / conv_net(x).norm()
    assert 0 < error < (0.5 if preset in ("int2", "w2a16") else 0.25 if preset in ("int3", "w3a16") else 0.12)
    assert record.size["result"] < 0.6 * record.size["original"]
    assert record.quality["sqnr_db"] > 6 and record.quality["samples"] == 20
    assert record.verdict in ("ok", "degraded") and quantized.fewbit_record is record
    assert "x smaller" in record.summary


def test_a_copy_comes_back_and_nothing_of_the_model_changes(conv_net):
    conv_net.train()
    before = copy.deepcopy(conv_net.state_dict())
    quantized, _ = quantize(conv_net, DataLoader(torch.randn(40, 3, 16, 16), 8))
    assert all(torch.equal(value, before[name]) for name, value in conv_net.state_dict().items())
    assert all(part.training for part in conv_net.modules())
    assert all(part.training for part in quantized.modules() if type(part).__name__ != "ActivationQuantizer")
    assert type(conv_net[0]) is nn.Conv2d and isinstance(quantized[0], nn.Conv2d)
    with torch.no_grad():
        quantized.eval()[1].weight.add_(1)  # vectors are its own
    assert torch.equal(conv_net[1].weight, before["1.weight"])


def test_a_copy_shares_matrices_and_nothing_else(conv_net):
    copied = copy_module(conv_net)
    for (name, mine), theirs in zip(copied.named_parameters(), conv_net.parameters()):
        assert (mine.data_ptr() == theirs.data_ptr()) == (theirs.ndim > 1), name
        assert mine is not theirs and mine.requires_grad == theirs.requires_grad
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(copied.buffers(), conv_net.buffers()))


def test_the_output_layer_of_a_language_model_gets_the_backup_precision():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body, self.head = nn.Embedding(96, 64), nn.Linear(64, 64), nn.Linear(64, 96)

        def forward(self, ids):
            return self.head(self.body(self.table(ids)))

    types = {}
    for preset in ("w4a16", "w8a16"):
        _, record = quantize(Decoder(), None, preset)
        types[preset] = [row["weight"].split()[0] for row in record.layers]
    assert types == {"w4a16": ["uint8", "int4", "uint8"], "w8a16": ["int8", "int8", "int8"]}
    config = Config(QuantizationConfig(weight=QuantizationSpec("int4", group_size=32)))
    plan = ModelQuantizer(config).plan(Decoder())  # a configuration means what it says
    assert repr(plan) == "Plan(3 layers: 2 int4, 1 float)"


def test_the_same_call_gives_the_same_bytes(conv_net):
    data = DataLoader(torch.randn(48, 3, 16, 16), 8)
    first, second = (quantize(conv_net, data)[0].state_dict() for _ in range(2))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@few_samples
@pytest.mark.parametrize("count", [1, 3, 13, 33])
def test_single_samples_and_short_last_batches(linear_net, count):
    quantized, record = quantize(linear_net, DataLoader(torch.randn(count, 128), 4))
    items = -(-count // 4)
    held_out = min(8, items // 3) if count >= 8 else 0
    assert record.data["items"] == items - held_out
    assert (record.verdict == "not-measured") == (held_out == 0)
    assert quantized(torch.randn(1, 128)).shape == (1, 16)
    assert quantized(torch.randn(128)).shape == (16,)


def test_few_calibration_samples_are_a_loud_warning(linear_net):
    with pytest.warns(FewbitWarning, match="20 samples are few to calibrate with"):
        _, record = quantize(linear_net, torch.randn(30, 128))
    assert record.warnings[0]["code"] == "calibration-few-samples"
    quantize(linear_net, torch.randn(30, 128), "w8a16")  # nothing is calibrated


@few_samples
def test_subset_size_counts_items_of_the_source_and_samples_count_samples(linear_net):
    loader = DataLoader(torch.randn(1280, 128), 128)
    _, record = quantize(linear_net, loader, subset_size=300 // 128)
    assert (record.data["items"], record.data["samples"]) == (2, 256)
    _, record = quantize(linear_net, loader, samples=300)
    assert (record.data["items"], record.data["samples"]) == (3, 384)
    _, record = quantize(linear_net, torch.randn(400, 128), samples=50)
    assert record.data["samples"] == 50 and record.data["held_out"] == 32


def test_labels_are_left_out_and_a_dataset_can_be_transformed(linear_net):
    x, y = torch.randn(60, 128), torch.randint(0, 16, (60,))
    _, record = quantize(linear_net, DataLoader(TensorDataset(x, y), 10))
    assert record.data["samples"] == 40
    pairs = Dataset(DataLoader(TensorDataset(x, y), 10), lambda item: item[0])
    _, second = quantize(linear_net, pairs)
    assert second.quality == record.quality


def test_separate_data_measures(linear_net):
    record = Record("quantize")
    data, validation = torch.randn(60, 128), torch.randn(300, 128)
    run_module(linear_net, data, ModuleRequest("w8a8"), Run(), record, validation)
    assert record.quality["samples"] == 256


# Refusals.


def test_a_sample_that_the_model_cannot_run_is_a_data_error(conv_net):
    with pytest.raises(DataError, match=r"\[batch, channels, …\]") as caught:
        quantize(conv_net, torch.randn(40, 16))
    assert caught.value.code == "model-run"


def test_traced_modules_are_refused(linear_net):
    traced = torch.export.export(linear_net, (torch.randn(2, 128),)).module()
    for model in (traced, torch.fx.symbolic_trace(linear_net)):
        with pytest.raises(UsageError, match="GraphModule"):
            quantize(model, torch.randn(40, 128))


def test_a_run_that_quantizes_nothing_is_refused(linear_net):
    with pytest.raises(ModelError, match="nothing would be quantized"):
        quantize(nn.Sequential(nn.ReLU()), torch.randn(40, 8))
    with pytest.raises(ModelError, match="excluded"):
        quantize(linear_net, None, "w8a16", ignore=["0", "2"])
    once, _ = quantize(linear_net, None, "w8a16")
    with pytest.raises(ModelError, match="quantized already"):
        quantize(once, None, "w8a16")


def test_algorithms_that_need_data_say_so(linear_net):
    with pytest.raises(UsageError, match="gptq needs calibration data"):
        quantize(linear_net, None, "w4a16", algorithm="gptq")


def test_static_activations_need_data_before_anything_runs(linear_net):
    with pytest.raises(UsageError, match="data-required"):
        quantize(linear_net)


def test_unknown_layers_presets_and_configurations(linear_net):
    with pytest.raises(UsageError, match="layer-unknown"):
        quantize(linear_net, None, "w8a16", ignore=["fc"])
    with pytest.raises(UsageError, match="preset"):
        ModelQuantizer("w9a16").plan(linear_net)
    with pytest.raises(UsageError, match="config-type"):
        ModelQuantizer(3).plan(linear_net)
    with pytest.raises(UsageError, match="cannot run the preset"):
        ModelQuantizer("q4_k_m").plan(linear_net)


def test_values_that_are_not_a_number_are_located(linear_net):
    data = torch.randn(60, 128)
    data[10:40, 3] = float("nan")
    with pytest.raises(DataError, match="activations-not-finite") as caught:
        quantize(linear_net, data, bias_correction=False)
    assert any(str(number) in caught.value.where for number in range(10, 41))


# Layers and weights.


class Tied(nn.Module):
    def __init__(self, transposed=False):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(100, 64), nn.Linear(64, 64), nn.Linear(64, 100, bias=False)
        self.head.weight = self.table.weight
        if transposed:
            self.head = nn.Linear(100, 64, bias=False)
            self.head.weight = nn.Parameter(self.table.weight.detach().t())

    def forward(self, ids):
        return self.head(self.body(self.table(ids)))


def test_tied_weights_stay_tied():
    model, ids = Tied(), torch.randint(0, 100, (50, 6))
    for config in ("w8a16", "w8a8_dynamic", "w4a16", Config(QuantizationConfig(weight=INT8))):
        quantized, record = quantize(model, DataLoader(ids, 5), config)
        assert quantized.head.weight_packed is quantized.table.weight_packed
        assert torch.equal(quantized.head.weight, quantized.table.weight)
        assert record.size["result"] < 0.5 * record.size["original"]
        copied = copy.deepcopy(quantized)
        assert copied.head.weight_packed is copied.table.weight_packed
    excluded = Config(QuantizationConfig(weight=INT8), exclude=["table"])
    quantized, record = quantize(model, None, excluded)
    assert quantized.head.weight is quantized.table.weight
    assert "table, which stays in float" in next(row["reason"] for row in record.layers if row["name"] == "head")
    other = QuantizationConfig(weight=QuantizationSpec("int4", group_size=32))
    with pytest.raises(UsageError, match="tied-weights"):
        quantize(model, None, Config(QuantizationConfig(weight=INT8), layer_type_quant_config={"Embedding": other}))


def test_a_weight_that_is_the_transpose_of_another_stays_in_float():
    _, record = quantize(Tied(transposed=True), None, "w8a16")
    reasons = {row["name"]: row["reason"] for row in record.layers if not row["quantized"]}
    assert reasons.keys() == {"table", "head"} and "transposed" in reasons["head"]


def test_layers_that_cannot_be_quantized_are_named_with_a_remedy():
    model = nn.Sequential(
        nn.Linear(64, 64), nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)), nn.LazyLinear(8),
        nn.Linear(8, 4, dtype=torch.float32),
    )  # fmt: skip
    plan = ModelQuantizer("w8a16").plan(model)
    reasons = {entry.layer.name: entry.reason for entry in plan.layers if not entry.quantized}
    assert "remove_parametrizations" in reasons["1"] and "call the module once" in reasons["2"]
    assert repr(plan) == "Plan(4 layers: 2 int8, 2 float)"


def test_matrices_of_unknown_classes_are_named():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts, self.fc = nn.Parameter(torch.randn(4, 64, 64)), nn.Linear(64, 64)

        def forward(self, x):
            return self.fc(x) @ self.experts[0]

    _, record = quantize(nn.Sequential(Router()), None, "w8a16")
    rows = {row["name"]: row for row in record.layers}
    assert rows["0.fc"]["quantized"] and "Router is no known layer" in rows["0.experts"]["reason"]


def test_attention_and_recurrent_layers_keep_float_activations():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1)
            self.rnn = nn.GRU(32, 32, batch_first=True)

        def forward(self, x):
            return self.rnn(self.encoder(x))[0]

    model, x = Net().eval(), torch.randn(48, 5, 32)
    quantized, record = quantize(model, DataLoader(x, 8))
    rows = {row["name"]: row for row in record.layers}
    assert rows["encoder.layers.0.self_attn.in_proj_weight"]["weight"] == "int8 per_channel"
    assert "input" not in rows["rnn.weight_ih_l0"] and "weights only" in rows["rnn.weight_ih_l0"]["reason"]
    assert rows["encoder.layers.0.linear1"]["input"] == "int8 per_tensor"
    assert "input" not in rows["encoder.layers.0.self_attn.out_proj"]  # it is read, and never called
    with torch.no_grad():
        assert (quantized(x) - model(x)).norm() < 0.05 * model(x).norm()
    assert record.verdict == "ok"


def test_a_layer_that_no_sample_reaches_stays_in_float():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.used(x)

    with pytest.warns(FewbitWarning, match="unused stays in float: no calibration sample reaches its input"):
        quantized, record = quantize(Net(), torch.randn(60, 64))
    assert type(quantized.unused) is nn.Linear and not record.layers[1]["quantized"]


def test_small_weights_stay_in_float_unless_named():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1))
    plan = ModelQuantizer("w8a16").plan(model)
    assert [entry.reason for entry in plan.layers] == ["", "too small to quantize"]
    named = Config(QuantizationConfig(weight=INT8), layer_quant_config={"1": QuantizationConfig(weight=INT8)})
    assert all(entry.quantized for entry in ModelQuantizer(named).plan(model).layers)


def test_groups_follow_the_inputs_of_each_layer():
    model = nn.Sequential(nn.Linear(256, 192), nn.Linear(192, 96), nn.Linear(96, 70), nn.Linear(70, 50))
    sizes = [entry.row()["group_size"] for entry in ModelQuantizer("int4").plan(model).layers]
    assert sizes == [128, 64, 32, 32]
    quantized, _ = quantize(model, None, "int4")
    assert quantized[3].weight_scale.shape == (50, 3)  # the last group is shorter


WEIGHTS = {
    "linear": nn.Linear(40, 24),
    "conv2d": nn.Conv2d(8, 12, 3, groups=2),
    "conv1d": nn.Conv1d(8, 12, 5),
    "transposed": nn.ConvTranspose2d(8, 6, 3),
    "transposed_groups": nn.ConvTranspose1d(8, 6, 3, groups=2),
    "embedding": nn.Embedding(20, 40),
}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("scheme", ["per_channel", "per_group", "per_tensor"])
def test_scales_belong_to_output_channels_whatever_the_layout(kind, scheme):
    module = WEIGHTS[kind]
    layer = ModuleModel.read(nn.Sequential(module)).layers()[0]
    fields = {"per_channel": {"ch_axis": 0}, "per_group": {"ch_axis": 0, "group_size": 4}, "per_tensor": {}}[scheme]
    spec = QuantizationSpec("int8", qscheme=scheme, **fields).complete("weight")
    weight = module.weight.detach()
    tensor = quantize_weight(weight, layer, spec, get("algorithms", "rtn"))
    assert tensor.shape == tuple(weight.shape)
    # Output channels first, then input channels of a group, by another route.
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d):
        parts = [part.transpose(0, 1) for part in weight.chunk(module.groups)]
        back = lambda x: torch.cat([part.transpose(0, 1) for part in x.chunk(module.groups)])  # noqa: E731
        ours = torch.cat(parts)
    else:
        ours, back = weight, lambda x: x
    expected = torch.empty_like(ours)
    width = {"per_channel": ours.shape[1], "per_group": 4, "per_tensor": ours.shape[1]}[scheme]
    for row in range(len(ours)):
        for start in range(0, ours.shape[1], width):
            part = ours[row, start : start + width]
            largest = ours.abs().max() if scheme == "per_tensor" else part.abs().max()
            step = (largest.double() / 127.5).float()
            expected[row, start : start + width] = (part / step).round().clamp(-128, 127) * step
    assert torch.equal(tensor.dequantize(), back(expected))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 5, 3, padding=1, stride=2), nn.Conv1d(4, 5, 3, dilation=2, padding=1), nn.Conv3d(2, 3, 2),
        nn.Conv2d(3, 5, (1, 4), padding="same"), nn.Conv2d(3, 5, 3, padding=2, padding_mode="reflect"),
        nn.Linear(12, 5),
    ],
)  # fmt: skip
def test_the_columns_of_a_layer_give_its_output(module):
    x = (
        torch.randn(2, 12)
        if isinstance(module, nn.Linear)
        else torch.randn(2, module.in_channels, *[7] * (module.weight.ndim - 2))
    )
    layer: ModuleLayer = ModuleModel.read(nn.Sequential(module)).layers()[0]
    product = module.weight.flatten(1) @ _columns(x, layer) + module.bias[:, None]
    expected = module(x)
    expected = expected.T if isinstance(module, nn.Linear) else expected.transpose(0, 1).flatten(1)
    assert torch.allclose(product, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_gptq_gets_its_hessian_and_beats_rounding(kind):
    mix = torch.randn(16, 16) @ torch.diag(torch.linspace(3, 0.01, 16))
    if kind == "linear":
        model, data = nn.Sequential(nn.Linear(16, 64)), torch.randn(200, 16) @ mix.T
    else:
        model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1))
        data = torch.einsum("oc,nchw->nohw", mix, torch.randn(60, 16, 6, 6))
    errors = {}
    for algorithm in ("rtn", "gptq"):
        weight = QuantizationSpec("int3", qscheme="per_channel", ch_axis=0, algorithm=algorithm)
        quantized, record = quantize(model, DataLoader(data, 20), Config(QuantizationConfig(weight=weight)))
        assert record.layers[0]["algorithm"] == algorithm
        with torch.no_grad():
            errors[algorithm] = float((quantized(data) - model(data)).square().sum())
    assert errors["gptq"] < 0.7 * errors["rtn"]


def test_an_algorithm_without_its_statistics_is_replaced_and_says_so():
    weight = QuantizationSpec("int4", group_size=32, algorithm="gptq")
    config = Config(
        QuantizationConfig(weight=weight), layer_type_quant_config={"Embedding": QuantizationConfig(weight=weight)}
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.up = nn.Embedding(50, 64), nn.ConvTranspose1d(6, 8, 3)

        def forward(self, ids):
            return self.up(self.table(ids))

    _, record = quantize(Net(), DataLoader(torch.randint(0, 50, (40, 6)), 8), config)
    assert all(row["algorithm"] == "scale_search" and "instead of gptq" in row["reason"] for row in record.layers)


# Activations.


def test_padding_and_masks_are_no_part_of_a_range():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x, attention_mask):
            return self.fc(x)

    x, mask = torch.rand(60, 6, 8), torch.ones(60, 6, dtype=torch.long)
    x[:, 4:], mask[:, 4:] = 1000.0, 0
    x[0, 0, 0] = -3e38
    quantized, _ = quantize(Net(), {"x": x, "attention_mask": mask}, bias_correction=False)
    assert quantized.fc.input_quantizer.scale.item() <= 1 / 255 + 1e-6


@pytest.mark.parametrize("observer", ["min_max", "percentile", "histogram", "mse", "entropy", "moving_average"])
def test_any_observer_chooses_the_range(linear_net, observer):
    inputs = QuantizationSpec("int8", observer_cls=observer)
    config = Config(QuantizationConfig(weight=INT8, input_tensors=inputs))
    _, record = quantize(linear_net, DataLoader(torch.randn(120, 128), 10), config)
    assert record.quality["sqnr_db"] > 20


# Bias correction.


def test_a_convolution_in_front_of_a_batch_norm_gets_a_corrected_bias():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
    ).eval()
    data = torch.rand(80, 8, 6, 6) + 1  # a mean far from zero: rounded weights shift the outputs
    plain, _ = quantize(model, DataLoader(data, 8), "w3a8", bias_correction=False)
    quantized, record = quantize(model, DataLoader(data, 8), "w3a8")
    assert quantized[0].bias is not None and record.layers[0]["bias_correction"]
    with torch.no_grad():
        shift = lambda net: (net[0](data) - model[0](data)).mean((0, 2, 3)).abs().max()  # noqa: E731
        assert shift(quantized) < 0.2 * shift(plain)
        assert F.mse_loss(quantized(data), model(data)) < F.mse_loss(plain(data), model(data))


@few_samples
def test_a_correction_that_cannot_be_judged_is_not_applied(conv_net):
    _, record = quantize(conv_net, torch.randn(7, 3, 16, 16), "w8a8")
    assert not any("bias_correction" in row for row in record.layers)


def test_a_configuration_means_what_it_says(conv_net):
    config = Config(QuantizationConfig(weight=INT8, input_tensors=QuantizationSpec("int8")))
    quantized, _ = quantize(conv_net, DataLoader(torch.randn(60, 3, 16, 16), 8), config)
    assert quantized[0].bias is None and torch.equal(quantized[8].bias, conv_net[8].bias)


# Verdicts and surroundings.


def test_a_broken_classifier_is_called_broken():
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(64) * 5 + torch.randn(64, 64) * 0.02)
        model[1].weight.copy_(torch.randn(64, 64) * 0.01)
        model[1].weight[:, 0] = 40.0  # an outlier that takes all levels of its rows
    weight = QuantizationSpec("int2", qscheme="per_channel", ch_axis=0, algorithm="rtn")
    _, record = quantize(model, torch.randn(400, 64), Config(QuantizationConfig(weight=weight)))
    assert record.verdict == "broken" and record.quality["agreement"] < 0.5


def test_inside_inference_mode(linear_net):
    with torch.inference_mode():
        quantized, _ = quantize(linear_net, torch.randn(60, 128))
    x = torch.randn(2, 128, requires_grad=True)
    quantized(x).sum().backward()
    assert x.grad is not None


def test_wrapped_modules_are_looked_through(linear_net):
    quantized, _ = quantize(nn.DataParallel(linear_net), torch.randn(60, 128))
    assert isinstance(quantized, nn.Sequential)


def test_a_module_with_a_replaced_forward_is_quantized_in_its_weights(linear_net):
    linear_net[0].forward = lambda x: F.linear(x, linear_net[0].weight, linear_net[0].bias)
    _, record = quantize(linear_net, torch.randn(60, 128))
    assert "input" not in record.layers[0] and "weights only" in record.layers[0]["reason"]


def test_freeze_gives_a_copy_and_names_the_kernels(linear_net):
    quantizer = ModelQuantizer("w8a8")
    quantized = quantizer.quantize_model(linear_net, torch.randn(60, 128))
    frozen = quantizer.freeze(quantized)
    assert quantized[0].kernel is None and frozen[0].kernel.name == "int8"
    assert quantizer.record.kernels["summary"] == "2 layers int8"
    x = torch.randn(3, 128)
    with torch.no_grad():
        assert torch.allclose(frozen(x), quantized(x), atol=1e-5)
    assert torch.allclose(quantizer.freeze(frozen)(x), frozen(x))


# The verbs.


def test_the_verb_gives_a_frozen_copy(linear_net):
    data = torch.randn(100, 128)
    quantized, record = fewbit.quantize(linear_net, data, return_record=True)
    assert (record.preset["resolved"], record.verdict, record.data["samples"]) == ("w8a8", "ok", 68)
    assert quantized[0].kernel.name == "int8" and record.kernels["summary"] == "2 layers int8"
    assert quantized.fewbit_record is record and type(linear_net[0]) is nn.Linear
    config = Config(QuantizationConfig(weight=INT8))
    assert fewbit.quantize(linear_net, data, config=config).fewbit_record.preset["given"] == "config"
    with pytest.raises(UsageError, match="GraphModule"):
        fewbit.quantize(torch.fx.symbolic_trace(linear_net), data)


def test_compress_weights(linear_net):
    data = DataLoader(torch.randn(320, 128), 16)
    for mode in fewbit.CompressWeightsMode:
        quantized, record = fewbit.compress_weights(linear_net, mode, dataset=data, subset_size=4, return_record=True)
        assert record.data["items"] == 4 and record.quality["sqnr_db"] > 3, mode
        assert quantized[0].input_quantizer is None
    assert fewbit.compress_weights(linear_net)[0].stored["weight"].grid.dtype.name == "uint8"
    assert fewbit.compress_weights(linear_net, ignored_scope=fewbit.IgnoredScope(names=["0"]))[0] is not None
    table = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64))
    both = fewbit.compress_weights(table, "int4_sym", all_layers=True)
    assert both[0].stored["weight"].grid.dtype.name == "int4" == both[1].stored["weight"].grid.dtype.name
    backup = fewbit.compress_weights(table, "int4_sym", backup_mode="int8_asym")
    assert backup[0].stored["weight"].grid.dtype.name == "uint8"
    assert (
        type(fewbit.compress_weights(nn.Sequential(*table, nn.Linear(64, 8)), "int4_sym", backup_mode="none")[0])
        is nn.Embedding
    )
    with pytest.raises(UsageError, match="GraphModule"):
        fewbit.compress_weights(torch.fx.symbolic_trace(linear_net))
