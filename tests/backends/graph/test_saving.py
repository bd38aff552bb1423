# SPDX-License-Identifier: Apache-2.0
"""Files: whole or not at all, of any size, and never in the place of something else."""

import os

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.saving import save, to_proto, weight_bytes
from fewbit.errors import UsageError
from onnx_graphs import model, random, run

X = random(2, 30, seed=5)


def small(seed=0):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], "second"),
    ]
    constants = {"w": random(30, 40, seed=seed), "v": random(40, 5, seed=seed + 1)}
    return open_graph(model(nodes, {"x": [2, 30]}, {"y": [2, 5]}, constants))


def answer(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


def test_one_file(tmp_path):
    opened = small()
    path = save(opened, tmp_path / "a.onnx")
    assert os.listdir(tmp_path) == ["a.onnx"]
    np.testing.assert_allclose(answer(path), run(to_proto(opened), x=X)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [5599, 5600])
def test_weights_above_the_limit_lie_beside(limit, tmp_path):
    opened = small()
    assert weight_bytes(opened) == 4 * (30 * 40 + 40 * 5) == 5600
    path = save(opened, tmp_path / "a.onnx", limit=limit)
    assert sorted(os.listdir(tmp_path)) == (["a.onnx"] if limit == 5600 else ["a.onnx", "a.onnx.data"])
    onnx.checker.check_model(path)
    np.testing.assert_allclose(answer(path), run(to_proto(opened), x=X)[0], rtol=1e-4, atol=1e-5)
    for value in opened.graph.initializers.values():  # the model itself was not changed
        assert not isinstance(value.const_value, ir.ExternalTensor)


def test_weights_that_lie_beside_are_taken_in(tmp_path):
    """A small model of a large one: what it still has of the old file must not point there."""
    (tmp_path / "there").mkdir()
    big = save(small(), tmp_path / "there" / "a.onnx", limit=100)
    opened = open_graph(big)
    assert all(not tensor.external_data for tensor in to_proto(opened).graph.initializer)
    path = save(opened, tmp_path / "b.onnx")
    before = answer(big)
    os.unlink(tmp_path / "there" / "a.onnx.data")
    np.testing.assert_array_equal(answer(path), before)


def test_a_model_may_replace_the_files_it_was_read_from(tmp_path):
    path = save(small(), tmp_path / "a.onnx", limit=100)
    before = answer(path)
    opened = open_graph(path)
    first = opened.graph.initializers["w"]
    first.const_value = ir.tensor(first.const_value.numpy() * 2, name="w")
    save(opened, path, limit=100, overwrite=True)
    np.testing.assert_allclose(answer(path), before * 2, rtol=1e-5)
    np.testing.assert_allclose(run(to_proto(opened), x=X)[0], before * 2, rtol=1e-4, atol=1e-4)


class Broken(ir.Tensor):
    """A tensor whose bytes cannot be had, as when a disk is full or a user has seen enough."""

    def tobytes(self):
        raise KeyboardInterrupt

    def tofile(self, file):
        file.write(b"half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("limit", [10**9, 100])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_save_leaves_everything_as_it_was(limit, overwrite, tmp_path):
    path = tmp_path / "a.onnx"
    if overwrite:
        save(small(), path, limit=limit)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    opened = small(seed=7)
    value = opened.graph.initializers["v"]
    value.const_value = Broken(value.const_value.numpy(), name="v")
    with pytest.raises(KeyboardInterrupt):
        save(opened, path, limit=limit, overwrite=overwrite)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("at", range(1, 6))
def test_interrupted_while_files_are_moved(at, tmp_path, monkeypatch):
    path = save(small(), tmp_path / "a.onnx", limit=100)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(source)
        if len(calls) == at:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        save(small(seed=7), path, limit=100, overwrite=True)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_nothing_is_replaced_unasked(tmp_path):
    path = save(small(), tmp_path / "a.onnx")
    content = path.read_bytes()
    with pytest.raises(UsageError, match="a file stands there"):
        save(small(seed=7), path)
    assert path.read_bytes() == content
    save(small(seed=7), path, overwrite=True)
    assert path.read_bytes() != content


def test_data_of_another_model_is_not_replaced_unasked(tmp_path):
    (tmp_path / "a.onnx.data").write_bytes(b"theirs")
    with pytest.raises(UsageError, match="a file stands there"):
        save(small(), tmp_path / "a.onnx", limit=100)
    assert os.listdir(tmp_path) == ["a.onnx.data"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_are_refused(overwrite, tmp_path):
    with pytest.raises(UsageError, match="a folder stands there"):
        save(small(), tmp_path, overwrite=overwrite)
    with pytest.raises(UsageError, match="no such folder"):
        save(small(), tmp_path / "none" / "a.onnx", overwrite=overwrite)
