# SPDX-License-Identifier: Apache-2.0
"""Headers of ONNX models: what is read, what is not touched, and what a damaged or hostile file becomes."""

import contextlib
import os
import random

import numpy as np
import orjson
import pytest

from fewbit.backends.onnx.inspect import inspect_onnx
from fewbit.errors import MissingLibraryError, ModelError
from fewbit.model_info import TensorInfo

onnx = pytest.importorskip("onnx")
T, H = onnx.TensorProto, onnx.helper


def value(name, dtype=T.FLOAT, shape=("batch", 3, None, -1)):
    return H.make_tensor_value_info(name, dtype, None if shape is None else list(shape))


def make(inputs, initializers=(), *, ir_version=8, nodes=None, metadata=None):
    nodes = nodes or [H.make_node("Identity", [inputs[0].name], ["out"])]
    out = value("out", inputs[0].type.tensor_type.elem_type, None)
    graph = H.make_graph(nodes, "g", inputs, [out], initializers)
    model = H.make_model(graph, ir_version=ir_version, opset_imports=[H.make_opsetid("", 17)])
    H.set_model_props(model, metadata or {})
    return model


def save(path, model):
    path.write_bytes(model.SerializeToString())
    return path


def external(location, **entries):
    tensor = T(name="w", data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


@pytest.fixture
def model():
    return make([value("x", T.FLOAT, ("batch", 3, None, 8)), value("ids", T.INT64, ("batch", "seq"))])


EXPECTED = (TensorInfo("x", "float32", ("batch", 3, None, 8)), TensorInfo("ids", "int64", ("batch", "seq")))


def test_path_bytes_and_proto_give_the_same(model, tmp_path):
    path = save(tmp_path / "Model.ONNX", model)
    for source in (path, str(path), model.SerializeToString(), model):
        assert inspect_onnx(source).inputs == EXPECTED
    info = inspect_onnx(path)
    assert info.source == str(path) and info.size == path.stat().st_size
    assert info.facts["opset"] == {"ai.onnx": 17} and info.facts["nodes"] == 1
    assert [tensor.name for tensor in info.outputs] == ["out"]


def test_folder_with_one_model(model, tmp_path):
    save(tmp_path / "model.onnx", model)
    assert inspect_onnx(tmp_path).inputs == EXPECTED
    save(tmp_path / "other.onnx", model)
    with pytest.raises(ModelError, match=r"2 \.onnx files"):
        inspect_onnx(tmp_path)


@pytest.mark.parametrize("sparse", [False, True])
def test_initializers_listed_as_inputs_are_none(sparse):
    weight = H.make_tensor("w", T.FLOAT, [2], [1.0, 2.0])
    old = make([value("x"), value("w", T.FLOAT, (2,))], [] if sparse else [weight], ir_version=3)
    if sparse:
        old.graph.sparse_initializer.append(H.make_sparse_tensor(weight, H.make_tensor("i", T.INT64, [2], [0, 1]), [2]))
    assert [tensor.name for tensor in inspect_onnx(old).inputs] == ["x"]


@pytest.mark.parametrize(
    ("element", "name"),
    [
        (T.FLOAT16, "float16"),
        (T.BFLOAT16, "bfloat16"),
        (T.DOUBLE, "float64"),
        (T.STRING, "str"),
        (T.BOOL, "bool"),
        (T.UINT8, "uint8"),
    ],
)
def test_dtypes_have_numpy_names(element, name):
    assert inspect_onnx(make([value("x", element)])).inputs[0].dtype == name


def test_axes_without_a_name():
    assert inspect_onnx(make([value("x", shape=None)])).inputs[0].shape is None
    assert inspect_onnx(make([value("x", shape=(-1, "?", "", 3))])).inputs[0].shape == (None, None, None, 3)


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ({"x": ("batch", 576), "state": (2, "batch", 128)}, [0, 1]),
        ({"x": ("N", 576), "state": (2, "N", 128)}, [0, 1]),
        ({"x": ("frames", 6), "state": (1, 1, 8)}, [None, 0]),
        ({"x": (4, 6), "y": (4, 8)}, [0, 0]),
        ({"x": (1, 6), "y": (2, 8)}, [0, None]),
        ({"x": (None, 6), "rate": ()}, [0, None]),
        ({"x": ("a", 6), "y": ("b", 8)}, [0, 0]),
    ],
)
def test_batch_axes(shapes, axes):
    info = inspect_onnx(make([value(name, shape=shape) for name, shape in shapes.items()]))
    assert [tensor.batch_axis for tensor in info.inputs] == axes


