# SPDX-License-Identifier: Apache-2.0
"""Data files beside a model: all that is missing is said before anything is read."""

import onnx
import pytest
from onnx.helper import make_graph, make_node, make_tensor_value_info

from fewbit.backends.graph.opening import open_graph
from fewbit.errors import DataError
from onnx_graphs import model, random


def save(proto, folder, **more):
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} | more
    onnx.save(proto, folder / "m.onnx", **options)
    return folder / "m.onnx"


def two_layers():
    nodes = [make_node("MatMul", ["x", "a"], ["m"], name="one"), make_node("MatMul", ["m", "b"], ["y"], name="two")]
    return model(nodes, {"x": [2, 4]}, {"y": None}, {"a": random(4, 6), "b": random(6, 3)})


def cut(folder, size):
    (folder / "w.bin").write_bytes((folder / "w.bin").read_bytes()[:size])


def test_a_data_file_that_is_cut_short(tmp_path):
    path = save(two_layers(), tmp_path)
    whole = (tmp_path / "w.bin").stat().st_size
    assert len(open_graph(path).graph) == 2
    cut(tmp_path, whole - 1)
    with pytest.raises(DataError) as caught:
        open_graph(path)
    error = caught.value
    assert error.code == "model-unreadable" and error.where == str(path)
    assert f"w.bin is cut short: b needs {whole} bytes of it, and there are {whole - 1}" in error.what


def test_one_line_for_each_file(tmp_path):
    path = save(two_layers(), tmp_path, all_tensors_to_one_file=False, location=None)
    for name in ("a", "b"):
        (tmp_path / name).unlink()
    with pytest.raises(DataError) as caught:
        open_graph(path)
    assert caught.value.what.count("is not there") == 2
    path = save(two_layers(), tmp_path)
    cut(tmp_path, 0)
    with pytest.raises(DataError) as caught:
        open_graph(path)
    assert caught.value.what.count("w.bin") == 1


def test_constants_of_nodes(tmp_path):
    value = onnx.numpy_helper.from_array(random(4, 6), "w")
    nodes = [make_node("Constant", [], ["w"], name="constant", value=value), make_node("MatMul", ["x", "w"], ["y"])]
    path = save(model(nodes, {"x": [2, 4]}, {"y": None}, {}), tmp_path, convert_attribute=True)
    cut(tmp_path, 10)
    with pytest.raises(DataError, match=r"needs 96 bytes of it, and there are 10"):
        open_graph(path)


def test_weights_of_branches(tmp_path):
    def branch(name):
        weight = onnx.numpy_helper.from_array(random(4, 4), f"{name}.w")
        out = make_tensor_value_info(f"{name}.out", 1, None)
        return make_graph(
            [make_node("MatMul", ["x", f"{name}.w"], [f"{name}.out"], name=name)], name, [], [out], [weight]
        )

    nodes = [
        make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        make_node("Cast", ["most"], ["is"], to=onnx.TensorProto.BOOL),
        make_node("If", ["is"], ["y"], then_branch=branch("then"), else_branch=branch("else")),
    ]
    path = save(model(nodes, {"x": [2, 4]}, {"y": None}, {}), tmp_path)
    cut(tmp_path, 64)
    with pytest.raises(DataError, match=r"(then|else)\.w needs"):
        open_graph(path)
