# SPDX-License-Identifier: Apache-2.0
"""Layers of a graph, and where channels lie in weights of any layout."""

import numpy as np
import pytest

from fewbit.graph.layers import Layer, WeightAxes, bias_of, layers, shared_inputs
from neutral_graphs import Maker, run


@pytest.mark.parametrize(
    ("layout", "shape", "groups", "transposed", "view", "inputs", "outputs"),
    [
        ("OI", (4, 3), 1, False, (4, 3), (1, 3), (4, 1)),
        ("IO", (3, 4), 1, False, (3, 4), (3, 1), (1, 4)),
        ("EOI", (5, 4, 3), 1, False, (5, 4, 3), (1, 1, 3), (1, 4, 1)),
        ("OIHW", (6, 2, 3, 3), 3, False, (3, 2, 2, 3, 3), (3, 1, 2, 1, 1), (3, 2, 1, 1, 1)),
        ("OHWI", (6, 3, 3, 2), 3, False, (3, 2, 3, 3, 2), (3, 1, 1, 1, 2), (3, 2, 1, 1, 1)),
        ("GOIHW", (3, 2, 2, 1, 1), 3, False, (3, 2, 2, 1, 1), (3, 1, 2, 1, 1), (3, 2, 1, 1, 1)),
        ("1HWO", (1, 3, 3, 8), 4, False, (1, 3, 3, 4, 2), (1, 1, 1, 4, 1), (1, 1, 1, 4, 2)),
        ("IOHW", (6, 2, 2, 2), 3, True, (3, 2, 2, 2, 2), (3, 2, 1, 1, 1), (3, 1, 2, 1, 1)),
    ],
)
def test_where_channels_lie(layout, shape, groups, transposed, view, inputs, outputs):
    axes = WeightAxes(layout, shape, groups, transposed=transposed)
    assert (axes.view, axes.in_shape, axes.out_shape) == (view, inputs, outputs)


@pytest.mark.parametrize(
    ("op", "data", "weight", "shape", "groups"),
    [
        ("conv", "NCHW", "OIHW", (6, 2, 3, 3), 2),
        ("conv", "NHWC", "OHWI", (6, 3, 3, 2), 2),
        ("conv", "NHWC", "1HWO", (1, 3, 3, 8), 4),
        ("conv", "NCHW", "GOIHW", (2, 3, 2, 3, 3), 2),
        ("conv_transpose", "NCHW", "IOHW", (4, 3, 2, 2), 2),
    ],
)
def test_scaling_inputs_and_weights_by_these_axes_cancels(op, data, weight, shape, groups):
    """The axes are right if dividing the weight along its inputs undoes factors of the data, in every layout."""
    maker = Maker(x=(2, 4, 5, 5) if data == "NCHW" else (2, 5, 5, 4))
    y = maker.node(op, "x", maker.weight("w", *shape), data=data, weight=weight, groups=groups)
    graph = maker.graph(y)
    (layer,) = layers(graph)
    factors, gains = np.arange(1.0, 5.0), np.arange(1.0, 1.0 + layer.out_channels)
    x = maker.sample()["x"]
    along = [4 if letter == "C" else 1 for letter in data]
    changed = x * factors.reshape(along)
    expected = run(graph, {"x": x})[0]
    scaled = graph.constants["w"].read().reshape(layer.axes.view)
    scaled = scaled / factors.reshape(layer.axes.in_shape) * gains.reshape(layer.axes.out_shape)
    maker.constant("w", scaled.reshape(shape))
    out = [len(gains) if letter == "C" else 1 for letter in data]
    np.testing.assert_allclose(run(maker.graph(y), {"x": changed})[0], expected * gains.reshape(out))
    assert layer.in_channels == 4


def test_weights_behind_transposes_have_the_layout_of_what_is_stored():
    maker = Maker(x=(2, 3, 8))
    turned = maker.node("transpose", maker.weight("w", 4, 8), perm=(1, 0))
    y = maker.node("matmul", "x", turned)
    left = maker.node("matmul", maker.weight("v", 6, 3), y)
    graph = maker.graph(left)
    assert [(layer.weight, layer.layout, layer.shape) for layer in layers(graph)] == [
        ("w", "OI", (4, 8)),
        ("v", "OI", (6, 3)),
    ]
    assert [layer.inputs for layer in layers(graph)] == [("x",), (y,)]


def test_a_bias_may_be_added_behind_the_product():
    maker = Maker(x=(2, 3, 8))
    product = maker.node("matmul", "x", maker.weight("w", 8, 4))
    y = maker.node("add", product, maker.weight("b", 4))
    graph = maker.graph(y)
    (layer,) = layers(graph)
    assert (layer.bias, layer.outputs) == ("b", (y,))
    returned = maker.graph(y, product)  # the product itself is an output, so the sum is not part of the layer
    assert bias_of(returned, returned.nodes[0]) == (None, product)


def test_positions_added_behind_a_product_are_no_bias():
    maker = Maker(x=(2, 4, 8))
    y = maker.node("add", maker.node("matmul", "x", maker.weight("w", 8, 4)), maker.weight("p", 4, 1))
    assert layers(maker.graph(y))[0].bias is None


def test_a_layer_that_is_called_twice_is_one_layer():
    maker = Maker(x=(2, 8), z=(2, 8))
    weight = maker.weight("w", 8, 8)
    one, two = (maker.node("matmul", name, weight, transpose_b=True) for name in ("x", "z"))
    (layer,) = layers(maker.graph(one, two))
    assert (layer.nodes, layer.inputs, layer.outputs) == (("n0", "n1"), ("x", "z"), (one, two))


def test_a_tied_table_and_head_are_two_layers():
    maker = Maker(ids=(2, 3))
    maker.values["ids"] = np.array([[0, 1, 2], [3, 4, 5]])
    table = maker.weight("table", 6, 8)
    x = maker.node("gather", table, "ids", axis=0)
    y = maker.node("matmul", x, table, transpose_b=True)
    embedding, head = layers(maker.graph(y))
    assert (embedding.op, embedding.layout, head.op, head.layout) == ("gather", "VO", "matmul", "OI")
    assert (embedding.in_channels, embedding.out_channels, embedding.in_axis) == (6, 8, None)


def test_layers_that_read_the_same_activation():
    maker = Maker(x=(2, 3, 8))
    flat = maker.node("reshape", maker.node("cast", "x"), shape=(6, 8))
    other = maker.node("reshape", "x", shape=(2, 24))
    outputs = [
        maker.linear("q", "x", 4),
        maker.linear("k", flat, 4),
        maker.linear("o", other, 4),
        maker.linear("v", "x", 4),
    ]
    groups = shared_inputs(maker.graph(*outputs))
    assert [[layer.weight for layer in group] for group in groups] == [["q.weight", "k.weight", "v.weight"]]


def test_a_product_of_two_activations_is_no_layer():
    maker = Maker(x=(2, 3, 8))
    assert layers(maker.graph(maker.node("matmul", "x", "x", transpose_b=True))) == ()


def test_properties_of_a_grouped_layer():
    layer = Layer("c", "conv_transpose", "w", (4, 3, 2, 2), "IOHW", groups=2)
    assert (layer.in_channels, layer.out_channels, layer.in_axis, layer.out_axis) == (4, 6, 0, 1)
