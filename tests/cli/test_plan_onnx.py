# SPDX-License-Identifier: Apache-2.0
import json

import onnx
import pytest
from onnx.helper import make_node as node

from fewbit import cli
from onnx_graphs import model, random


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    nodes = [
        node("Conv", ["x", "c"], ["a"], name="conv"),
        node("ConvTranspose", ["a", "t"], ["y"], name="up", strides=[2, 2]),
    ]
    constants = {"c": random(8, 4, 3, 3), "t": random(8, 4, 2, 2)}
    onnx.save(model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, constants), "m.onnx")

    def run(*arguments):
        code = cli.run(["plan", "m.onnx", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_what_is_known_without_data(run):
    code, out, _ = run()
    assert code == 0 and "float: onnxruntime has no integer kernel for ConvTranspose" in out
    assert "input uint8 asym" in out and "an upper bound" in out
    code, out, _ = run("--target", "openvino")
    assert code == 0 and "no integer kernel" not in out and "upper bound, for openvino" in out
    assert json.loads(run("--json")[1])["upper_bound"] is True


def test_scales_found_in_each_call(run):
    code, out, _ = run("--preset", "w8a8_dynamic")
    assert code == 0 and "note: up.input: it stays in float" in out and "upper bound" not in out


def test_a_target_that_there_is_not(run):
    code, out, err = run("--target", "opnvino")
    assert code == 2 and "did you mean 'openvino'" in err and not out
