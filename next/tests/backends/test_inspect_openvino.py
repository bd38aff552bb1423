# SPDX-License-Identifier: Apache-2.0
"""Headers of OpenVINO models, read without openvino; openvino itself says what is right."""

import random
import subprocess
import sys

import numpy as np
import pytest

from fewbit.backends.openvino import BACKEND
from fewbit.errors import ModelError
from fewbit.model_info import TensorInfo

ov = pytest.importorskip("openvino")


def build():
    ops = ov.opset13
    x = ops.parameter([-1, 3, 8], np.float32, name="x")
    ids = ops.parameter(ov.PartialShape([ov.Dimension(1, 16), -1]), np.int64, name="ids")
    x.output(0).set_names({"pixels", "a,b"})
    weights = ops.constant(np.ones((8, 4), np.float32))
    model = ov.Model([ops.matmul(x, weights, False, False), ops.abs(ids)], [x, ids], "m")
    model.outputs[0].set_names({"logits"})
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = build()
    info = {"labels": "cat dog", "mean_values": [123.675, 116.28, 103.53], "scale_values": "58.395 57.12 57.375"}
    info |= {"resize_type": "fit_to_window_letterbox", "model_type": "Classification", "reverse_input_channels": "True"}
    for key, value in info.items():
        model.set_rt_info(value, ["model_info", key])
    path = tmp_path_factory.mktemp("ov") / "m.xml"
    ov.save_model(model, path)
    return path


INPUTS = (TensorInfo("a,b", "float32", (None, 3, 8)), TensorInfo("ids", "int64", (None, None)))


def test_inputs_and_outputs_are_those_openvino_sees(saved):
    info = BACKEND.inspect(saved)
    assert info.inputs == INPUTS
    loaded = ov.Core().read_model(saved)
    assert BACKEND.inspect(loaded).inputs == INPUTS
    assert info.outputs == BACKEND.inspect(loaded).outputs
    assert info.outputs[0] == TensorInfo("logits", "float32", (None, 3, 4))
    assert info.size == saved.stat().st_size + saved.with_suffix(".bin").stat().st_size


def test_openvino_is_not_imported(saved):
    code = (
        f"import sys; from fewbit.backends.openvino import BACKEND; assert BACKEND.matches({str(saved)!r}); "
        f"BACKEND.inspect({str(saved)!r}); assert not BACKEND.matches(3) and 'openvino' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_model_info_of_the_model_api(saved):
    info = BACKEND.inspect(saved)
    assert info.labels == ("cat", "dog") and info.task == "image-classification"
    assert np.allclose(info.preprocessing["mean"], (0.485, 0.456, 0.406))
    assert np.allclose(info.preprocessing["std"], (0.229, 0.224, 0.225))
    assert info.preprocessing["resize"] == "pad" and info.preprocessing_source == "model metadata"
    assert info.facts["channels"] == "BGR"


def test_a_mean_alone_leaves_pixels_undivided(tmp_path):
    model = build()
    model.set_rt_info("127.5", ["model_info", "mean_values"])
    ov.save_model(model, tmp_path / "m.xml")
    settings = BACKEND.inspect(tmp_path / "m.xml").preprocessing
    assert settings == {"mean": (0.5,), "std": (1 / 255,)}


def test_free_rank_and_quantized_constants(tmp_path):
    ops = ov.opset13
    x = ops.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    stored = ops.convert(ops.constant(np.ones((4, 4), np.int8)), np.float32)
    ov.save_model(ov.Model([ops.add(x, stored)], [x], "m"), tmp_path / "openvino_model.xml")
    assert BACKEND.matches(tmp_path)
    info = BACKEND.inspect(tmp_path)
    assert info.inputs[0].shape is None and info.quantized == "int8"


def test_inner_graphs_have_no_inputs_of_the_model(tmp_path):
    data = '<data shape="1,2" element_type="f32"/><output><port id="0"/></output>'
    layer = f'<layer id="{{}}" name="{{}}" type="{{}}">{data}{{}}</layer>'
    inner = f"<body><layers>{layer.format(7, 'inner', 'Parameter', '')}</layers></body>"
    layers = layer.format(0, "x", "Parameter", "") + layer.format(1, "loop", "Loop", inner)
    (tmp_path / "m.xml").write_text(
        f'<net name="m" version="11"><layers>{layers}<layer id="2" name="r" type="Result"/></layers></net>'
    )
    assert [tensor.name for tensor in BACKEND.inspect(tmp_path / "m.xml").inputs] == ["x"]


LAUGHS = '<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><net>&b;</net>'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("<net>", "no element|mismatched|not well-formed|unclosed"),
        ("<net></net>", "no outputs"),
        ("<other/>", "<other>"),
        ("<html><body>404", "HTML"),
        ("not xml", "not well-formed|syntax"),
        (LAUGHS, "document type"),
        ("<net>" + "<a>" * 100, "deeply nested"),
    ],
)
def test_damaged_and_hostile_files_are_typed_errors(tmp_path, content, reason):
    (tmp_path / "bad.xml").write_text(content)
    with pytest.raises(ModelError, match=reason) as caught:
        BACKEND.inspect(tmp_path / "bad.xml")
    assert caught.value.code == "model-unreadable" and "bad.xml" in caught.value.where


def test_mutated_files_end_in_an_info_or_a_typed_error(saved, tmp_path):
    content, chance, readable = saved.read_bytes(), random.Random(3), 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "m.xml").write_bytes(data)
        try:
            BACKEND.inspect(tmp_path / "m.xml")
            readable += 1
        except ModelError:
            continue
    assert 0 < readable < 150


def test_loading_says_what_works(saved):
    with pytest.raises(ModelError, match="not loaded yet") as caught:
        BACKEND.load(saved)
    assert caught.value.code == "backend-not-built" and "ONNX" in caught.value.hint
