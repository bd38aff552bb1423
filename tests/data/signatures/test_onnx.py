# SPDX-License-Identifier: Apache-2.0
import contextlib
import random

import numpy as np
import pytest

from fewbit.data.signature import InputSpec, Signature, read_signature
from fewbit.data.signatures import onnx as member
from fewbit.data.signatures._items import take_labels
from fewbit.errors import DataError, UsageError

onnx = pytest.importorskip("onnx")
T, H = onnx.TensorProto, onnx.helper


def make(inputs, initializers=(), ir_version=8):
    body = [H.make_node("Identity", [inputs[0].name], ["out"])]
    out = H.make_tensor_value_info("out", inputs[0].type.tensor_type.elem_type, None)
    graph = H.make_graph(body, "g", inputs, [out], initializers)
    return H.make_model(graph, ir_version=ir_version, opset_imports=[H.make_opsetid("", 17)])


def value(name, dtype=T.FLOAT, shape=("batch", 3, None, -1)):
    return H.make_tensor_value_info(name, dtype, None if shape is None else list(shape))


@pytest.fixture
def model():
    return make([value("x", T.FLOAT, ("batch", 3, None, 8)), value("ids", T.INT64, ("batch", "seq"))])


EXPECTED = (InputSpec("x", ("batch", 3, None, 8), "float32"), InputSpec("ids", ("batch", "seq"), "int64"))


def test_a_path_bytes_and_a_proto_say_the_same(model, tmp_path):
    path = tmp_path / "Model.ONNX"
    onnx.save(model, path)
    for form in (model, model.SerializeToString(), path, str(path)):
        assert member.accepts(form)
        assert read_signature(form).inputs == EXPECTED
    assert str(path) == member.read(path).source


def test_an_onnxruntime_session(model):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert member.accepts(session) and member.read(session).inputs == EXPECTED


def test_initializers_as_inputs_are_not_inputs():
    weight = H.make_tensor("w", T.FLOAT, [2], [1.0, 2.0])
    old = make([value("x"), value("w", T.FLOAT, (2,))], [weight], ir_version=3)
    assert member.read(old).names == ("x",)


@pytest.mark.parametrize(
    ("element", "name"),
    [
        (T.FLOAT16, "float16"),
        (T.BFLOAT16, "bfloat16"),
        (T.DOUBLE, "float64"),
        (T.STRING, "str"),
        (T.BOOL, "bool"),
        (T.UINT8, "uint8"),
        (T.INT32, "int32"),
    ],
)
def test_dtypes_have_numpys_names(element, name):
    assert member.read(make([value("x", element)])).inputs[0].dtype == name


def test_unknown_shapes_and_negative_axes():
    assert member.read(make([value("x", shape=None)])).inputs[0].shape is None
    assert member.read(make([value("x", shape=(-1, 3))])).inputs[0].shape == (None, 3)


def test_external_data_stays_unread(tmp_path):
    weight = H.make_tensor("w", T.FLOAT, [1000], np.ones(1000, np.float32).tobytes(), raw=True)
    onnx.save(
        make([value("x")], [weight]), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w"
    )
    (tmp_path / "w").unlink()
    assert member.read(tmp_path / "m.onnx").names == ("x",)


def test_a_truncated_missing_or_foreign_file_is_named(model, tmp_path):
    content = model.SerializeToString()
    cases = {"cut.onnx": content[: len(content) // 2], "empty.onnx": b"", "text.onnx": b"hello world " * 9}
    for name, raw in cases.items():
        (tmp_path / name).write_bytes(raw)
    for name in cases:
        with pytest.raises(DataError) as caught:
            read_signature(tmp_path / name)
        assert name in caught.value.where and caught.value.code == "model-unreadable"
    with pytest.raises(UsageError, match="no model file"):
        read_signature(tmp_path / "missing.onnx")


def test_mutated_models_end_in_a_signature_or_an_error(model, tmp_path):
    content = model.SerializeToString()
    chance = random.Random(5)
    readable = 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with contextlib.suppress(DataError):
            readable += isinstance(member.read(bytes(data)), Signature)
    assert 0 < readable < 150


ONE = Signature("onnx", (InputSpec("x", (None, 2), "float32"),))
TWO = Signature("onnx", (InputSpec("ids", (None, 2), "int64"), InputSpec("mask", (None, 2), "int64")))


def fed(item, signature):
    return member.feed_item(take_labels(item, signature)[0], signature)


def keys_and_values(feed):
    return {name: array.tolist() for name, array in feed.items()}


def test_a_batch_comes_under_input_names_in_order():
    fed = member.feed({"mask": np.ones((1, 2)), "ids": np.zeros((1, 2)), "label": np.ones(1)}, TWO)
    assert list(fed) == ["ids", "mask"]


def test_an_array_goes_to_the_one_input():
    x = np.ones((1, 2), np.float32)
    for item in (
        x,
        (x,),
        [x],
        {"x": x},
        {"anything": x},
        (x, np.array([3])),
        [x, np.array([3])],
        ((x,), {}),
        [[1.0, 1.0]],
    ):
        assert keys_and_values(fed(item, ONE)) == {"x": [[1.0, 1.0]]}


def test_pairs_and_mappings_for_two_inputs():
    a, b = np.zeros((1, 2), np.int64), np.ones((1, 2), np.int64)
    expected = {"ids": [[0, 0]], "mask": [[1, 1]]}
    for item in (
        (a, b),
        [a, b],
        {"mask": b, "ids": a},
        ({"ids": a, "mask": b}, np.array([1])),
        ({"ids": a, "mask": b}, {"labels": np.array([1])}),
        {"ids": a, "mask": b, "labels": 1},
    ):
        assert keys_and_values(fed(item, TWO)) == expected
    assert take_labels((a, b), TWO)[1] is None
    assert take_labels(({"ids": a, "mask": b}, [1]), TWO)[1] == [1]
    assert take_labels({"ids": a, "mask": b, "labels": 1}, TWO)[1] == {"labels": 1}


def test_too_many_values_and_unknown_names_are_errors():
    x = np.ones((1, 2))
    with pytest.raises(DataError, match="3 values"):
        member.feed_item((x, x, x), TWO)
    with pytest.raises(DataError, match="'msk'"):
        member.feed_item({"ids": x, "msk": x}, TWO)


def test_tensors_become_arrays():
    torch = pytest.importorskip("torch")
    grad = torch.ones(1, 2, requires_grad=True)
    assert member.feed_item(grad, ONE)["x"].dtype == np.float32
    assert member.feed_item(torch.ones(1, 2, dtype=torch.bfloat16), ONE)["x"].dtype == np.float32
    bf16 = Signature("onnx", (InputSpec("x", (None, 2), "bfloat16"),))
    pytest.importorskip("ml_dtypes")
    assert member.feed_item(torch.ones(1, 2, dtype=torch.bfloat16), bf16)["x"].dtype.name == "bfloat16"
    shared = np.ones((1, 2), np.float32)
    assert np.shares_memory(member.feed_item(torch.from_numpy(shared), ONE)["x"], shared)
