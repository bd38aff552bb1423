# SPDX-License-Identifier: Apache-2.0
"""Scaling along every link leaves what the model computes as it was, to the last bit for powers of two."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.helper import make_node as node

from fewbit.backends.graph.flow import Places
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.rescaling import rescale
from fewbit.backends.graph.structure import find_structure
from fewbit.errors import UsageError
from linked_graphs import LINKED
from onnx_graphs import model, random, run


def feeds(proto):
    shape = [side.dim_value for side in proto.graph.input[0].type.tensor_type.shape.dim]
    return {"x": random(*shape, seed=50)}


def rescaled(opened, draw, seed=0):
    """The model with every link scaled by factors that `draw` makes of a generator and a length."""
    generator = torch.Generator().manual_seed(seed)
    places = Places(opened)
    for link in find_structure(opened).links:
        factors = draw(generator, max(link.channels) + 1)
        used = torch.tensor([c in link.channels for c in range(len(factors))])
        before = {name: value.const_value.numpy().copy() for name, value in opened.graph.initializers.items()}
        rescale(opened, link.producer, link.consumers, link.channels, factors.where(used, 1), places)
        after = {name: value.const_value.numpy() for name, value in opened.graph.initializers.items()}
        assert any(name not in before or not np.array_equal(after[name], before[name]) for name in after)
    made = ir.to_proto(opened)
    onnx.checker.check_model(made)
    return made


def powers(generator, length):
    return 2.0 ** torch.randint(1, 5, (length,), generator=generator)


def logarithmic(generator, length):
    return torch.exp(torch.randn(length, generator=generator))


@pytest.mark.parametrize("name", LINKED)
def test_the_model_computes_the_same(name):
    proto = LINKED[name][0]
    wanted = run(proto, **feeds(proto))
    for found, before in zip(run(rescaled(open_graph(proto), powers), **feeds(proto)), wanted, strict=True):
        np.testing.assert_array_equal(found, before)
    for found, before in zip(run(rescaled(open_graph(proto), logarithmic), **feeds(proto)), wanted, strict=True):
        np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


def test_weights_that_others_read_stay():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="a"), node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "w"], ["b"], name="b"), node("Sigmoid", ["b"], ["s"]),
        node("MatMul", ["s", "w"], ["y"], name="c"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, {"w": random(4, 4)})
    made = rescaled(open_graph(proto), powers)
    np.testing.assert_array_equal(run(made, **feeds(proto))[0], run(proto, **feeds(proto))[0])
    assert len(made.graph.initializer) == 3 and len({n.input[1] for n in made.graph.node if n.op_type == "MatMul"}) == 3


def test_a_layer_keeps_the_names_and_shapes_of_its_constants():
    proto = LINKED["attention"][0]
    made = rescaled(open_graph(proto), powers)
    wanted = {i.name: tuple(i.dims) for i in proto.graph.initializer}
    assert {i.name: tuple(i.dims) for i in made.graph.initializer} == wanted


def test_half_precision_stays_half_and_does_not_overflow():
    nodes = [node("MatMul", ["h", "a"], ["c"], name="a"), node("MatMul", ["c", "b"], ["z"], name="b")]
    nodes = [node("Cast", ["x"], ["h"], to=10), *nodes, node("Cast", ["z"], ["y"], to=1)]
    constants = {"a": random(4, 6).astype(np.float16), "b": random(6, 3).astype(np.float16)}
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, constants)
    made = rescaled(open_graph(proto), powers)
    assert {i.data_type for i in made.graph.initializer} == {onnx.TensorProto.FLOAT16}
    opened = open_graph(proto)
    with pytest.raises(UsageError, match="does not fit float16"):
        rescale(opened, "a", ["b"], range(6), torch.full((6,), 1e6))
    np.testing.assert_array_equal(run(ir.to_proto(opened), **feeds(proto))[0], run(proto, **feeds(proto))[0])


def test_layers_inside_a_branch():
    from linked_graphs import several, straight, weights

    body = [node("MatMul", ["x", "a.w"], ["c"], name="a"), node("Relu", ["c"], ["r"])]
    body.append(node("MatMul", ["r", "b.w"], ["inner"], name="b"))
    info = onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)
    other = onnx.helper.make_graph([node("Identity", ["x"], ["inner"], name="same")], "no", [], [info])
    branch = node("If", ["yes"], ["y"], then_branch=onnx.helper.make_graph(body, "yes", [], [info]), else_branch=other)
    proto = several(branch, x={"x": [2, 4]}, yes=np.array(True), **weights(a=(4, 6), b=(6, 4)))
    opened = open_graph(proto)
    (link,) = find_structure(opened).links
    assert (link.producer, link.consumers, link.channels) == ("a", ("b",), straight())
    np.testing.assert_array_equal(run(rescaled(opened, powers), **feeds(proto))[0], run(proto, **feeds(proto))[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factors": torch.tensor([1, 2, 0, 1, 1, 1.0])}, "1 of 6 factors for a are not finite"),
        ({"factors": torch.tensor([1, 2, torch.nan, 1, -1, 1.0])}, "2 of 6 factors"),
        ({"factors": torch.ones(5)}, "5 factors for the 6 output channels"),
        ({"factors": torch.full((8,), 2.0)}, "2 channels of a have a factor but no consumer"),
        ({"producer": "aa"}, "no node 'aa'"),
        ({"producer": "r"}, "Relu r has no constants"),
        ({"consumers": ["a"]}, "a is not linked like this to a"),
        ({"channels": tuple(range(1, 7))}, "7 output channels|not linked like this"),
    ],
)
def test_what_is_refused(change, said):
    nodes = [node("MatMul", ["x", "w"], ["c"], name="a"), node("Relu", ["c"], ["d"], name="r")]
    nodes.append(node("MatMul", ["d", "v"], ["y"], name="b"))
    proto = model(nodes, {"x": [2, 4]}, {"y": None}, {"w": random(4, 6), "v": random(6, 3)})
    opened = open_graph(proto)
    call = {"producer": "a", "consumers": ["b"], "channels": tuple(range(6)), "factors": torch.ones(6)} | change
    with pytest.raises(UsageError, match=said):
        rescale(opened, **call)


def test_a_quantized_layer_is_refused():
    nodes = [node("MatMul", ["x", "w"], ["c"], name="a"), node("DequantizeLinear", ["v", "s"], ["f"], name="dq")]
    nodes.append(node("MatMul", ["c", "f"], ["y"], name="b"))
    constants = {"w": random(4, 6), "v": np.ones((6, 3), np.int8), "s": np.float32(1)}
    opened = open_graph(model(nodes, {"x": [2, 4]}, {"y": None}, constants))
    assert find_structure(opened).links == ()
    with pytest.raises(UsageError, match="b is quantized already"):
        rescale(opened, "a", ["b"], range(6), torch.ones(6))
    with pytest.raises(UsageError, match="b is quantized already"):
        rescale(opened, "b", ["a"], range(3), torch.ones(3))
