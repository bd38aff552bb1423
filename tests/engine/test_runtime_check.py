# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime computes, compared with what the file says."""

import json
import sys

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import fewbit
from fewbit.backends.graph.as_written import in_float
from fewbit.backends.graph.processor import saturates
from fewbit.backends.graph.view import GraphView
from fewbit.cli import _summary
from fewbit.engine.measuring import measure, reference_on, warn_of_result
from fewbit.engine.run import view_of
from fewbit.engine.runtime_check import check_runtime
from fewbit.engine.sqnr import sqnr
from fewbit.errors import RuntimeDiffersWarning
from fewbit.record import Record

CHANNELS = 8


def weight():
    """Of every output channel one weight is a thousand times as large as the others, and its input is zero."""
    drawn = np.random.default_rng(0).normal(size=(CHANNELS, CHANNELS, 1, 1)).astype(np.float32)
    drawn[:, 0] = 1000.0
    return drawn


def proto(nodes, tensors, shape):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def float_conv():
    nodes = [helper.make_node("Conv", ["input", "w"], ["out"], name="conv")]
    return proto(nodes, {"w": weight()}, ["n", CHANNELS, 4, 4])


def float_conv_between_codes():
    """A layer with float weights that reads and gives codes: the runtime quantizes its weights by itself."""
    nodes = [
        helper.make_node("QuantizeLinear", ["input", "s", "z"], ["a"], name="q1"),
        helper.make_node("DequantizeLinear", ["a", "s", "z"], ["b"], name="dq1"),
        helper.make_node("Conv", ["b", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["d"], name="q2"),
        helper.make_node("DequantizeLinear", ["d", "t", "z"], ["out"], name="dq2"),
    ]
    scales = {"s": np.float32(8 / 255), "t": np.float32(24 / 255), "z": np.uint8(128)}
    return proto(nodes, {"w": weight(), **scales}, ["n", CHANNELS, 4, 4])


def inputs(count):
    drawn = np.random.default_rng(1).normal(size=(count, 1, CHANNELS, 4, 4)).astype(np.float32)
    drawn[:, :, 0] = 0
    return [{"input": item} for item in drawn]


def checked(first, second, items):
    record = Record("quantize", facts={"bytes_before": 2, "bytes_after": 1})
    reference = reference_on(view_of(first), list(enumerate(items)), record, held_out=True)
    result = GraphView.of(second)
    check_runtime(result, reference, measure(result, reference, record), record)
    return record


def test_a_layer_that_the_runtime_quantizes_again_is_named():
    record = checked(float_conv(), float_conv_between_codes(), inputs(3))
    found = record.facts["runtime_check"]
    assert found["sqnr_as_written"] > 25 and found["sqnr_as_run"] < 15 and found["items"] == 3
    assert found["difference_db"] == pytest.approx(found["sqnr_as_written"] - found["sqnr_as_run"])
    (line,) = (line for line in record.lines if line["what"] == "runtime-differs")
    assert "quantizes 1 float layer again, as QLinearConv (conv)" in line["reason"] and line["requantized"] == ["conv"]
    assert any(
        text.startswith("warning: ONNX Runtime does not compute what the file says") for text in _summary.lines(record)
    )


def test_a_model_that_runs_as_it_is_written_is_no_warning():
    record = checked(float_conv(), float_conv(), inputs(3))
    assert abs(record.facts["runtime_check"]["difference_db"]) < 100  # both far above 60 dB
    assert not [line for line in record.lines if line["what"] == "runtime-differs"]


def answering(monkeypatch, run, written, *, saturates=False):
    monkeypatch.setattr(GraphView, "answers", lambda self, items: iter([[torch.tensor(run)] for _ in items]))
    monkeypatch.setattr(
        GraphView, "answers_as_written", lambda self, items: iter([[torch.tensor(written)] for _ in items])
    )
    monkeypatch.setattr(GraphView, "saturates", lambda self: saturates)
    monkeypatch.setattr(GraphView, "requantized", lambda self: [])


def compared(monkeypatch, run, written, **more):
    wanted, record = [10.0, 10.0], Record("quantize")
    view = view_of(float_conv())
    answering(monkeypatch, wanted, wanted)
    reference = reference_on(view, list(enumerate(inputs(2))), record, held_out=True)
    answering(monkeypatch, run, written, **more)
    check_runtime(view, reference, list(view.answers(reference.items)), record)
    return record


def test_saturation_is_named(monkeypatch):
    record = compared(monkeypatch, [11.0, 9.0], [10.5, 10.0], saturates=True)
    (line,) = record.lines
    assert line["what"] == "runtime-differs" and "SQNR 20.0 dB" in line["reason"]
    assert "saturating u8·s8 sums on this processor (no VNNI)" in line["reason"] and "w8a16" in line["reason"]
    assert "--ignore" in line["reason"]


def test_whether_sums_saturate_is_found_by_running_a_kernel(monkeypatch):
    exact, pairs = 255 * 127 * 64, 32767 * 32
    for summed, found in ((exact, False), (pairs, True)):

        class Session:
            def __init__(self, *_, **__):
                pass

            def run(self, _, feed, summed=summed):
                assert feed["x"].max() == 255 and feed["w"].max() == 127
                return [np.full((4, 8), summed, np.int32)]

        monkeypatch.setattr("onnxruntime.InferenceSession", Session)
        assert saturates.__wrapped__() is found
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert saturates.__wrapped__() is None


def test_callers_in_python_are_warned():
    record = Record("quantize")
    record.note("runtime-differs", "ONNX Runtime does not compute what the file says: SQNR 5.0 dB")
    with pytest.warns(RuntimeDiffersWarning, match="does not compute what the file says"):
        warn_of_result(record)


def test_a_run_warns_of_a_runtime_that_differs(monkeypatch):
    """The outputs as written are made the float ones: whatever the runtime loses is then a difference."""
    items = [{"input": item} for item in np.random.default_rng(3).normal(size=(20, 1, 64)).astype(np.float32)]
    view = view_of(mlp())
    monkeypatch.setattr(GraphView, "answers_as_written", lambda self, items: view.answers(items))
    with pytest.warns(RuntimeDiffersWarning, match="cause: ") as caught:
        fewbit.compress_weights(mlp(), mode="int4_sym", group_size=32, dataset=items)
    assert caught[0].filename == __file__


def test_a_cause_that_is_not_known_is_said_to_be(monkeypatch):
    (line,) = compared(monkeypatch, [11.0, 9.0], [10.5, 10.0]).lines
    assert "cause: not known" in line["reason"]


@pytest.mark.parametrize(
    ("run", "written"),
    [
        ([11.0, 9.0], [10.9, 9.0]),  # less than 1 dB
        ([10.5, 10.0], [11.0, 9.0]),  # better than it is written
        ([10.001, 10.0], [10.0, 10.0]),  # both above 60 dB
    ],
)
def test_no_warning(monkeypatch, run, written):
    record = compared(monkeypatch, run, written)
    assert not record.lines and set(record.facts["runtime_check"]) > {"sqnr_as_written", "sqnr_as_run", "difference_db"}


def test_outputs_that_are_not_finite(monkeypatch):
    record = compared(monkeypatch, [float("nan"), 1.0], [10.5, 10.0])
    assert "SQNR not finite as it runs here" in record.lines[0]["reason"]
    assert record.facts["runtime_check"]["sqnr_as_run"] is None
    Record.from_json(record.to_json())
    record = compared(monkeypatch, [10.5, 10.0], [float("nan"), 1.0])
    assert record.lines[0]["what"] == "runtime-not-checked"


def test_a_model_that_does_not_run_without_optimizations_is_noted(monkeypatch):
    def fails(self, items):
        raise RuntimeError("no kernel")

    record = Record("quantize")
    view = view_of(float_conv())
    reference = reference_on(view, list(enumerate(inputs(2))), record, held_out=True)
    monkeypatch.setattr(GraphView, "answers_as_written", fails)
    check_runtime(view, reference, reference.outputs, record)
    assert record.lines[0]["what"] == "runtime-not-checked" and "no kernel" in record.lines[0]["reason"]


def test_outputs_without_floats_have_no_sqnr():
    assert sqnr([[torch.tensor([1])]], [[torch.tensor([1])]]) is None
    assert sqnr([[torch.zeros(2)]], [[torch.zeros(2)]]) is None


def mlp():
    drawn = np.random.default_rng(2)
    tensors = {
        "w1": drawn.normal(size=(64, 64)).astype(np.float32),
        "w2": drawn.normal(size=(64, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["input", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w2"], ["out"], name="last"),
    ]
    return proto(nodes, tensors, ["n", 64])


def test_integer_convolutions_are_what_the_file_says():
    model = fewbit.quantize(narrow_conv(), preset="w8a8_dynamic")
    view = GraphView.of(model)
    assert "ConvInteger" in operators(view.model) and "ConvInteger" not in operators(in_float(view.model))
    (wanted,), (found,) = list(view_of(narrow_conv()).answers(inputs(1))), list(view.answers_as_written(inputs(1)))
    assert sqnr([wanted], [found]) > 25


def narrow_conv():
    drawn = np.random.default_rng(0).normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["input", "w"], ["out"], name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3])]
    return proto(nodes, {"w": drawn}, ["n", CHANNELS, 4, 4])


@pytest.mark.parametrize(
    "made",
    [
        lambda items: fewbit.quantize(mlp(), items, advanced_parameters={"price": float("inf")}),
        lambda items: fewbit.quantize(mlp(), items, preset="w8a8_dynamic"),
        lambda items: fewbit.compress_weights(mlp(), mode="int4_sym", group_size=32, dataset=items),
    ],
    ids=["static", "dynamic", "weights"],
)
def test_every_onnx_run_with_data_is_checked(made):
    drawn = np.random.default_rng(3).normal(size=(20, 1, 64)).astype(np.float32)
    model = made([{"input": item} for item in drawn])
    facts = json.loads({each.key: each.value for each in model.metadata_props}["fewbit"])
    assert facts["runtime_check"]["sqnr_as_written"] > 15 and facts["runtime_check"]["items"] == 4
    assert facts["answers"]["samples"] == 4 and facts["answers"]["kept_aside"]


def operators(model):
    return {node.op_type for node in model.graph}


def test_integer_products_are_what_the_file_says():
    """Without graph optimizations MatMulInteger would still be computed by a kernel whose sums may saturate."""
    items = [{"input": np.full((1, 64), 255.0, np.float32)}]
    made = fewbit.quantize(mlp(), preset="w8a8_dynamic")
    view = GraphView.of(made)
    assert "MatMulInteger" in operators(view.model) and "MatMulInteger" not in operators(in_float(view.model))
    (wanted,), (found,) = list(view_of(mlp()).answers(items)), list(view.answers_as_written(items))
    assert sqnr([wanted], [found]) > 25
