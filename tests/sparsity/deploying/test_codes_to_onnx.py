# SPDX-License-Identifier: Apache-2.0
"""A module with codes as ONNX: the same codes, integer kernels, the same answers; what cannot be is said."""

from copy import deepcopy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import fewbit
from coded_networks import coded, dense, rows, samples
from fewbit.modules.freezing import unfreeze
from fewbit.modules.quantized import clear_weight, is_quantized
from fewbit.modules.recurrent import QuantizedRecurrent
from fewbit.sparsity.deploying import codes_in_graph, codes_to_onnx, to_onnx
from fewbit.sparsity.deploying.codes_to_onnx import write_codes_onnx
from fewbit.sparsity.deploying.samples import samples_of
from processor import exact_sums, saturates

LAYERS = {"residual": 6, "inverted": 8, "mlp": 4}


def written(model, path, kind):
    return write_codes_onnx(model, path, samples(model, kind), rows(kind))


def answers(path, values):
    return onnxruntime.InferenceSession(path).run(None, {"input": values})[0]


def optimized(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    onnxruntime.InferenceSession(path, options)
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


@exact_sums
@pytest.mark.parametrize("kind", LAYERS)
def test_all_layers_run_in_integers_and_answer_as_the_module_does(tmp_path, kind):
    model, path = coded(kind), tmp_path / "model.onnx"
    x = torch.from_numpy(np.concatenate([row["input"] for row in rows(kind, 40, seed=1)]))
    before = model(x).detach()
    attempt = written(model, path, kind)
    assert "any size" in attempt.how and attempt.check["relative"] < 0.05
    assert attempt.facts["layers"] == LAYERS[kind] and not attempt.facts["floats"]
    assert sum(attempt.facts["integer"].values()) == LAYERS[kind]
    kinds = optimized(path)
    assert kinds.count("QLinearConv") + kinds.count("QGemm") == LAYERS[kind]
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"} & set(kinds)
    found = answers(path, x.numpy())
    assert (found.argmax(1) == before.argmax(1).numpy()).mean() >= 0.97
    assert np.abs(found - before.numpy()).max() <= 0.05 * before.abs().max()
    assert torch.equal(model(x), before) and all(
        each.kernel is not None for each in model.modules() if is_quantized(each)
    )
    assert [each.name for each in tmp_path.iterdir() if each.name != "optimized.onnx"] == ["model.onnx"]


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_deployed_answers_as_the_module_does_on_every_processor(tmp_path, kind):
    """Layers whose integer sums saturate here (no VNNI) compute in float from the same codes, and are named."""
    model, path = coded(kind), tmp_path / "model.onnx"
    x = torch.from_numpy(np.concatenate([row["input"] for row in rows(kind, 40, seed=1)]))
    attempt = written(model, path, kind)
    wanted, found = model(x).detach().numpy(), answers(path, x.numpy())
    assert (found.argmax(1) == wanted.argmax(1)).mean() >= 0.97
    assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()
    assert sum(attempt.facts["integer"].values()) + len(attempt.facts["floats"]) == LAYERS[kind]
    assert saturates() or not attempt.facts["floats"]


@exact_sums
@pytest.mark.parametrize("kind", ["residual", "inverted"])
def test_codes_are_those_that_were_trained_and_zeros_stay(tmp_path, kind):
    """Batch norms are in the scales: of each channel the codes are the module's, or all of them turned round."""
    model, path = coded(kind), tmp_path / "model.onnx"
    written(model, path, kind)
    kept = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    matrices = [each for each in kept.values() if each.dtype == np.int8 and each.ndim > 1]
    trained = [layer.codes_of("weight").codes().numpy() for layer in model.modules() if is_quantized(layer)]
    assert len(matrices) == len(trained) == LAYERS[kind]
    for codes in trained:
        rows_of = [np.stack([codes, -codes])[:, row] for row in range(len(codes))]
        assert any(
            each.shape == codes.shape
            and all(any(np.array_equal(each[row], one) for one in both) for row, both in enumerate(rows_of))
            for each in matrices
        )
        assert (codes == 0).mean() > 0.45
    assert not any(each.dtype == np.float32 and each.ndim > 1 for each in kept.values())


@exact_sums
def test_where_rounding_more_costs_too_much_floats_take_over(tmp_path, monkeypatch):
    """Exactly what was rounded in training is rounded, and the answers are the module's."""
    model, path = coded("residual"), tmp_path / "model.onnx"
    close = written(model, path, "residual")
    assert close.facts["untrained"] and "onnx-rounds-more" in dict(close.notes)
    monkeypatch.setattr(codes_to_onnx, "CODES_TOLERANCE", 1e-4)
    path.unlink()
    attempt = written(model, path, "residual")
    assert attempt.check["relative"] < 1e-4 < close.check["relative"]
    assert attempt.facts["untrained"] == [] and set(attempt.facts["floats"]) == set(close.facts["untrained"])
    assert attempt.facts["integer"] == {"QGemm": 1, "QLinearConv": 2} and "onnx-in-floats" in dict(attempt.notes)
    kept = onnx.load(path).graph.initializer
    assert sum(each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1 for each in kept) == 6


def test_where_integers_themselves_cost_too_much_all_are_floats(tmp_path, monkeypatch):
    """Biases of integer kernels are rounded too. As floats between the same codes, each answer is the module's."""
    model, path = coded("residual"), tmp_path / "model.onnx"
    monkeypatch.setattr(codes_to_onnx, "CODES_TOLERANCE", 1e-6)
    attempt = written(model, path, "residual")
    assert attempt.check["relative"] < 1e-6 and attempt.facts["integer"] == {} and len(attempt.facts["floats"]) == 6
    assert not any("Integer" in kind or kind.startswith(("QLinear", "QGemm")) for kind in optimized(path))


def test_other_answers_are_not_kept(tmp_path, monkeypatch):
    real = codes_in_graph.put_codes

    def wrong(model, trained, feeds, *, how):
        for each in trained.values():
            each.quantizer.scale = each.quantizer.scale * 0.3
        return real(model, trained, feeds, how=how)

    monkeypatch.setattr(codes_in_graph, "put_codes", wrong)
    attempt = written(fewbit.quantize(dense("mlp"), rows("mlp"), preset="w8a8"), tmp_path / "model.onnx", "mlp")
    assert attempt.check is None and "differ by" in attempt.how
    assert not list(tmp_path.iterdir())


@exact_sums
def test_what_has_no_integer_kernel_is_multiplied_as_floats_and_named(tmp_path):
    model, path = coded("upward"), tmp_path / "model.onnx"
    attempt = written(model, path, "upward")
    assert list(attempt.facts["floats"]) == ["2"] and attempt.facts["integer"] == {"QLinearConv": 2}
    assert (
        "2: multiplied as floats; onnxruntime has no integer kernel for ConvTranspose" in dict(attempt.notes).values()
    )
    assert attempt.check["relative"] < 0.02


@pytest.mark.parametrize("preset", ["w8a8_dynamic", "w8a16", "w4a16"])
def test_weights_alone_are_codes_too(tmp_path, preset):
    """Without fixed scales of activations; four bits in groups as well."""
    model, path = coded("residual", preset), tmp_path / "model.onnx"
    attempt = written(model, path, "residual")
    assert attempt.check["relative"] < 0.02 and attempt.facts["integer"] == {}
    assert ("onnx-rounds-less" in dict(attempt.notes)) == (preset == "w8a8_dynamic")
    kept = [each for each in onnx.load(path).graph.initializer if len(each.dims) > 2]
    small = {onnx.TensorProto.INT4, onnx.TensorProto.UINT8} if preset == "w4a16" else {onnx.TensorProto.INT8}
    assert kept and {each.data_type for each in kept if len(each.dims) == 4} <= small | {onnx.TensorProto.FLOAT}
    assert path.stat().st_size < 0.5 * sum(4 * each.numel() for each in dense("residual").parameters()) + 10_000


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, input):
        return self.head(self.lstm(input)[0][:, -1])


