# SPDX-License-Identifier: Apache-2.0
"""What tests share: a tiny ONNX model, samples for it, and the command line in this process."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.cli import main


@pytest.fixture
def tiny_onnx(tmp_path):
    """A two-layer ONNX classifier: input x [N, 64], output y [N, 10]."""
    onnx = pytest.importorskip("onnx")
    helper, to_tensor = onnx.helper, onnx.numpy_helper.from_array
    random = np.random.default_rng(0)
    constants = {"W": random.normal(size=(64, 256)), "V": random.normal(size=(256, 10))}
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "V"], ["y"], name="last"),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", onnx.TensorProto.FLOAT, ["N", 64])]
    outputs = [value("y", onnx.TensorProto.FLOAT, ["N", 10])]
    weights = [to_tensor(array.astype(np.float32), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, weights)
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


@pytest.fixture
def npz_folder(tmp_path):
    """A hundred samples for `tiny_onnx`."""
    folder = tmp_path / "samples"
    folder.mkdir()
    random = np.random.default_rng(1)
    for index in range(100):
        np.savez(folder / f"s{index}.npz", x=random.normal(size=64).astype(np.float32))
    return folder


@pytest.fixture
def fewbit(capsys, tmp_path, monkeypatch):
    """The command line, run in the temporary folder: returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def fewbit_command(fewbit):
    """The command line under another name, where the package itself is imported as `fewbit`."""
    return fewbit
