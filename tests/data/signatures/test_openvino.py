# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from fewbit.data.signature import InputSpec, read_signature
from fewbit.data.signatures import openvino as member
from fewbit.errors import DataError, UsageError

ov = pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def model():
    ops = ov.opset13
    x = ops.parameter([-1, 3, 8], np.float32, name="x")
    ids = ops.parameter([-1, -1], np.int64, name="ids")
    x.output(0).set_names({"pixels"})
    return ov.Model([ops.relu(x), ops.abs(ids)], [x, ids], "m")


EXPECTED = (InputSpec("pixels", (None, 3, 8), "float32"), InputSpec("ids", (None, None), "int64"))


def test_a_model_a_compiled_model_and_a_path_say_the_same(model, tmp_path):
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    compiled = ov.Core().compile_model(model, "CPU")
    for form in (model, compiled, tmp_path / "m.xml", str(tmp_path / "m.xml")):
        assert member.accepts(form)
        assert read_signature(form).inputs == EXPECTED
    assert not member.accepts("m.onnx") and not member.accepts(3)


def test_a_dynamic_rank_is_not_known():
    free = ov.opset13.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    assert member.read(ov.Model([ov.opset13.relu(free)], [free], "m")).inputs == (InputSpec("x", None, "float32"),)


def test_a_missing_or_damaged_file_is_named(tmp_path):
    (tmp_path / "bad.xml").write_text("<net>")
    with pytest.raises(DataError) as caught:
        read_signature(tmp_path / "bad.xml")
    assert "bad.xml" in caught.value.where
    with pytest.raises(UsageError, match=r"none\.xml"):
        read_signature(tmp_path / "none.xml")


def test_items_come_under_input_names(model):
    signature = member.read(model)
    x, ids = np.ones((1, 3, 8), np.float32), np.ones((1, 4), np.int64)
    expected = ov.Core().compile_model(model, "CPU")(member.feed({"ids": ids, "pixels": x}, signature))
    assert len(expected) == 2
    assert list(member.feed_item((x, ids), signature)) == ["pixels", "ids"]