def test_external_data_is_measured_and_not_read(tmp_path):
    path = save(tmp_path / "m.onnx", make([value("x")], [external("w.data")]))
    info = inspect_onnx(path)
    assert info.size == path.stat().st_size and info.facts["external_data_missing"] == ["w.data"]
    (tmp_path / "w.data").write_bytes(bytes(100))
    (tmp_path / "w.data").chmod(0)
    info = inspect_onnx(path)
    assert info.size == path.stat().st_size + 100 and info.facts["external_data"] == ["w.data"]


@pytest.mark.parametrize("location", ["/etc/passwd", "../w", "a/../../w", "C:\\w", "\\\\host\\w", "..\\w", "", "a\0b"])
def test_external_data_outside_of_the_folder_is_refused_untouched(tmp_path, monkeypatch, location):
    path = save(tmp_path / "m.onnx", make([value("x")], [external(location)]))
    monkeypatch.setattr(os, "lstat", lambda *_: pytest.fail("the file was looked at"))
    with pytest.raises(ModelError) as caught:
        inspect_onnx(path)
    assert caught.value.code == "external-data-outside"


def test_a_link_to_external_data_is_not_followed(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(1000))
    (tmp_path / "model" / "w").symlink_to(tmp_path / "secret")
    path = save(tmp_path / "model" / "m.onnx", make([value("x")], [external("w")]))
    info = inspect_onnx(path)
    assert info.size == path.stat().st_size and info.facts["external_data_missing"] == ["w"]


@pytest.mark.parametrize("dims", [[10**9], [-1, 4], [2**62, 2**62], [3]])
def test_constants_that_claim_what_they_do_not_have(tmp_path, dims):
    lie = T(name="w", data_type=T.FLOAT, dims=dims, raw_data=bytes(16))
    with pytest.raises(ModelError, match="'w'") as caught:
        inspect_onnx(save(tmp_path / "m.onnx", make([value("x")], [lie])))
    assert caught.value.code == "model-unreadable"


def test_packed_constants_are_measured_in_bits(tmp_path):
    packed = T(name="w", data_type=T.INT4, dims=[5], raw_data=bytes(3))
    assert inspect_onnx(save(tmp_path / "m.onnx", make([value("x")], [packed]))).inputs


def test_truncated_empty_and_other_files_are_named(model, tmp_path):
    content = make([value("x")], [H.make_tensor("w", T.FLOAT, [64], np.ones(64))]).SerializeToString()
    cases = {
        "cut.onnx": (content[: len(content) // 2], "cut short"),
        "empty.onnx": (b"", "empty"),
        "text.onnx": (b"hello world " * 9, "not a readable"),
        "page.onnx": (b"<!DOCTYPE html><html>", "HTML"),
        "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs"),
        "zip.onnx": (b"PK\x03\x04" + bytes(40), "zip"),
    }
    for name, (raw, reason) in cases.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ModelError, match=reason) as caught:
            inspect_onnx(tmp_path / name)
        assert caught.value.code == "model-unreadable" and name in caught.value.where


def test_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        inspect_onnx(tmp_path / "m.onnx")


def test_mutated_models_end_in_an_info_or_a_typed_error(model):
    content = model.SerializeToString()
    chance = random.Random(5)
    readable = 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with contextlib.suppress(ModelError):
            inspect_onnx(bytes(data))
            readable += 1
    assert 0 < readable < 150


def test_metadata_of_ultralytics():
    metadata = {
        "author": "Ultralytics",
        "task": "detect",
        "imgsz": "[640, 480]",
        "names": "{0: 'person', 1: \"it's\"}",
    }
    info = inspect_onnx(make([value("images")], metadata=metadata))
    assert info.labels == ("person", "it's") and info.task == "object-detection"
    assert info.preprocessing == {"image_size": (640, 480), "preprocess": "yolo"}
    assert info.preprocessing_source == "model metadata"


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        ({"labels": '["a", "b"]'}, ("a", "b")),
        ({"classes": "a,b"}, ("a", "b")),
        ({"class_names": "a\nb\n"}, ("a", "b")),
        ({"names": "{0: 'a', 2: 'b'}"}, None),
        ({"names": "(" * 5000}, ("(" * 5000,)),
        ({"names": "__import__('os').system('true')"}, ("__import__('os').system('true')",)),
    ],
)
def test_labels_in_metadata_are_parsed_and_never_executed(metadata, labels):
    assert inspect_onnx(make([value("x")], metadata=metadata)).labels == labels


