# SPDX-License-Identifier: Apache-2.0
"""Neutral graphs as data: names, order, and constants behind other operators."""

import numpy as np
import pytest

from fewbit.errors import ModelError
from fewbit.graph.ir import Constant, ConstantView, Graph, Node, Value, constant_view, is_float, scalar


def constant(name, *shape, value=0.0, dtype="float32"):
    return Constant(name, shape, dtype, lambda: np.full(shape, value))


def graph(nodes, shapes, constants, inputs=(), outputs=(), dtypes=None):
    values = {name: Value(name, shape, (dtypes or {}).get(name, "float32")) for name, shape in shapes.items()}
    return Graph(inputs, outputs, tuple(nodes), values, {item.name: item for item in constants})


def test_every_problem_of_a_graph_is_named_at_once():
    nodes = [
        Node("a", "relu", ("later",), ("b",)),
        Node("a", "unheard_of", ("x",), ("later",)),
        Node("c", "relu", ("x",), ("later",)),
    ]
    broken = graph(nodes, {"x": (2,), "b": (2,), "later": (2,), "w": (2,)}, [constant("w", 2)], ("x",), ("missing",))
    with pytest.raises(ModelError) as error:
        broken.validate()
    for problem in (
        "a reads later, which does not exist yet", "unknown operator unheard_of", "two nodes are called a",
        "c computes later again", "w is a value and a constant", "the output missing does not exist",
    ):  # fmt: skip
        assert problem in error.value.what


def test_a_body_that_captures_a_value_is_one_of_its_readers():
    body = Node("if", "opaque", ("flag",), ("y",), captures=("x", "w"))
    model = graph([body], {"flag": (), "x": (2, 3), "y": (2, 3)}, [constant("w", 3)], ("flag", "x"), ("y",))
    model.validate()
    assert model.consumers["x"] == [(body, None)] and model.consumers["w"] == [(body, None)]
    assert body.reads == ("flag", "x", "w")
    assert model.census()[1] == {"": 1}


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        (Node("n", "transpose", ("w",), ("v",), {"perm": (2, 0, 1)}), (4, 2, 3), (2, 0, 1)),
        (Node("n", "identity", ("w",), ("v",)), (2, 3, 4), (0, 1, 2)),
        (Node("n", "cast", ("w",), ("v",)), (2, 3, 4), (0, 1, 2)),
        (Node("n", "reshape", ("w",), ("v",)), (2, 1, 3, 4), (0, None, 1, 2)),
        (Node("n", "reshape", ("w",), ("v",)), (6, 4), None),
        (Node("n", "expand", ("w",), ("v",)), (5, 2, 3, 4), (None, 0, 1, 2)),
        (Node("n", "gather", ("w", "i"), ("v",), {"axis": 0}), (7, 3, 4), (None, 1, 2)),
        (Node("n", "gather", ("w", "i"), ("v",), {"axis": 1}), (2, 7, 4), None),
        (Node("n", "dequantize", ("w",), ("v",)), (2, 3, 4), None),
        (Node("n", "relu", ("w",), ("v",)), (2, 3, 4), None),
    ],
)
def test_constants_behind_other_operators(node, shape, expected):
    model = graph([node], {"v": shape, "i": (7,)}, [constant("w", 2, 3, 4)], ("i",))
    assert constant_view(model, "v") == (None if expected is None else ConstantView("w", expected))


def test_the_sum_of_a_vector_and_a_number_is_the_vector_with_an_offset():
    nodes = [
        Node("c", "cast", ("w",), ("wide",)),
        Node("a", "add", ("one", "wide"), ("gain",)),
        Node("b", "add", ("m", "one"), ("matrix",)),
    ]
    constants = [constant("w", 4, dtype="bfloat16"), constant("one", value=1.0), constant("m", 2, 2)]
    model = graph(nodes, {"wide": (4,), "gain": (4,), "matrix": (2, 2)}, constants)
    assert constant_view(model, "gain") == ConstantView("w", (0,), 1.0)
    assert constant_view(model, "matrix") is None
    assert scalar(model, "one") == 1.0 and scalar(model, "w") is None and scalar(model, None) is None


def test_a_cast_to_integers_is_not_the_constant():
    model = graph([Node("c", "cast", ("w",), ("v",))], {"v": (2,)}, [constant("w", 2)], dtypes={"v": "int8"})
    assert constant_view(model, "v") is None
    assert is_float("float8_e4m3fn") and not is_float("bool")


def test_dynamic_sizes_take_the_example():
    assert Value("x", ("n", 3)).dims is None
    assert Value("x", ("n", 3), example=(2, 3)).dims == (2, 3)
    assert Value("x").dims is None and Value("x", ()).dims == ()
