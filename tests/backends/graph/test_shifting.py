# SPDX-License-Identifier: Apache-2.0
"""A shift adds to a layer's output channels, wherever the amount has to be put, and to nothing else."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.helper import make_node as node

from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.shifting import shift
from fewbit.errors import UsageError
from onnx_graphs import model, random, run

PICTURE, TOKENS = {"x": [2, 4, 5, 5]}, {"x": [2, 5, 4]}
AMOUNT = random(6, seed=30)


def layer(op, **attributes):
    return lambda *bias: node(op, ["x", "w", *bias], ["y"], name="l", **attributes)


LAYERS = {  # what makes the node, input, weight, how the output channels lie, shapes of a bias
    "Conv": (layer("Conv"), PICTURE, (6, 4, 3, 3), (6, 1, 1), [(6,)]),
    "groups": (layer("Conv", group=2), PICTURE, (6, 2, 1, 1), (6, 1, 1), [(6,)]),
    "ConvTranspose": (layer("ConvTranspose", group=2), PICTURE, (4, 3, 2, 2), (6, 1, 1), [(6,)]),
    "Gemm": (layer("Gemm", alpha=0.5), {"x": [3, 4]}, (4, 6), (6,), [(6,), (1, 6), (3, 6), (3, 1), (1,), ()]),
    "Gemm with beta": (layer("Gemm", beta=0.5, transB=1), {"x": [3, 4]}, (6, 4), (6,), [(6,), (3, 1), ()]),
    "Gemm with no beta": (layer("Gemm", beta=0.0), {"x": [3, 4]}, (4, 6), (6,), [(6,)]),
    "MatMul": (layer("MatMul"), TOKENS, (4, 6), (6,), []),
    "left": (lambda: node("MatMul", ["w", "x"], ["y"], name="l"), TOKENS, (6, 5), (6, 1), []),
    "stack": (layer("MatMul"), TOKENS, (2, 4, 6), (6,), []),
}  # fmt: skip
CASES = [(kind, bias) for kind, (*_, shapes) in LAYERS.items() for bias in (None, *shapes)]


def shifted(proto, amount=AMOUNT, times=1, name="l"):
    opened = open_graph(proto)
    for _ in range(times):
        shift(opened, name, torch.from_numpy(amount))
    made = ir.to_proto(opened)
    onnx.checker.check_model(made)
    assert [v.name for v in made.graph.output] == [v.name for v in proto.graph.output]
    return made


@pytest.mark.parametrize(("kind", "bias"), CASES)
def test_the_amount_is_added_to_the_output(kind, bias):
    make, inputs, shape, along, _ = LAYERS[kind]
    constants = {"w": random(*shape)} | ({} if bias is None else {"b": random(*bias, seed=2) + np.float32(0)})
    proto = model([make(*([] if bias is None else ["b"]))], inputs, {"y": None}, constants)
    feeds = {"x": random(*inputs["x"], seed=3)}
    made = shifted(proto, times=2)
    np.testing.assert_allclose(run(made, **feeds)[0], run(proto, **feeds)[0] + 2 * AMOUNT.reshape(along), atol=1e-5)
    assert len(made.graph.node) == (2 if made.graph.node[0].op_type == "MatMul" else 1)


@pytest.mark.parametrize(("shape", "nodes"), [((6,), 2), ((1, 6), 2), ((), 2), ((5, 6), 2), ((5, 1), 3)])
def test_the_sum_after_a_product_takes_it(shape, nodes):
    """Unless that would make a table of it."""
    made = [node("MatMul", ["x", "w"], ["m"], name="l"), node("Add", ["b", "m"], ["y"])]
    proto = model(made, TOKENS, {"y": None}, {"w": random(4, 6), "b": random(*shape, seed=2) + np.float32(0)})
    after = shifted(proto)
    feeds = {"x": random(2, 5, 4, seed=3)}
    np.testing.assert_allclose(run(after, **feeds)[0], run(proto, **feeds)[0] + AMOUNT, atol=1e-5)
    assert len(after.graph.node) == nodes


def test_a_value_that_is_read_and_given_keeps_its_name_and_its_readers_see_the_sum():
    nodes = [node("MatMul", ["x", "w"], ["m"], name="l"), node("Add", ["m", "b"], ["y"]), node("Relu", ["m"], ["z"])]
    constants = {"w": random(4, 6), "b": random(6, seed=2)}
    proto = model(nodes, TOKENS, {"m": None, "y": None, "z": None}, constants)
    feeds = {"x": random(2, 5, 4, seed=3)}
    m, y, z = run(shifted(proto), **feeds)
    before, _, _ = run(proto, **feeds)
    np.testing.assert_allclose(m, before + AMOUNT, atol=1e-5)
    np.testing.assert_allclose(y, before + AMOUNT + constants["b"], atol=1e-5)
    np.testing.assert_allclose(z, np.maximum(before + AMOUNT, 0), atol=1e-5)


def test_a_bias_that_two_layers_read_is_shifted_for_one():
    nodes = [node("Conv", ["x", "w", "b"], ["y"], name="l"), node("Conv", ["x", "w", "b"], ["z"], name="m")]
    proto = model(nodes, PICTURE, {"y": None, "z": None}, {"w": random(6, 4, 1, 1), "b": random(6)})
    feeds = {"x": random(2, 4, 5, 5, seed=3)}
    y, z = run(shifted(proto), **feeds)
    np.testing.assert_allclose(y, z + AMOUNT.reshape(6, 1, 1), atol=1e-5)
    np.testing.assert_array_equal(z, run(proto, **feeds)[1])


def test_a_bias_that_the_graph_computes():
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], name="l", beta=0.5)]
    proto = model(nodes, {"x": [3, 4], "b": [6]}, {"y": None}, {"w": random(4, 6)})
    feeds = {"x": random(3, 4, seed=3), "b": random(6, seed=4)}
    np.testing.assert_allclose(run(shifted(proto), **feeds)[0], run(proto, **feeds)[0] + AMOUNT, atol=1e-5)


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_half_precision_stays_half(op):
    shape, inputs = ((6, 4, 1, 1), PICTURE) if op == "Conv" else ((4, 6), TOKENS)
    nodes = [node("Cast", ["x"], ["h"], to=10), node(op, ["h", "w"], ["z"], name="l"), node("Cast", ["z"], ["y"], to=1)]
    proto = model(nodes, inputs, {"y": None}, {"w": random(*shape).astype(np.float16)})
    made = shifted(proto)
    assert {i.data_type for i in made.graph.initializer} == {onnx.TensorProto.FLOAT16}
    feeds = {"x": random(*inputs["x"], seed=3)}
    along = (6, 1, 1) if op == "Conv" else (6,)
    np.testing.assert_allclose(run(made, **feeds)[0], run(proto, **feeds)[0] + AMOUNT.reshape(along), atol=2e-2)


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_a_layer_inside_a_loop(op):
    """Three rounds, each adding the layer's output to the state."""
    shape, inputs, along = ((4, 4, 1, 1), PICTURE, (4, 1, 1)) if op == "Conv" else ((4, 4), TOKENS, (4,))
    info = onnx.helper.make_tensor_value_info
    inside = [node(op, ["x", "w"], ["o"], name="l"), node("Add", ["s", "o"], ["t"], name="sum")]
    body = onnx.helper.make_graph(
        [*inside, node("Identity", ["go"], ["on"])],
        "body",
        [info("i", onnx.TensorProto.INT64, []), info("go", onnx.TensorProto.BOOL, []), info("s", 1, inputs["x"])],
        [info("on", onnx.TensorProto.BOOL, []), info("t", 1, inputs["x"])],
    )  # fmt: skip
    nodes = [node("Loop", ["three", "yes", "x"], ["y"], body=body)]
    constants = {"w": random(*shape), "three": np.array(3), "yes": np.array(True)}
    proto = model(nodes, inputs, {"y": inputs["x"]}, constants)
    feeds = {"x": random(*inputs["x"], seed=3)}
    amount = random(4, seed=9)
    found = run(shifted(proto, amount), **feeds)[0]
    np.testing.assert_allclose(found, run(proto, **feeds)[0] + 3 * amount.reshape(along), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "amount", "said"),
    [
        ("ll", AMOUNT, "'ll' is no layer"),
        ("r", AMOUNT, "'r' is no layer"),
        ("l", AMOUNT[:5], r"an amount of shape \(5,\) for l"),
        ("l", AMOUNT.reshape(6, 1), "an amount of shape"),
        ("l", AMOUNT * np.nan, "not finite"),
    ],
)
def test_what_is_refused(name, amount, said):
    nodes = [node("MatMul", ["x", "w"], ["m"], name="l"), node("Relu", ["m"], ["y"], name="r")]
    proto = model(nodes, TOKENS, {"y": None}, {"w": random(4, 6)})
    with pytest.raises(UsageError, match=said):
        shifted(proto, amount, name=name)
