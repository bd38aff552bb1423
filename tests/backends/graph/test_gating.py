# SPDX-License-Identifier: Apache-2.0
"""What rounding one value does to the answers, against rounding it by hand."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph import gating
from fewbit.backends.graph.gating import Gated, answers, distance
from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.repair import repair
from onnx_graphs import model, random

WEIGHTS = {"a": random(6, 8), "b": random(8, 4, seed=1)}
SCALES = {"x": CodeScale(0.05, 120), "r": CodeScale(0.2, 0), "y": CodeScale(0.5, 100)}


def net(opset=13, last=()):
    nodes = [
        node("MatMul", ["x", "a"], ["m"], name="one"), node("Relu", ["m"], ["r"], name="relu"),
        node("MatMul", ["r", "b"], ["y"], name="two"), *last,
    ]  # fmt: skip
    proto = model(nodes, {"x": [3, 6]}, {"y": None}, WEIGHTS, opset)
    if last:
        kind = onnx.TensorProto.INT64 if last[-1].op_type == "ArgMax" else onnx.TensorProto.FLOAT
        proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(last[-1].output[0], kind, None))
    made = open_graph(proto)
    repair(made)
    return made


def rounded(values, scale):
    return (np.clip(np.rint(values / scale.scale) + scale.zero, 0, 255) - scale.zero) * scale.scale


def by_hand(x, opened=()):
    x = rounded(x, SCALES["x"]) if "x" in opened else x
    r = np.maximum(x @ WEIGHTS["a"], 0)
    r = rounded(r, SCALES["r"]) if "r" in opened else r
    y = r @ WEIGHTS["b"]
    return rounded(y, SCALES["y"]) if "y" in opened else y


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("opened", [(), ("x",), ("r",), ("y",), ("x", "y")])
def test_open_gates_round_and_closed_ones_do_not(opened, opset):
    gated = Gated(net(opset), SCALES)
    x = random(3, 6, seed=2)
    ((found,),) = gated.run({"x": x}, [gated.values.index(name) for name in opened])
    assert np.allclose(found, by_hand(x, opened), atol=1e-4)


def test_harm_is_the_share_of_the_error():
    items = [{"x": random(3, 6, seed=seed)} for seed in (3, 4)]
    found = Gated(net(), SCALES).harm(items)
    for name in SCALES:
        shares = []
        for item in items:
            clean, dirty = by_hand(item["x"]), by_hand(item["x"], (name,))
            shares.append(np.square(dirty - clean).sum() / np.square(clean - clean.mean()).sum())
        assert found[name] == pytest.approx(np.mean(shares), rel=1e-3)


def test_the_model_is_as_it_was():
    made = net()
    before = [(n.name, [v.name for v in n.inputs if v]) for n in made.graph]
    Gated(made, SCALES).harm([{"x": random(3, 6)}])
    assert [(n.name, [v.name for v in n.inputs if v]) for n in made.graph] == before
    assert [v.name for v in made.graph.inputs] == ["x"] and [v.name for v in made.graph.outputs] == ["y"]


def test_a_choice_is_judged_by_what_it_is_made_of():
    made = net(last=[node("Softmax", ["y"], ["p"], name="soft", axis=-1)])
    assert [[value.name for value in group] for group in answers(made.graph)] == [["p", "y"]]
    made = net(last=[node("ArgMax", ["y"], ["i"], name="best", axis=-1)])
    assert [[value.name for value in group] for group in answers(made.graph)] == [["y"]]


def test_distances():
    one = np.array([1.0, 2.0, 3.0])
    assert distance([[one]], [[one]]) == 0.0
    assert distance([[one]], [[one + 0.1]]) == pytest.approx(0.03 / 2)
    assert distance([[one]], [[one[:2]]]) == 1.0  # another number of boxes
    assert distance([[np.empty(0)]], [[np.empty(0)]]) == 0.0
    assert distance([[one], [one]], [[one], [one[:2]]]) == 0.5  # the mean of the outputs
    assert distance([[one, one]], [[one, one[:2]]]) == 1.0  # the worst of what tells about one


def test_distances_of_answers_that_are_not_numbers_or_all_the_same():
    masked = np.array([-np.inf, 2.0, 4.0])
    assert distance([[masked]], [[masked]]) == 0.0
    assert distance([[masked]], [[masked + 0.1]]) == pytest.approx(0.02 / 2)
    assert distance([[masked]], [[np.array([0.0, 2.0, 4.0])]]) == 1.0
    assert distance([[np.ones(4)]], [[np.ones(4) + 1e-9]]) < 1e-9
    assert distance([[np.zeros(4)]], [[np.zeros(4)]]) == 0.0 and distance([[np.zeros(4)]], [[np.ones(4)]]) == 1.0


def with_sequence(*outputs):
    """A model that gives a sequence of what it computes and of a part of that, of another length."""
    nodes = [
        node("MatMul", ["x", "a"], ["y"], name="one"), node("Slice", ["y", "from", "to"], ["part"], name="part"),
        node("SequenceConstruct", ["y", "part"], ["s"], name="s"),
    ]  # fmt: skip
    numbers = {"from": np.array([0]), "to": np.array([2])}
    proto = model(nodes, {"x": [3, 6]}, {"y": [3, 8]}, WEIGHTS | numbers)
    known = {"y": proto.graph.output[0], "s": onnx.helper.make_tensor_sequence_value_info("s", 1, None)}
    del proto.graph.output[:]
    proto.graph.output.extend([known[name] for name in outputs])
    onnx.checker.check_model(proto)
    return open_graph(proto)


@pytest.mark.parametrize("outputs", [("y", "s"), ("s",)])
def test_a_sequence_is_judged_by_what_it_is_made_of(outputs):
    made = with_sequence(*outputs)
    assert [value.name for group in answers(made.graph) for value in group] == ["y", "part"]
    assert Gated(made, {"x": SCALES["x"]}).harm([{"x": random(3, 6)}])["x"] > 0


def test_the_group_that_does_the_most_for_its_size_is_halved_first(monkeypatch):
    """Nine that do more together than four, but less each: the four are told apart, the nine are not."""
    harms = [1.5, 0.7, 0.0, 0.0, *[0.02] * 5, *[0.25] * 9]
    asked = []

    def measure(group):
        asked.append(tuple(group))
        return sum(harms[index] for index in group)

    monkeypatch.setattr(gating, "_RUNS", 6)
    found = list(gating._halved(list(range(18)), measure, 0.0))
    assert sorted(index for _, group in found for index in group) == list(range(18))
    assert all(harm == pytest.approx(sum(harms[index] for index in group)) for harm, group in found)
    assert asked[1:] == [tuple(range(9)), tuple(range(9, 18)), (0, 1, 2, 3), (4, 5, 6, 7, 8), (0, 1), (2, 3)]
