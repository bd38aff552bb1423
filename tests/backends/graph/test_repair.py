# SPDX-License-Identifier: Apache-2.0
"""A repaired graph computes what it did, in fewer nodes; what cannot be folded stays."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.repair import repair
from onnx_graphs import model, random, run


def repaired(proto):
    opened = open_graph(proto)
    notes = repair(opened)
    made = ir.to_proto(opened)
    onnx.checker.check_model(made)
    return made, Counter(n.op_type for n in made.graph.node), notes


def same(proto, made, **feeds):
    for before, after in zip(run(proto, **feeds), run(made, **feeds)):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def batch_norm(channels, seed=1):
    parts = random(4, channels, seed=seed)
    return {"scale": parts[0], "shift": parts[1], "mean": parts[2], "variance": np.abs(parts[3]) + 0.1}


CONVOLUTIONS = {
    "plain": ("Conv", (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (4, 1, 3, 3), {"group": 4}),
    "grouped": ("Conv", (6, 2, 1, 1), {"group": 2}),
    "transposed": ("ConvTranspose", (4, 6, 2, 2), {"strides": [2, 2]}),
    "transposed in groups": ("ConvTranspose", (4, 3, 2, 2), {"group": 2}),
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_batch_norm_is_folded_into_every_kind_of_convolution(kind, bias):
    op, shape, attributes = CONVOLUTIONS[kind]
    channels = shape[0] if op == "Conv" else shape[1] * attributes.get("group", 1)
    constants = {"w": random(*shape), **batch_norm(channels)} | ({"b": random(channels, seed=3)} if bias else {})
    nodes = [
        node(op, ["x", "w", "b"][: 2 + bias], ["c"], **attributes),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4, 5, 5]}, {"y": None}, constants)
    made, ops, notes = repaired(proto)
    assert ops == {op: 1} and made.graph.output[0].name == "y" and "folded" in notes[0][1]
    same(proto, made, x=random(2, 4, 5, 5, seed=4))


@pytest.mark.parametrize(
    ("op", "constant", "folds"),
    [
        ("Mul", random(6, 1, 1), True), ("Add", random(1, 6, 1, 1), True), ("Sub", np.float32(2.0), True),
        ("Div", random(6, 1, 1) + 3, True), ("Add", random(5), False),
        ("Add", random(1, 1, 1, 1, 1), False), ("Mul", random(1, 6, 5, 5), False),
    ],
)  # fmt: skip
def test_products_and_sums_with_constants(op, constant, folds):
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node(op, ["c", "k"], ["y"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": random(6, 4, 3, 3), "k": constant})
    made, ops, _ = repaired(proto)
    assert ops == ({"Conv": 1} if folds else {"Conv": 1, op: 1})
    same(proto, made, x=random(1, 4, 5, 5, seed=2))


def test_a_weight_that_two_use_is_folded_for_one_only():
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Mul", ["a", "k"], ["y"]), node("Conv", ["x", "w"], ["z"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "z": None}, {"w": random(6, 4, 1, 1), "k": random(6, 1, 1)})
    made, ops, _ = repaired(proto)
    assert ops == {"Conv": 2}
    same(proto, made, x=random(1, 4, 5, 5))


def test_what_others_read_too_is_not_folded():
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"], ["m"]), node("Add", ["c", "m"], ["y"])]
    proto = model(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "c": None}, {"w": random(6, 4, 1, 1), "k": random(6, 1, 1)})
    made, ops, _ = repaired(proto)
    assert ops == {"Conv": 1, "Mul": 1, "Add": 1}
    same(proto, made, x=random(1, 4, 5, 5))


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed):
    weight = random(6, 4) if transposed else random(4, 6)
    nodes = [node("Gemm", ["x", "w", "b"], ["c"], transB=transposed), node("Mul", ["c", "k"], ["y"])]
    proto = model(nodes, {"x": [3, 4]}, {"y": None}, {"w": weight, "b": random(6), "k": random(6, seed=5)})
    made, ops, _ = repaired(proto)
    assert ops == {"Gemm": 1}
    same(proto, made, x=random(3, 4))


def swish(first, last, factor):
    nodes = [
        node("Add", ["x", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["c"]),
        node("Mul", ["x", "c"], ["m"]) if first == "Mul" else node(last, ["c", "f"], ["m"]),
        node(last, ["m", "f"], ["y"]) if first == "Mul" else node("Mul", ["m", "x"], ["y"]),
    ]
    constants = {"three": 3.0, "zero": 0.0, "six": 6.0, "f": factor}
    return model(nodes, {"x": [2, 9]}, {"y": None}, {k: np.float32(v) for k, v in constants.items()})


@pytest.mark.parametrize(("first", "last", "factor"), [("Mul", "Div", 6), ("Mul", "Mul", 1 / 6), ("Div", "Div", 6)])
def test_hard_swish_is_said_in_two_nodes(first, last, factor):
    proto = swish(first, last, factor)
    made, ops, _ = repaired(proto)
    assert ops == {"HardSigmoid": 1, "Mul": 1} and made.graph.output[0].name == "y"
    same(proto, made, x=random(2, 9) * 4)


def test_what_only_looks_like_hard_swish_stays():
    proto = swish("Mul", "Div", 5.0)
    made, ops, _ = repaired(proto)
    assert ops == {"Add": 1, "Clip": 1, "Mul": 1, "Div": 1}
    same(proto, made, x=random(2, 9) * 4)


def test_constants_are_computed_and_idle_nodes_go():
    nodes = [
        node("Constant", [], ["w0"], value=onnx.numpy_helper.from_array(random(24))),
        node("Reshape", ["w0", "shape"], ["w"]),
        node("Identity", ["x"], ["i"]),
        node("Dropout", ["i"], ["d"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("Identity", ["m"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, {"shape": np.array([4, 6])})
    made, ops, _ = repaired(proto)
    assert ops == {"MatMul": 1} and made.graph.output[0].name == "y"
    same(proto, made, x=random(2, 4))


def test_what_was_given_is_not_changed():
    proto = swish("Mul", "Div", 6)
    before = proto.SerializeToString()
    repaired(proto)
    assert proto.SerializeToString() == before


def gate(clip, before, after, shape=(2, 9)):
    """A gate of `x` in the given words; constants are numbers in the lists of inputs."""
    constants, nodes, value = {}, [], "x"
    for count, (op, *numbers) in enumerate([*before, *clip, *after]):
        names = [f"k{count}.{index}" for index in range(len(numbers))]
        constants |= {name: np.float32(number) for name, number in zip(names, numbers) if number != "x"}
        given = ["x" if number == "x" else name for name, number in zip(names, numbers)]
        nodes.append(node(op, [value, *given], [value := f"v{count}"], name=f"n{count}"))
    nodes.append(node("Identity", [value], ["y"]))
    return model(nodes, {"x": list(shape)}, {"y": None}, constants)


CLIPS = {
    "Clip": [("Clip", 0, 6)],
    "Min of Max": [("Max", 0), ("Min", 6)],
    "Max of Min": [("Min", 6), ("Max", 0)],
    "Relu and Min": [("Relu",), ("Min", 6)],
}


@pytest.mark.parametrize("after", [[("Div", 6)], [("Mul", 1 / 6)]], ids=str)
@pytest.mark.parametrize("clip", CLIPS)
def test_a_hard_sigmoid_is_said_in_one_node(clip, after):
    proto = gate(CLIPS[clip], [("Add", 3)], after)
    made, ops, notes = repaired(proto)
    assert ops == {"HardSigmoid": 1} and "gate" in notes[-1][1]
    same(proto, made, x=random(2, 9) * 4)


@pytest.mark.parametrize(
    "after", [[("Mul", "x"), ("Div", 6)], [("Div", 6), ("Mul", "x")], [("Mul", "x"), ("Mul", 1 / 6)]]
)
@pytest.mark.parametrize("clip", CLIPS)
def test_hard_swish_in_any_words(clip, after):
    proto = gate(CLIPS[clip], [("Add", 3)], after)
    made, ops, _ = repaired(proto)
    assert ops == {"HardSigmoid": 1, "Mul": 1}
    same(proto, made, x=random(2, 9) * 4)


def test_hard_swish_whose_division_is_done_to_its_input():
    nodes = [
        node("Add", ["x", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["c"]), node("Div", ["x", "six"], ["d"]),
        node("Mul", ["d", "c"], ["y"]),
    ]  # fmt: skip
    constants = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    proto = model(nodes, {"x": [2, 9]}, {"y": None}, constants)
    made, ops, _ = repaired(proto)
    assert ops == {"HardSigmoid": 1, "Mul": 1}
    same(proto, made, x=random(2, 9) * 4)


numbers = st.floats(-4, 4).map(lambda number: round(number, 3))


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 3), numbers, numbers, st.floats(0.5, 4), st.sampled_from(["Mul", "Div"]))
def test_any_line_clipped_and_scaled_to_between_0_and_1(slope, shift, low, width, last):
    factor = 1 / width if last == "Mul" else width
    proto = gate([("Clip", low, low + width)], [("Mul", slope), ("Sub", shift)], [("Sub", low), (last, factor)])
    made, ops, _ = repaired(proto)
    assert ops["HardSigmoid"] == 1 and "Clip" not in ops
    x = random(2, 9) * 3
    np.testing.assert_allclose(run(made, x=x)[0], run(proto, x=x)[0], atol=2e-5)


@pytest.mark.parametrize(
    ("clip", "before", "after"),
    [
        ([("Clip", 0, 6)], [], [("Div", 6)]),  # without a sum it is the end of the layer before
        ([("Clip", 0, 6)], [("Add", 3)], [("Div", 5)]),
        ([("Clip", 1, 6)], [("Add", 3)], [("Div", 6)]),
        ([("Clip", 0, 6)], [("Add", 3)], [("Mul", -1 / 6)]),
        ([("Max", 0)], [("Add", 3)], [("Div", 6)]),
        ([("Clip", 0, 6)], [("Add", 3)], [("Mul", "x"), ("Add", 1), ("Div", 6)]),
    ],
)  # fmt: skip
def test_what_is_no_gate_stays(clip, before, after):
    proto = gate(clip, before, after)
    made, ops, _ = repaired(proto)
    assert "HardSigmoid" not in ops
    same(proto, made, x=random(2, 9) * 4)


def test_a_gate_that_others_read_in_its_midst_stays():
    nodes = [
        node("Add", ["x", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["c"]), node("Div", ["c", "six"], ["y"]),
        node("Neg", ["c"], ["z"]),
    ]  # fmt: skip
    constants = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    proto = model(nodes, {"x": [2, 9]}, {"y": None, "z": None}, constants)
    assert "HardSigmoid" not in repaired(proto)[1]


def test_a_gate_is_seen_before_its_sum_is_folded_into_the_layer_before():
    nodes = [
        node("GlobalAveragePool", ["x"], ["p"]), node("Conv", ["p", "w", "b"], ["s"]),
        node("Add", ["s", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["c"]),
        node("Div", ["c", "six"], ["g"]), node("Mul", ["x", "g"], ["y"]),
    ]  # fmt: skip
    constants = {
        "three": np.float32(3),
        "zero": np.float32(0),
        "six": np.float32(6),
        "w": random(4, 4, 1, 1),
        "b": random(4),
    }
    proto = model(nodes, {"x": [2, 4, 5, 5]}, {"y": None}, constants)
    made, ops, _ = repaired(proto)
    assert ops == {"GlobalAveragePool": 1, "Conv": 1, "HardSigmoid": 1, "Mul": 1}
    same(proto, made, x=random(2, 4, 5, 5) * 3)


PICTURE = random(1, 4, 1, 1, seed=7)


@pytest.mark.parametrize(
    ("steps", "attributes", "left"),
    [
        ([("Sub", "x", PICTURE), ("Div", "x", np.abs(PICTURE) + 1)], {}, {}),
        ([("Sub", PICTURE, "x")], {"strides": [2, 2]}, {}),
        ([("Mul", np.float32(1 / 255), "x"), ("Add", "x", PICTURE[0])], {"group": 2}, {}),
        ([("Mul", "x", PICTURE)], {"pads": [1, 1, 1, 1]}, {}),
        ([("Add", "x", PICTURE)], {"pads": [1, 1, 1, 1]}, {"Add": 1}),
        ([("Add", "x", PICTURE)], {"auto_pad": "SAME_UPPER"}, {"Add": 1}),
        ([("Add", "x", random(6))], {}, {"Add": 1}),
        ([("Div", PICTURE, "x")], {}, {"Div": 1}),
    ],
)  # fmt: skip
def test_what_a_picture_is_normalised_with_is_folded_into_the_convolution(steps, attributes, left):
    nodes, constants, value = [], {}, "x"
    for count, (op, *sides) in enumerate(steps):
        constants |= {f"k{count}": next(each for each in sides if not isinstance(each, str))}
        nodes.append(
            node(op, [value if isinstance(each, str) else f"k{count}" for each in sides], [value := f"v{count}"])
        )
    weight = random(6, 4 // attributes.get("group", 1), 3, 3)
    nodes.append(node("Conv", [value, "w"], ["y"], name="conv", **attributes))
    proto = model(nodes, {"x": [2, 4, 6, 6]}, {"y": None}, constants | {"w": weight})
    made, ops, _ = repaired(proto)
    assert ops == {"Conv": 1, **left}
    same(proto, made, x=random(2, 4, 6, 6, seed=5))


def test_a_constant_that_makes_channels_is_not_folded():
    nodes = [node("Sub", ["x", "k"], ["v"]), node("Conv", ["v", "w"], ["y"])]
    proto = model(nodes, {"x": [2, 1, 6, 6]}, {"y": None}, {"k": PICTURE, "w": random(6, 4, 1, 1)})
    made, ops, _ = repaired(proto)
    assert ops == {"Sub": 1, "Conv": 1}
    same(proto, made, x=random(2, 1, 6, 6))


@pytest.mark.parametrize(
    ("orders", "left"),
    [
        ([[0, 3, 1, 2], [0, 2, 3, 1]], 0), ([[0, 3, 1, 2], [0, 3, 1, 2]], 2), ([None, None], 0),
        ([None, [3, 2, 1, 0]], 0), ([[0, 1, 2, 3]], 0), ([[1, 0, 2, 3], [0, 2, 1, 3], [0, 2, 1, 3], [1, 0, 2, 3]], 0),
    ],
)  # fmt: skip
def test_transposes_that_undo_one_another_go(orders, left):
    nodes, value = [node("Relu", ["x"], ["r"])], "r"
    for count, order in enumerate(orders):
        nodes.append(node("Transpose", [value], [value := f"t{count}"], **({} if order is None else {"perm": order})))
    nodes.append(node("Sigmoid", [value], ["y"]))
    proto = model(nodes, {"x": [2, 3, 4, 5]}, {"y": None}, {})
    made, ops, _ = repaired(proto)
    assert ops["Transpose"] == left
    same(proto, made, x=random(2, 3, 4, 5))


def test_a_transpose_that_others_read_stays_for_them():
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Transpose", ["t"], ["u"], perm=[1, 0]),
        node("Relu", ["u"], ["y"]), node("Relu", ["t"], ["z"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 3]}, {"y": None, "z": None}, {})
    made, ops, _ = repaired(proto)
    assert ops == {"Transpose": 1, "Relu": 2}
    same(proto, made, x=random(2, 3))
