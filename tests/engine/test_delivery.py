# SPDX-License-Identifier: Apache-2.0
"""Where results go; that a folder is whole or not there is tested with `export`."""

import os
from pathlib import Path

import pytest

from fewbit.engine.delivery import Delivery, record_of
from fewbit.engine.options import Options
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.errors import UsageError
from fewbit.record import Record

FLOAT_NODES = [["fc", "Gemm"], ["out", "Gemm"], ["made by the runtime", "Conv"]]


class Graph:
    """As much of a view as a delivery asks for."""

    can = frozenset({"place"})

    def __init__(self, content=b"model", fails=None):
        self._content, self._fails = content, fails

    def executed(self):
        return {"integer": {}}

    def size(self):
        return 7

    def native(self):
        return self._content

    def save(self, path, *, overwrite=False):
        if self._fails:
            raise self._fails
        assert overwrite or not path.exists()
        path.write_bytes(self._content)
        return path


def deliver(output, graph=None, *, overwrite=False):
    quantizer = ModelQuantizer("w8a8")
    graph = graph or Graph()
    return Delivery(graph, output, Options(), overwrite=overwrite)(quantizer, graph)


def test_a_model_without_a_place_is_returned():
    assert deliver(None) == b"model"


def test_a_file_and_its_record(tmp_path):
    assert deliver(tmp_path / "m.onnx") == tmp_path / "m.onnx"
    record = Record.from_json(record_of(tmp_path / "m.onnx").read_bytes())
    assert record.facts == {"executed": {"integer": {}}, "bytes_after": 7}
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.record.json"]


def test_what_was_looked_at_is_not_looked_at_again(tmp_path):
    quantizer, graph = ModelQuantizer("w8a8"), Graph()
    quantizer.record.facts |= {"executed": {}, "bytes_after": 3}
    Delivery(graph, None, Options())(quantizer, graph)
    assert quantizer.record.facts == {"executed": {}, "bytes_after": 3}


def test_operators_in_float_by_the_names_of_the_model():
    """The runtime makes a Gemm of a product and a sum; the scope to ignore knows the product."""
    quantizer, graph = ModelQuantizer("w8a8"), Graph()
    graph.executed = lambda: {"floating": {"Gemm": 2, "Conv": 1}, "float_nodes": FLOAT_NODES}
    graph.layers = lambda: {"fc": ("MatMul",), "out": ("Gemm",), "sum": ("Add",)}
    Delivery(graph, None, Options())(quantizer, graph)
    assert quantizer.record.facts["executed"]["float_operators"] == {"Conv": 1, "Gemm": 1, "MatMul": 1}


def test_a_model_that_cannot_be_written_leaves_no_record(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        deliver(tmp_path / "m.onnx", Graph(fails=KeyboardInterrupt()))
    assert not os.listdir(tmp_path)


def test_an_earlier_result_is_replaced_when_asked_and_only_that(tmp_path):
    place = tmp_path / "m.onnx"
    deliver(place)
    with pytest.raises(UsageError, match="--overwrite") as caught:
        deliver(place, Graph(b"new"))
    assert "delete it first" in caught.value.try_  # which can be done from Python too
    deliver(place, Graph(b"new"), overwrite=True)
    assert place.read_bytes() == b"new"
    place.unlink()
    with pytest.raises(UsageError, match="is there already"):
        deliver(place)  # its record is still there
    for left in (b"{}", b"\xff", b'{"verb": "check"}'):
        record_of(place).write_bytes(left)
        with pytest.raises(UsageError, match="not an earlier result"):
            deliver(place, overwrite=True)
        assert record_of(place).read_bytes() == left


def test_a_file_of_the_users_is_never_replaced(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError):
            deliver(tmp_path / "m.onnx", overwrite=overwrite)
    assert (tmp_path / "m.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize(("place", "what"), [("none/m.onnx", "no folder"), ("folder", "is a folder")])
def test_places_that_cannot_be_had(tmp_path, place, what):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=what):
        Delivery(Graph(), tmp_path / place, Options())


def test_a_place_taken_meanwhile_is_left_alone(tmp_path):
    graph, place = Graph(), tmp_path / "m.onnx"
    made = Delivery(graph, place, Options())
    place.write_bytes(b"mine")
    with pytest.raises(UsageError, match="is there already"):
        made(ModelQuantizer("w8a8"), graph)
    assert place.read_bytes() == b"mine"


def test_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert deliver("~/m.onnx") == Path(tmp_path / "m.onnx")