def test_mean_and_std_are_put_on_the_unit_scale():
    info = inspect_onnx(make([value("x")], metadata={"mean": "123.675,116.28,103.53", "std": "[58.395,57.12,57.375]"}))
    assert np.allclose(info.preprocessing["mean"], (0.485, 0.456, 0.406))
    assert np.allclose(info.preprocessing["std"], (0.229, 0.224, 0.225))
    info = inspect_onnx(make([value("x")], metadata={"mean": "[0.5]", "std": "[0.25]"}))
    assert info.preprocessing == {"mean": (0.5,), "std": (0.25,)}
    assert inspect_onnx(make([value("x")], metadata={"mean": "[1,2,3,4]", "std": "0"})).preprocessing == {}


def test_preprocessing_next_to_the_model_comes_before_metadata(tmp_path):
    path = save(tmp_path / "small.onnx", make([value("x")], metadata={"mean": "[0.5]", "names": "['x', 'y']"}))
    (tmp_path / "preprocessor_config.json").write_bytes(
        orjson.dumps(
            {"do_resize": True, "size": {"height": 32, "width": 32}, "image_mean": [0.1] * 3, "image_std": [1] * 3}
        )
    )
    info = inspect_onnx(path)
    assert info.preprocessing["image_size"] == [32, 32] and info.labels == ("x", "y")
    assert info.preprocessing_source == "preprocessor_config.json"
    (tmp_path / "preprocessing.json").write_bytes(
        orjson.dumps({"version": 1, "image_size": [8, 8], "labels": ["a", "b"]})
    )
    info = inspect_onnx(path)
    assert info.preprocessing == {"version": 1, "image_size": [8, 8]} and info.labels == ("a", "b")
    (tmp_path / "small.preprocessing.json").write_bytes(orjson.dumps({"image_size": [4, 4]}))
    assert inspect_onnx(path).preprocessing_source == "small.preprocessing.json"


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe"])
def test_damaged_sidecar_files_count_as_absent(tmp_path, content):
    path = save(tmp_path / "m.onnx", make([value("x")]))
    for name in ("preprocessing.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes(content)
    assert inspect_onnx(path).preprocessing == {}


def test_tokenizer_one_folder_above(tmp_path):
    (tmp_path / "onnx").mkdir()
    path = save(tmp_path / "onnx" / "model.onnx", make([value("input_ids", T.INT64, ("batch", "seq"))]))
    assert inspect_onnx(path).tokenizer is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert inspect_onnx(path).tokenizer == str(tmp_path)
    (tmp_path / "onnx" / "vocab.txt").write_text("a")
    assert inspect_onnx(path).tokenizer == str(tmp_path / "onnx")


def test_vocabulary_is_the_table_that_token_ids_index():
    table = H.make_tensor("table", T.FLOAT, [30, 2], np.ones(60))
    inputs = [value("input_ids", T.INT64, ("b", "s")), value("token_type_ids", T.INT64, ("b", "s"))]
    types = H.make_tensor("types", T.FLOAT, [2, 2], np.ones(4))
    nodes = [
        H.make_node("Gather", ["types", "token_type_ids"], ["t"]),
        H.make_node("Gather", ["table", "input_ids"], ["out"]),
    ]
    assert inspect_onnx(make(inputs, [table, types], nodes=nodes)).vocabulary == 30


def test_quantized_models_are_recognized():
    nodes = [H.make_node("DequantizeLinear", ["x", "s"], ["out"])]
    assert inspect_onnx(make([value("x")], nodes=nodes)).quantized == "QDQ"
    assert inspect_onnx(make([value("x")])).quantized is None


def test_missing_library_comes_before_reading(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingLibraryError, match=r"need the library onnx"):
        inspect_onnx(tmp_path / "none.onnx")
