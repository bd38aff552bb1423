# SPDX-License-Identifier: Apache-2.0
"""One pass over items: what is shown to whom, in which order, and what happens when something fails."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper

from fewbit.backends.graph import sights
from fewbit.backends.graph.adding import values_of
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.probing import Probe
from fewbit.backends.graph.running import Sight, run
from fewbit.backends.graph.shaping import value_shapes
from fewbit.errors import DataError, UsageError
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, VALUES, WINDOWS, Watch
from onnx_graphs import model, random


def chain(depth=4, opset=13):
    """Convolutions with Relu between them, and a matrix behind."""
    nodes, constants, at = [], {}, "x"
    for index in range(depth):
        constants[f"w{index}"] = random(4, 4, 3, 3, seed=index) / 6
        nodes.append(helper.make_node("Conv", [at, f"w{index}"], [f"c{index}"], name=f"conv{index}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"], name=f"relu{index}"))
        at = f"r{index}"
    constants["m"] = random(8, 5)
    nodes.append(helper.make_node("MatMul", [at, "m"], ["y"], name="matmul"))
    return ir.from_proto(model(nodes, {"x": ["n", 4, 8, 8]}, {"y": None}, constants, opset))


def items(count, batch=1):
    return [{"x": random(batch, 4, 8, 8, seed=seed)} for seed in range(count)]


def watching(*needs, sample=1024):
    seen = []
    return Watch(frozenset(needs), lambda found, item: seen.append((item, found)), sample), seen


def values_by_hand(graph, name, item):
    copy = graph.clone()
    copy.graph.outputs[:] = [value for node in copy.graph for value in node.outputs if value.name == name]
    return torch.from_numpy(onnxruntime.InferenceSession(ir.to_proto(copy).SerializeToString()).run(None, item)[0])


def test_sights_of_one_value_share_a_gauge():
    graph = chain()
    layer = next(layer for layer in layers(graph.graph) if layer.name == "conv2")
    by_feature, first = watching(LOW, SUM)
    whole, second = watching(HIGH, SUM, VALUES)
    met, third = watching(TAPS, WINDOWS)
    sights = [Sight("r1", 1, by_feature), Sight("r1", None, whole), Sight("r1", 1, met, layer)]
    assert run(graph, items(3), sights) == 3
    for item, feed in enumerate(items(3)):
        wanted = values_by_hand(graph, "r1", feed)
        assert [first[item][0], second[item][0], third[item][0]] == [item] * 3
        torch.testing.assert_close(first[item][1][SUM], wanted.double().sum((0, 2, 3)))
        torch.testing.assert_close(first[item][1][LOW], wanted.amin((0, 2, 3)))
        torch.testing.assert_close(second[item][1][SUM], wanted.double().sum().reshape(1))
        torch.testing.assert_close(second[item][1][HIGH], wanted.amax().reshape(1))
        assert second[item][1][VALUES].shape == (wanted.numel(), 1)
        assert third[item][1][TAPS].shape == (4, 3, 3)
        assert int(third[item][1][WINDOWS]) == 64
    nodes = [node.op_type for node in Probe(graph, sights, value_shapes(graph, items(1)[0])).model.graph]
    assert nodes.count("ReduceMin") == nodes.count("ReduceMax") == 1


def test_statistics_run_right_after_their_value(tmp_path):
    """Or every activation would be alive at the end."""
    graph = chain(6)
    watch, _ = watching(LOW, HIGH, SUM, SQUARE, SAMPLE)
    sights = [Sight(f"r{index}", 1, watch) for index in range(6)]
    probe = Probe(graph, sights, value_shapes(graph, items(1)[0]))
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(ir.to_proto(probe.model).SerializeToString(), options)
    session.run(None, probe.feed(items(1)[0], [1] * 6))
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    places = [place for place, op in enumerate(ran) if "Conv" in op]
    assert len(places) == 6
    for start, end in zip(places, [*places[1:], len(ran)]):
        assert all(ran[start:end].count(op) == 1 for op in ("ReduceMax", "ReduceMin", "Shape"))


def test_the_model_is_left_alone_and_what_nobody_needs_is_not_run():
    graph = chain()
    before = ir.to_proto(graph).SerializeToString()
    watch, seen = watching(LOW)
    assert run(graph, items(2), [Sight("r0", 1, watch)]) == 2
    assert ir.to_proto(graph).SerializeToString() == before
    kept = Probe(graph, [Sight("r0", 1, watch)], value_shapes(graph, items(1)[0])).model.graph
    assert [node.op_type for node in kept].count("Conv") == 1
    assert len(seen) == 2


def test_without_sights_and_without_items():
    assert run(chain(), items(3), []) == 3
    assert run(chain(), [], [Sight("r0", 1, watching(LOW)[0])]) == 0


def test_batches_of_other_sizes():
    watch, seen = watching(SUM, LOW, SAMPLE, sample=64)
    feeds = [items(1, batch)[0] for batch in (2, 1, 5)]
    graph = chain()
    run(graph, feeds, [Sight("r3", 1, watch)])
    for (_, found), feed in zip(seen, feeds):
        torch.testing.assert_close(found[SUM], values_by_hand(graph, "r3", feed).double().sum((0, 2, 3)))
        assert len(found[SAMPLE]) >= 64


def test_user_code_runs_in_the_callers_thread():
    threads = set()

    def made():
        for item in items(3):
            threads.add(threading.current_thread())
            yield item

    watch = Watch(frozenset({LOW}), lambda found, item: threads.add(threading.current_thread()))
    run(chain(), made(), [Sight("r0", 1, watch)])
    assert threads == {threading.current_thread()}


def test_threads_of_the_caller_are_as_they_were():
    threads = []
    watch = Watch(frozenset({LOW}), lambda found, item: threads.append(torch.get_num_threads()))
    large = Watch(frozenset({VALUES}), lambda found, item: threads.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(chain(), items(1), [Sight("r0", 1, watch), Sight("r1", 1, large)])
        assert [*threads, torch.get_num_threads()] == [1, 2, 2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["item", "take"])
def test_errors_of_user_code_come_out_and_the_generator_is_closed(error, where):
    closed, seen = [], []

    def made():
        try:
            for index, item in enumerate(items(6)):
                if where == "item" and index == 3:
                    raise error("mine")
                yield item
        finally:
            closed.append(True)

    def take(found, item):
        seen.append(item)
        if where == "take" and item == 2:
            raise error("mine")

    with pytest.raises(error, match="mine"):
        run(chain(), made(), [Sight("r0", 1, Watch(frozenset({LOW}), take))])
    assert closed == [True]
    assert seen == ([0, 1] if where == "item" else [0, 1, 2])


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"x": np.zeros((1, 4, 8, 8))}, "float64"),
        ({"x": np.zeros((1, 3, 8, 8), np.float32)}, "[1, 3, 8, 8]"),
        ({"x": np.zeros((4, 8, 8), np.float32)}, "[4, 8, 8]"),
        ({"z": np.zeros((1, 4, 8, 8), np.float32)}, "z"),
        ({}, "nothing"),
    ],
)
@pytest.mark.parametrize("index", [0, 2])
def test_items_that_do_not_fit(bad, words, index):
    feeds = items(3)
    feeds[index] = bad
    with pytest.raises(DataError) as caught:
        run(chain(), feeds, [Sight("r0", 1, watching(LOW)[0])])
    assert caught.value.where == f"item {index}"
    assert words in caught.value.what
    assert "x" in f"{caught.value.what} {caught.value.expected}"


def test_items_on_which_the_model_fails():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    graph = ir.from_proto(model(nodes, {"x": ["n"]}, {"y": None}, {"shape": np.array([2, -1])}))
    feeds = [{"x": np.ones(length, np.float32)} for length in (4, 6, 5)]
    with pytest.raises(DataError, match="Reshape") as caught:
        run(graph, feeds, [Sight("y", 1, watching(LOW)[0])])
    assert caught.value.where == "item 2"


def test_values_that_cannot_be_watched():
    ends = [helper.make_empty_tensor_value_info(name) for name in ("inside", "beside")]
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["inside"])], "then", [], ends[:1])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["beside"])], "else", [], ends[1:])
    nodes = [
        helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Shape", ["y"], ["s"]),
    ]
    graph = ir.from_proto(model(nodes, {"x": [2, 3]}, {"y": None}, {"yes": np.array(True)}, 16))
    feeds = [{"x": random(2, 3)}]
    for name, words in (("inside", "branch or a loop"), ("s", "real numbers"), ("why", "no value")):
        with pytest.raises(UsageError, match=words):
            run(graph, feeds, [Sight(name, None, watching(LOW)[0])])
    with pytest.raises(UsageError, match="axes"):
        run(graph, feeds, [Sight("y", 2, watching(LOW)[0])])
    with pytest.raises(UsageError, match="layer"):
        run(graph, feeds, [Sight("y", 1, watching(TAPS)[0])])
    watch, seen = watching(HIGH)
    run(graph, feeds, [Sight("y", 1, watch)])
    assert seen[0][1][HIGH].tolist() == np.maximum(feeds[0]["x"], 0).max(0).tolist()


def test_lengths_beyond_what_float32_counts():
    count = (1 << 24) + 1
    graph = ir.from_proto(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [None]}, {"y": None}, {}))
    watch, seen = watching(COUNT, SAMPLE)
    run(graph, [{"x": np.ones(count, np.float32)}], [Sight("y", None, watch)])
    assert int(seen[0][1][COUNT]) == count and len(seen[0][1][SAMPLE]) >= 1024


def test_what_is_empty_is_not_shown():
    """Rows above a threshold, of which an item may have none, as pictures that a convolution reads."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["most", "n"], ["large"]), helper.make_node("NonZero", ["large"], ["found"]),
        helper.make_node("Squeeze", ["found", "first"], ["rows"]), helper.make_node("Gather", ["x", "rows"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["p"]), helper.make_node("Conv", ["p", "w"], ["y"], name="conv"),
    ]  # fmt: skip
    constants = {
        "n": np.float32(0), "first": np.array([0]), "shape": np.array([-1, 2, 4, 4]), "w": random(3, 2, 3, 3),
    }  # fmt: skip
    graph = ir.from_proto(model(nodes, {"x": ["n", 32]}, {"y": None}, constants))
    layer = next(layer for layer in layers(graph.graph) if layer.name == "conv")
    feeds = [{"x": np.abs(random(3, 32, seed=seed)) * (-1 if seed in (1, 2) else 1)} for seed in range(4)]
    shown = {}
    for name, features, needs in (
        ("r", None, {LOW, SAMPLE}), ("p", None, {LOW, HIGH, SAMPLE, SQUARE, VALUES}), ("y", 1, {SUM, SQUARE, LOW}),
    ):  # fmt: skip
        watch, shown[name] = watching(*needs)
        run(graph, feeds, [Sight(name, features, watch)])
        assert [item for item, _ in shown[name]] == [0, 3]
    met, taps = watching(TAPS, WINDOWS, SQUARE)
    run(graph, feeds, [Sight("p", 1, met, layer)])
    assert [item for item, _ in taps] == [0, 3]
    torch.testing.assert_close(shown["p"][1][1][LOW], torch.tensor([feeds[3]["x"].min()]))
    torch.testing.assert_close(shown["y"][0][1][SUM], values_by_hand(graph, "y", feeds[0]).double().sum((0, 2, 3)))


def test_the_values_of_a_graph_are_looked_up_once(monkeypatch):
    graph, looked = chain(), []
    monkeypatch.setattr(sights, "values_of", lambda graph: looked.append(1) or values_of(graph))
    run(graph, items(1), [Sight(f"r{index}", 1, watching(LOW)[0]) for index in range(4)])
    assert len(looked) == 1
