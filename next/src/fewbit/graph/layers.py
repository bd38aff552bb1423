# SPDX-License-Identifier: Apache-2.0
"""Layers: the operators that multiply by a stored weight, with the roles of the weight's axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from fewbit.graph.ir import Constant, ConstantView, Graph, Node, constant_view

LAYER_OPERATORS = ("conv", "conv_transpose", "matmul", "gather")


@dataclass(frozen=True)
class Layer:
    """A weight and the nodes that multiply by it.

    Args:
        name: for people and patterns: the module's path, or the node's name.
        op: `conv`, `conv_transpose`, `matmul`, `gather` (an embedding).
        weight: name of the constant.
        shape: of the constant, as stored.
        layout: the role of each stored axis: O outputs, I inputs, G groups, E experts or other stacked weights, V rows
            of a table, D H W the kernel, 1 an axis of size one. An embedding is "VO".
        groups: of a convolution.
        nodes: the nodes; several if the model calls the layer several times.
        inputs: the value each of them reads.
        outputs: the value each of them computes, a bias that is added behind it included.
        bias: name of the bias, or `None`.

    >>> layer = Layer("fc", "matmul", "fc.weight", (4, 3), "OI")
    >>> layer.out_axis, layer.in_axis, layer.out_channels, layer.in_channels
    (0, 1, 4, 3)
    """

    name: str
    op: str
    weight: str
    shape: tuple[int, ...]
    layout: str
    groups: int = 1
    nodes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    bias: str | None = None

    @property
    def out_axis(self) -> int:
        """The stored axis of the output channels; of a grouped transposed convolution, those of one group."""
        return self.layout.index("O")

    @property
    def in_axis(self) -> int | None:
        """The stored axis of the input channels, of one group if there are several; `None` if there is no such axis."""
        return self.layout.index("I") if "I" in self.layout else None

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return prod(self.axes.out_shape)

    @property
    def in_channels(self) -> int:
        """Input channels of all groups; rows of a table."""
        if self.op == "gather":
            return self.shape[self.layout.index("V")]
        return prod(self.axes.in_shape)

    @property
    def axes(self) -> WeightAxes:
        """Where its channels lie in the weight."""
        return WeightAxes(self.layout, self.shape, self.groups, transposed=self.op == "conv_transpose")


class WeightAxes:
    """Where input and output channels lie in a stored weight, whatever its layout and groups.

    The weight is reshaped to `view`. There an array with one number per input channel, reshaped to `in_shape`, and one
    with a number per output channel, reshaped to `out_shape`, broadcast.

    >>> axes = WeightAxes("OIHW", (6, 2, 3, 3), groups=3)
    >>> axes.view, axes.in_shape, axes.out_shape
    ((3, 2, 2, 3, 3), (3, 1, 2, 1, 1), (3, 2, 1, 1, 1))
    """

    def __init__(self, layout: str, shape: tuple[int, ...], groups: int = 1, *, transposed: bool = False):
        letters, sizes = list(layout), list(shape)
        if groups > 1 and "G" not in letters:
            # One of the channel axes counts all groups: O, or I of a transposed convolution.
            axis = letters.index("I" if transposed else "O")
            letters.insert(axis, "G")
            sizes[axis : axis + 1] = [groups, shape[axis] // groups]
        self.letters, self.view = "".join(letters), tuple(sizes)
        self.in_shape = tuple(size if letter in "GI" else 1 for letter, size in zip(letters, sizes))
        self.out_shape = tuple(size if letter in "GO" else 1 for letter, size in zip(letters, sizes))


def layers(graph: Graph) -> tuple[Layer, ...]:
    """Every layer with a stored weight, in the order they run; nodes that share weight and operator are one layer."""
    merged: dict[tuple[str, str, str], Layer] = {}
    weights: dict[str, set[str]] = {}
    for node in graph.nodes:
        operand = weight_operand(graph, node)
        if operand is None:
            continue
        index, view, layout = operand
        bias, output = bias_of(graph, node)
        key = (view.constant, node.op, layout)
        first = merged.get(key)
        weights.setdefault(node.label or node.name, set()).add(view.constant)
        data = node.operand(1 - index)
        merged[key] = Layer(
            name=first.name if first else node.label or node.name,
            op=node.op,
            weight=view.constant,
            shape=graph.constants[view.constant].shape,
            layout=layout,
            groups=node.attrs.get("groups", 1),
            nodes=(*(first.nodes if first else ()), node.name),
            inputs=(*(first.inputs if first else ()), data or ""),
            outputs=(*(first.outputs if first else ()), output),
            bias=first.bias if first else bias,
        )
    # Stacks of experts are several weights of one module: they are told apart by the weight.
    return tuple(
        layer if len(weights[layer.name]) == 1 else replace(layer, name=layer.weight) for layer in merged.values()
    )


def weight_operand(graph: Graph, node: Node) -> tuple[int, ConstantView, str] | None:
    """Which input of a node is its weight, the constant behind it, and the role of each stored axis.

    Returns:
        `None` if the node is no layer: no operator with a weight, or a product of two activations.
    """
    if node.op not in LAYER_OPERATORS:
        return None
    if node.op == "gather":
        view = constant_view(graph, node.operand(0))
        table = view is not None and view.axes == (0, 1) and node.attrs["axis"] == 0 and node.operand(1) is not None
        return (0, view, "VO") if view is not None and table else None
    left, right = (constant_view(graph, node.operand(index)) for index in (0, 1))
    if (left is None) == (right is None):
        return None
    index, view = (0, left) if left is not None else (1, right)
    assert view is not None
    rank = len(graph.constants[view.constant].shape)
    if node.op != "matmul":
        return (1, view, _stored(node.attrs["weight"], view, rank)) if index == 1 else None
    if len(view.axes) < 2:
        return None
    transposed = bool(node.attrs.get("transpose_b" if index else "transpose_a"))
    letters = "OI" if transposed == bool(index) else "IO"
    return index, view, _stored("E" * (len(view.axes) - 2) + letters, view, rank)


def _stored(layout: str, view: ConstantView, rank: int) -> str:
    """A layout in the order of the constant's own axes; an axis from which an index picks counts stacked weights."""
    letters = ["E"] * rank
    for letter, axis in zip(layout, view.axes):
        if axis is not None:
            letters[axis] = letter
    return "".join(letters)


