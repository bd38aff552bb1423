# SPDX-License-Identifier: Apache-2.0
"""ONNX files come back from their archives bit for bit; archives are as small as they say."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

import fewbit
import onnx_graphs
from fewbit.errors import DataError, UsageError
from fewbit.modules import compact_file
from fewbit.sparsity import compact


def _model(share=0.7, side=96):
    weights = {name: onnx_graphs.random(side, side, seed=seed) for seed, name in enumerate("ab")}
    for seed, weight in enumerate(weights.values()):
        weight[np.random.default_rng(seed).random(weight.shape) < share] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m"], name="first"),
        helper.make_node("MatMul", ["m", "b"], ["y"], name="second"),
    ]
    return onnx_graphs.model(nodes, {"x": ["n", side]}, {"y": ["n", side]}, weights)


@pytest.mark.parametrize("kind", ["plain", "codes", "equal weights", "tiny", "fields"])
def test_the_same_file_comes_back(tmp_path, kind):
    model = _model(side=4 if kind == "tiny" else 96)
    if kind == "codes":
        model = fewbit.compress_weights(model, mode="int8_sym")
    if kind == "equal weights":
        model.graph.initializer[1].raw_data = model.graph.initializer[0].raw_data
    if kind == "fields":  # as other writers keep floats
        for each in model.graph.initializer:
            values = np.frombuffer(each.raw_data, np.float32)
            each.ClearField("raw_data")
            each.float_data.extend(values)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sizes = compact.pack(path, tmp_path / "model.compact.safetensors")
    assert sizes == {
        "dense_bytes": path.stat().st_size,
        "stored_bytes": (tmp_path / "model.compact.safetensors").stat().st_size,
    }
    (again,) = compact.restore(tmp_path / "model.compact.safetensors", tmp_path / "out")
    assert again.read_bytes() == path.read_bytes()
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["model.onnx"]
    if kind == "plain":
        assert sizes["stored_bytes"] < (0.3 + 1 / 32) * sizes["dense_bytes"] + 2000


def test_weights_in_a_file_of_their_own_come_along(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(_model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    archive = tmp_path / "a.compact.safetensors"
    sizes = compact.pack(path, archive)
    assert sizes["stored_bytes"] < 0.36 * sizes["dense_bytes"]
    restored = compact.restore(archive, tmp_path / "out")
    assert [each.name for each in restored] == ["model.onnx", "weights.bin"]
    for each in restored:
        assert each.read_bytes() == (tmp_path / each.name).read_bytes()
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(DataError, match="missing"):
        compact.pack(path, tmp_path / "b.compact.safetensors")
    assert not (tmp_path / "b.compact.safetensors").exists()


def test_nothing_is_replaced_and_nothing_is_left_half_done(tmp_path):
    path, archive = tmp_path / "model.onnx", tmp_path / "a.compact.safetensors"
    onnx.save(_model(), path)
    compact.pack(path, archive)
    with pytest.raises(UsageError, match="a file stands there"):
        compact.pack(path, archive)
    with pytest.raises(UsageError, match=r"model\.onnx"):
        compact.restore(archive, tmp_path)
    archive.write_bytes(archive.read_bytes()[:-5])
    with pytest.raises(DataError):
        compact.restore(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    whole = compact.pack(path, tmp_path / "b.compact.safetensors")
    content = bytearray((tmp_path / "b.compact.safetensors").read_bytes())
    content[-whole["stored_bytes"] // 3] ^= 1
    (tmp_path / "b.compact.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"SHA-256|decompress"):
        compact.restore(tmp_path / "b.compact.safetensors", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", ["../evil#0", "/etc/evil#0", "#0"])
def test_files_outside_of_the_folder_are_refused(tmp_path, name):
    import torch

    archive = tmp_path / "a.compact.safetensors"
    tensor = torch.ones(4)
    compact_file.write(archive, [compact_file.Entry(name, tensor.dtype, (4,), lambda: tensor)])
    with pytest.raises(DataError, match="it holds the files"):
        compact.restore(archive, tmp_path / "out")


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"\xff\xff\xff")
    with pytest.raises(DataError, match="no ONNX model"):
        compact.pack(tmp_path / "a.onnx", tmp_path / "a.compact.safetensors")


def test_the_command_line_restores(tmp_path):
    onnx.save(_model(), tmp_path / "model.onnx")
    compact.pack(tmp_path / "model.onnx", tmp_path / "a.compact.safetensors")
    command = [sys.executable, "-m", "fewbit.sparsity.compact", "a.compact.safetensors", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "out/model.onnx"
    assert (tmp_path / "out/model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert compact.main([]) == 2 and compact.main([str(tmp_path / "a.compact.safetensors")]) == 2
