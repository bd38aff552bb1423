# SPDX-License-Identifier: Apache-2.0
"""Codes on top of zeros: every weight that was zero is zero in what the model computes with."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from fewbit.data.dataset import Dataset
from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.schemes.presets import PRESETS
from fewbit.sparsity.job import Job
from fewbit.sparsity.stages import quantize
from fewbit.sparsity.use_cases._base import UseCase
from sparse_examples import graph as classifying_graph
from tuning_runs import language_model


def job(model, calibration):
    return Job("one-shot", UseCase("custom"), None, model, None, calibration, samples=16)


def thinned(model, share=0.5):
    """A model half of whose weights are zero, chosen at random."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= torch.rand_like(parameter) > share
    return model.eval()


def weights(model):
    view = view_of(model)
    return {point.name: view.read(point) for point in view.points(lambda point: point.role is Role.weight)}


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return thinned(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4)))


def pictures(count=12):
    torch.manual_seed(1)
    return Dataset([torch.randn(1, 3, 6, 6) for _ in range(count)])


@pytest.mark.parametrize("preset", ["w8a8", "w8a8_dynamic", "w8a16", "w4a16", "w4a16_asym"])
def test_zeros_of_a_module_stay(preset):
    model = network()
    before = weights(model)
    told = job(model, pictures())
    after = weights(quantize.run(model, quantize.Settings(preset=preset), told))
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert bool((after[name][weight == 0] == 0).all()), name
        # A step in the place of each weight: codes are near the weights, and not zeros alone.
        assert (after[name] - weight).abs().max() < 0.2 * weight.abs().max() and bool((after[name] != 0).any())
    assert not [line for line in told.record.lines if line["what"] == "zeros-lost"]
    assert told.record.facts["quantize"]["preset"] == preset


@pytest.mark.parametrize("preset", ["w8a8", "w4a16"])
def test_zeros_of_a_language_model_stay_though_its_weights_make_up_for_one_another(preset):
    model = thinned(language_model())
    before = weights(model)
    torch.manual_seed(1)
    texts = Dataset([{"input_ids": torch.randint(0, 40, (1, 16))} for _ in range(8)])
    after = weights(quantize.run(model, quantize.Settings(preset=preset), job(model, texts)))
    for name, weight in before.items():
        if name in after:
            assert bool((after[name][weight == 0] == 0).all()), name


def test_the_model_that_was_given_stays_as_it_is():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantize.run(model, quantize.Settings(), job(model, pictures()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def graph():
    """Two matrices with a Relu between them, half of each zero."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=size).astype(np.float32) for size in ((16, 32), (32, 8)))
    first[rng.random(first.shape) < 0.5] = 0
    second[rng.random(second.shape) < 0.5] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), first, second


def test_zeros_of_a_graph_stay_codes_that_mean_zero():
    model, first, second = graph()
    rng = np.random.default_rng(1)
    samples = Dataset([{"x": rng.normal(size=16).astype(np.float32)} for _ in range(16)], batched=False)
    result = quantize.run(model, quantize.Settings(), job(model, samples))
    assert isinstance(result, onnx.ModelProto)
    codes = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    matrices = [array for array in codes.values() if array.dtype == np.int8 and array.ndim == 2]
    assert len(matrices) == 2
    for weight in (first, second):
        found = next(m for m in matrices if m.shape == weight.shape or m.T.shape == weight.shape)
        found = found if found.shape == weight.shape else found.T
        assert (found[weight == 0] == 0).all() and (found != 0).mean() > 0.4
    zero_points = [codes[n] for n in codes if n.endswith("zero_point") and codes[n].dtype == np.int8]
    assert all((point == 0).all() for point in zero_points)
    session = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.normal(size=(4, 16)).astype(np.float32)
    exact = np.maximum(x @ first, 0) @ second
    assert np.abs(session.run(None, {"x": x})[0] - exact).max() < 0.1 * np.abs(exact).max()


def test_what_cannot_be_is_refused_before_anything_is_done():
    with pytest.raises(UsageError, match="w8a88"):
        quantize.Settings(preset="w8a88")
    with pytest.raises(UsageError, match="samples=0"):
        quantize.Settings(samples=0)
    model = network()
    with pytest.raises(UsageError, match="calibration data"):
        quantize.refuse(quantize.Settings(), model, job(model, None))
    quantize.refuse(quantize.Settings(preset="w8a8_dynamic"), model, job(model, None))


def test_layers_that_are_ignored_stay_in_float():
    model = network()
    told = job(model, pictures())
    after = weights(quantize.run(model, quantize.Settings(ignore=("5",)), told))
    assert torch.equal(after["5.weight"], model[5].weight)
    assert not torch.equal(after["2.weight"], model[2].weight)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_that_a_graph_cannot_hold_is_refused_before_anything_is_computed(preset, tmp_path):
    model, drawn = onnx.load(classifying_graph(tmp_path / "model.onnx")), np.random.default_rng(0)
    data = Dataset([{"input": drawn.normal(size=(1, 3, 16, 16)).astype("f4")} for _ in range(2)])
    told, settings = job(model, data), quantize.Settings(preset=preset)
    try:
        quantize.refuse(settings, model, told)
    except UsageError:
        with pytest.raises(UsageError):  # with reason
            quantize.run(model, settings, told)
    else:
        quantize.run(model, settings, told)
