# SPDX-License-Identifier: Apache-2.0
"""What training-aware sparsification deploys: the codes it learned, in a graph that computes in integers."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import fewbit
from fewbit.modules.quantized import is_quantized
from processor import exact_sums
from sparse_runs import OPTIONS, network, pictures

pytest.importorskip("accelerate")


@exact_sums
def test_a_model_that_learned_zeros_and_codes_is_deployed_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.sparsity.latency._LEAST", 3)
    monkeypatch.setattr("fewbit.sparsity.latency._MOST", 3)
    output = fewbit.sparsify(
        network(), pictures(128), mode="training-aware", use_case="image_classification", output=tmp_path / "out",
        validation=pictures(96, 1000), optim_level=0.5, epochs=4, lr=5e-3, batch_size=16, tensorboard=False, **OPTIONS,
    )  # fmt: skip
    folder = output / "deployment"
    trained = fewbit.load(folder, network())
    x = np.stack([row["x"] for row in pictures(96, 1000)])
    with torch.no_grad():
        wanted = trained(torch.from_numpy(x)).numpy()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    assert (found.argmax(1) == wanted.argmax(1)).mean() >= 0.95
    assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()

    facts = json.loads((output / "record.json").read_text())["facts"]["deployment"]
    assert facts["onnx"]["integer"] == {"QGemm": 1, "QLinearConv": 5} and facts["onnx"]["floats"] == {}
    kept = [numpy_helper.to_array(each) for each in onnx.load(folder / "model.onnx").graph.initializer]
    codes = {each.shape: each for each in kept if each.dtype == np.int8 and each.ndim > 1}
    scales = [float(each) for each in kept if each.dtype == np.float32 and not each.ndim]
    for layer in filter(is_quantized, trained.modules()):
        own = layer.codes_of("weight").codes().numpy()
        assert np.array_equal(np.abs(codes[own.shape].astype(int)), np.abs(own.astype(int)))
        assert pytest.approx(float(layer.input_quantizer.scale)) in scales
    assert (codes[32, 32, 3, 3] == 0).mean() > 0.69
    assert facts["files"]["model.compact.safetensors"] < 0.8 * facts["files"]["model.onnx"]