def own_name(constant: Constant, node: Node) -> str:
    """The name under which a layer holds its weight: of tied weights the layer's own, if there is one.

    An edit that names an alias unties it.
    """
    names = (constant.name, *constant.aliases)
    return next((name for name in names if name.removesuffix(".weight") == node.label), constant.name)


def bias_of(graph: Graph, node: Node) -> tuple[str | None, str]:
    """The bias of a layer, and the value with the bias: an input of the node, or a vector added right behind it."""
    output = node.outputs[0]
    if node.op == "gather":
        return None, output
    own = constant_view(graph, node.operand(2))
    if node.operand(2) is not None:
        return (own.constant if own else None), output
    readers = graph.consumers.get(output, [])
    if len(readers) != 1 or output in graph.outputs:
        return None, output
    add, index = readers[0]
    if add.op != "add" or index is None:
        return None, output
    view = constant_view(graph, add.operand(1 - index))
    dims, out = graph.dims(add.operand(1 - index) or ""), graph.dims(output)
    if view is None or dims is None or out is None or view.offset:
        return None, output
    operand = weight_operand(graph, node)
    channels = output_axis(node, operand[0] if operand is not None else 1) % len(out)
    along = [axis + len(out) - len(dims) for axis, size in enumerate(dims) if size != 1]
    if along != [channels] or dims[channels - len(out) + len(dims)] != out[channels]:
        return None, output
    return view.constant, add.outputs[0]


def output_axis(node: Node, weight: int) -> int:
    """The axis of a layer's output that counts its output channels; counted from the end unless it is a convolution.

    Args:
        node: the layer.
        weight: which input is the weight; see `weight_operand`.
    """
    if node.op in ("conv", "conv_transpose"):
        return str(node.attrs["data"]).index("C")
    return -2 if node.op == "matmul" and weight == 0 else -1


def input_axis(node: Node, weight: int) -> int:
    """The axis of a layer's data that counts its input channels; counted from the end unless it is a convolution."""
    if node.op in ("conv", "conv_transpose"):
        return str(node.attrs["data"]).index("C")
    if weight == 1:
        return -2 if node.attrs.get("transpose_a") else -1
    return -1 if node.attrs.get("transpose_b") else -2


def shared_inputs(graph: Graph) -> tuple[tuple[Layer, ...], ...]:
    """Layers that multiply the same activation, in groups of two or more: query, key and value; gate and up.

    Casts, copies and reshapes that leave the last axis as it is do not make another activation.
    """
    groups: dict[tuple[tuple[str, ...], bool], list[Layer]] = {}
    for layer in layers(graph):
        if layer.op != "gather":
            sources = tuple(_source(graph, value) for value in layer.inputs)
            groups.setdefault((sources, layer.op == "matmul"), []).append(layer)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _source(graph: Graph, value: str) -> str:
    while (node := graph.producers.get(value)) is not None:
        before, after = graph.dims(node.operand(0) or ""), graph.dims(value)
        same_rows = node.op == "reshape" and before and after and before[-1] == after[-1]
        if node.op not in ("cast", "identity") and not same_rows:
            break
        value = node.inputs[0] or ""
    return value