def test_a_layer_that_a_graph_cannot_hold_is_named(tmp_path):
    data = [{"input": np.random.default_rng(n).normal(size=(1, 5, 8)).astype(np.float32)} for n in range(4)]
    model = fewbit.quantize(_Recurrent().eval(), data, preset="w8a16")
    assert isinstance(model.lstm, QuantizedRecurrent)
    items = [((), {"input": torch.from_numpy(row["input"])}) for row in data]
    attempt = write_codes_onnx(model, tmp_path / "model.onnx", samples_of(model, items), data)
    assert attempt.check is None and attempt.how.startswith("lstm: the products of a LSTM are inside of it")
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_called_twice_and_values_that_are_read_on_two_grids(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, input):
            both = torch.relu(self.a(torch.relu(self.a(input))))
            return self.b(both) + self.c(both)

    torch.manual_seed(0)
    data = rows("residual")
    model = fewbit.quantize(Twice().eval(), data, preset="w8a8")
    model.b.input_quantizer.scale.mul_(1.1)  # as training makes them differ
    attempt = written(model, tmp_path / "model.onnx", "residual")
    assert attempt.check["relative"] < 0.02 and attempt.facts["integer"] == {"QLinearConv": 4}
    scales = {
        round(float(numpy_helper.to_array(each)), 7)
        for each in onnx.load(tmp_path / "model.onnx").graph.initializer
        if not each.dims and each.data_type == 1
    }
    assert {round(float(layer.input_quantizer.scale), 7) for layer in (model.a, model.b, model.c)} <= scales


@exact_sums
def test_a_transformer_multiplies_integers_in_every_layer(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=64, max_position_embeddings=32, num_labels=3)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    rng = np.random.default_rng(0)
    data = [{"input_ids": rng.integers(1, 50, (1, 12)), "attention_mask": np.ones((1, 12), np.int64)} for _ in range(8)]
    small = fewbit.quantize(model, data, preset="w8a8")
    items = [((), {name: torch.from_numpy(value) for name, value in row.items()}) for row in data[:3]]
    attempt = write_codes_onnx(small, tmp_path / "model.onnx", samples_of(small, items), data)
    assert sum(attempt.facts["integer"].values()) == attempt.facts["layers"] == 8 and not attempt.facts["floats"]
    assert attempt.check["relative"] < 0.01


@exact_sums
def test_a_layer_without_codes_reads_what_is_rounded_as_in_training(tmp_path):
    """Only its weight is in floats again; it is named, and not counted among those with codes."""
    model, path = deepcopy(coded("mlp")), tmp_path / "model.onnx"
    unfreeze(model)
    clear_weight(model[2], "weight", nn.Parameter(model[2].float_parameter("weight")))
    model[2].input_quantizer.scale.mul_(8.0)  # coarse: without it the answers would be far off
    attempt = written(model, path, "mlp")
    assert attempt.facts["layers"] == 3 and attempt.facts["integer"] == {"QGemm": 3}
    assert attempt.facts["floats"] == {"2": "its weight has no codes"} and attempt.check["relative"] < 0.01
    assert dict(attempt.notes)["onnx-in-floats"] == "2: multiplied as floats; its weight has no codes"
    scales = [numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer]
    assert any(each.size == 1 and each == model[2].input_quantizer.scale.numpy() for each in scales)


def test_what_fails_in_integers_is_tried_with_less(tmp_path, monkeypatch):
    """The reasons are kept: among the notes, or all of them if nothing works."""
    real, failing = codes_in_graph.put_codes, {"integers"}

    def put(model, trained, feeds, *, how):
        if how in failing:
            raise RuntimeError(f"no {how} here")
        return real(model, trained, feeds, how=how)

    monkeypatch.setattr(codes_in_graph, "put_codes", put)
    attempt = written(coded("mlp"), tmp_path / "model.onnx", "mlp")
    assert attempt.check is not None and "any size" in attempt.how
    assert ("onnx-less-integer", "integers: RuntimeError: no integers here") in attempt.notes
    (tmp_path / "model.onnx").unlink()
    failing |= {"trained", "floats"}
    attempt = written(coded("mlp"), tmp_path / "model.onnx", "mlp")
    assert attempt.check is None and not list(tmp_path.iterdir())
    assert all(f"{far}: RuntimeError: no {far} here" in attempt.how for far in failing)


def test_codes_count_as_the_floats_they_are_written_by(monkeypatch):
    model = coded("mlp")
    size = sum(each.nbytes for each in dense("mlp").parameters())
    monkeypatch.setattr(to_onnx, "_MOST", size)
    assert to_onnx.unfit(model, "arrays", samples(model, "mlp")) is None
    monkeypatch.setattr(to_onnx, "_MOST", size - 1)
    reason = to_onnx.unfit(model, "arrays", samples(model, "mlp"))
    assert reason is not None and "of weights" in reason
