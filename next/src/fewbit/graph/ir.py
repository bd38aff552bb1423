# SPDX-License-Identifier: Apache-2.0
"""The neutral graph of a model: values, constants and nodes that refer to one another by name.

A reader translates a framework's graph node by node and normalizes nothing, so that an edit reaches what is really
stored. Axis roles are layout strings as people write them: `data="NCHW"`, `weight="OIHW"`. What a reader does not know
becomes an `opaque` node: analysis then leaves everything alone that the node reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fewbit.errors import ModelError

Dim = int | str
"""A size, or the name of a dynamic one."""

OPERATORS: dict[str, str] = {
    # Products with weights. Layouts name the axes of operands: N C D H W for data; O I G D H W for weights, "1" if of
    # size one. `pads` are (before, after) per spatial axis.
    "conv": "data, weight, groups, strides, pads, dilations; inputs: data, weight, bias",
    "conv_transpose": "as conv; weight is IOHW in most formats",
    "matmul": "transpose_a, transpose_b; inputs: a, b, bias; a bias broadcasts from the right",
    "gather": "axis; inputs: data, indices; or indices as an attribute",
    "attention": "scale, causal; inputs: query, key, value, mask; [batch, heads, positions, features]",
    # Norms.
    "batch_norm": "axis, eps; inputs: data, weight, bias, mean, variance",
    "layer_norm": "axes, eps; inputs: data, weight, bias",
    "rms_norm": "axes, eps; inputs: data, weight",
    "group_norm": "axis, groups, eps; inputs: data, weight, bias",
    # Elementwise. `leaky_relu` with slope 0 and `clip` without an upper limit are `relu`.
    "relu": "",
    "leaky_relu": "slope",
    "prelu": "inputs: data, slope",
    "neg": "",
    "abs": "",
    "clip": "low, high",
    "unary": "fn: sigmoid, tanh, silu, gelu, erf, exp, sqrt, rsqrt …",
    "add": "",
    "sub": "",
    "mul": "",
    "div": "",
    "max": "",
    "min": "",
    "pow": "",
    "where": "inputs: condition, then, else",
    "softmax": "axis",
    # Over an axis.
    "max_pool": "data, kernel, strides, pads; without a kernel, one that gives the shape of the output",
    "avg_pool": "as max_pool",
    "reduce": "fn: mean, sum, max, min, norm …, axes, keepdims",
    "cumsum": "axis",
    "topk": "axis",
    # Data movement: what the result is, is read from the shape of the output.
    "reshape": "",
    "transpose": "perm",
    "concat": "axis; new_axis: the operands are stacked",
    "slice": "axis, start, stop, step (None if not known), drop: the axis disappears",
    "split": "axis, sizes, drop",
    "expand": "",
    "repeat": "axis, times, interleave",
    "pad": "pads: (before, after) per axis, value (None: copies of the data)",
    "resize": "data",
    "cast": "",
    "identity": "",
    # Quantized models.
    "quantize": "axis",
    "dequantize": "axis",
    "fake_quantize": "",
    "opaque": "everything else: control flow, custom operators",
}
"""Every neutral operator with its attributes."""


@dataclass(frozen=True)
class Value:
    """An activation: computed anew in every run.

    Args:
        name: unique among values and constants.
        shape: sizes and names of dynamic sizes; `None` if not even the rank is known.
        dtype: as numpy and torch write it: `float32`, `bfloat16`, `int64`.
        example: the concrete shape for one sample input.
    """

    name: str
    shape: tuple[Dim, ...] | None = None
    dtype: str = "float32"
    example: tuple[int, ...] | None = None

    @property
    def dims(self) -> tuple[int, ...] | None:
        """A concrete shape: of the example if there is one; `None` if a size is not known.

        >>> Value("x", (2, "length", 8), example=(2, 5, 8)).dims
        (2, 5, 8)
        """
        shape = self.example or self.shape
        return None if shape is None else tuple(d for d in shape if isinstance(d, int)) if _concrete(shape) else None


def _concrete(shape: tuple[Dim, ...]) -> bool:
    return all(isinstance(size, int) for size in shape)


@dataclass(frozen=True)
class Constant:
    """A stored tensor.

    Args:
        name: the backend's own, which edits refer to.
        shape: as stored.
        dtype: as stored.
        read: loads it; half-precision floats come as float32.
        stored: whether an edit can reach it and is saved with the model. Numbers inside an operator, tables that the
            model's code computes, and memory that is also part of another tensor are not.
        aliases: further names of the same tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)
    stored: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """One operator.

    Args:
        name: unique among nodes.
        op: a key of `OPERATORS`.
        inputs: names of values or constants; `None` for an optional input left out.
        outputs: names of values.
        attrs: see `OPERATORS`.
        captures: values and constants that the bodies of control flow read without being inputs.
        native: the framework's operator, for messages and targets.
        scope: path of the module it belongs to, if the framework has one.
        label: a name for people; by default the node's name.
    """

    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    captures: tuple[str, ...] = ()
    native: str = ""
    scope: str = ""
    label: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """All it depends on, captured values included."""
        return (*(name for name in self.inputs if name is not None), *self.captures)

    def operand(self, index: int) -> str | None:
        """An input by position; `None` if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None


@dataclass(frozen=True)
class Graph:
    """A model as data. It is not changed: edits go to the model, whose graph is then read again.

    Args:
        inputs: names of values.
        outputs: names of values (or constants).
        nodes: in topological order.
        values: every input and every output of a node.
        constants: every stored tensor that a node reads.
        revision: of the model; `apply` refuses edits made for another one.
        notes: what could not be read, with the reason, for the record.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Constant]
    revision: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that computes a value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[tuple[Node, int | None]]]:
        """Who reads a value or constant, at which input; `None` for a body that captures it."""
        readers: dict[str, list[tuple[Node, int | None]]] = {}
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                if name is not None:
                    readers.setdefault(name, []).append((node, index))
            for name in node.captures:
                readers.setdefault(name, []).append((node, None))
        return readers

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    def dims(self, name: str) -> tuple[int, ...] | None:
        """The concrete shape of a value or constant, `None` if not known."""
        if name in self.constants:
            return self.constants[name].shape
        return self.values[name].dims if name in self.values else None

    def dtype(self, name: str) -> str:
        """The dtype of a value or constant."""
        return self.constants[name].dtype if name in self.constants else self.values[name].dtype

    def census(self) -> tuple[Counter[str], Counter[str]]:
        """How often each operator occurs, and each native operator that was not understood."""
        opaque = (node.native for node in self.nodes if node.op == "opaque")
        return Counter(node.op for node in self.nodes), Counter(opaque)

    def validate(self) -> None:
        """Whether names are unique and known, operators known, and nodes in topological order.

        Raises:
            ModelError: with every problem.
        """
        problems = _problems(self)
        if problems:
            raise ModelError(
                f"the graph has {len(problems)} problem{'s' if len(problems) > 1 else ''}: {'; '.join(problems[:8])}",
                code="graph-invalid",
                expected="nodes in topological order that read known values",
                hint="report this: the reader of the model's format is wrong",
            )


def _problems(graph: Graph) -> list[str]:
    problems = [f"{name} is a value and a constant" for name in graph.values.keys() & graph.constants.keys()]
    available = {*graph.inputs, *graph.constants}
    names: set[str] = set()
    for node in graph.nodes:
        if node.op not in OPERATORS:
            problems.append(f"{node.name} has the unknown operator {node.op}")
        if node.name in names:
            problems.append(f"two nodes are called {node.name}")
        names.add(node.name)
        problems += [f"{node.name} reads {name}, which does not exist yet" for name in {*node.reads} - available]
        problems += [f"{node.name} computes {name} again" for name in node.outputs if name in available]
        problems += [f"{name} of {node.name} is no value" for name in node.outputs if name not in graph.values]
        available.update(node.outputs)
    return problems + [f"the output {name} does not exist" for name in graph.outputs if name not in available]


@dataclass(frozen=True)
class ConstantView:
    """An operand that is a constant, seen through casts and transpositions.

    Args:
        constant: its name.
        axes: for each axis of the operand the axis of the constant; `None` for an axis of size one that was inserted,
            or along which an index picks from a stack of weights.
        offset: what is added to the constant: some norms multiply by 1 + weight.
    """

    constant: str
    axes: tuple[int | None, ...]
    offset: float = 0.0


def constant_view(graph: Graph, operand: str | None) -> ConstantView | None:
    """The stored constant behind an operand; `None` if the operand is computed from other things.

    Looks through casts, transpositions, inserted axes, the choice of experts from a stack, and the sum with a number.
    It stops at quantized weights: behind `dequantize` lie integers.

    >>> weight = Constant("w", (4, 3), "float16", lambda: np.zeros((4, 3), np.float32))
    >>> nodes = (Node("c", "cast", ("w",), ("wide",)), Node("t", "transpose", ("wide",), ("wt",), {"perm": (1, 0)}))
    >>> values = {"wide": Value("wide", (4, 3)), "wt": Value("wt", (3, 4))}
    >>> constant_view(Graph((), (), nodes, values, {"w": weight}), "wt")
    ConstantView(constant='w', axes=(1, 0), offset=0.0)
    """
    if operand is None:
        return None
    if operand in graph.constants:
        return ConstantView(operand, tuple(range(len(graph.constants[operand].shape))))
    node = graph.producers.get(operand)
    if node is None or node.op not in ("cast", "identity", "transpose", "reshape", "expand", "gather", "add"):
        return None
    if node.op == "add":
        return _with_offset(graph, node)
    view = constant_view(graph, node.operand(0))
    if view is None or node.op == "identity":
        return view
    if node.op == "cast":
        return view if is_float(graph.dtype(operand)) else None
    if node.op == "transpose":
        return ConstantView(view.constant, tuple(view.axes[axis] for axis in node.attrs["perm"]), view.offset)
    before, after = graph.dims(node.operand(0) or ""), graph.dims(operand)
    if before is None or after is None:
        return None
    more = (None,) * (len(after) - len(before))
    if node.op == "expand":
        pairs = zip((*more, *view.axes), (*(1 for _ in more), *before), after)
        return ConstantView(view.constant, tuple(a if old == new else None for a, old, new in pairs), view.offset)
    if node.op == "reshape":
        reshaped = _reshaped_axes(view.axes, before, after)
        return None if reshaped is None else ConstantView(view.constant, reshaped, view.offset)
    if node.attrs["axis"] != 0 or len(before) < 3 or view.axes[0] != 0:
        return None
    return ConstantView(view.constant, (*more, None, *view.axes[1:]), view.offset)


def scalar(graph: Graph, operand: str | None) -> float | None:
    """The value of a constant with one element; `None` for anything else."""
    constant = graph.constants.get(operand or "")
    if constant is None or any(size != 1 for size in constant.shape):
        return None
    return float(np.asarray(constant.read()).reshape(()))


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point type, small ones included.

    >>> is_float("bfloat16"), is_float("int64")
    (True, False)
    """
    return "float" in dtype


def _with_offset(graph: Graph, node: Node) -> ConstantView | None:
    for operand, other in (node.inputs[:2], node.inputs[1::-1]):
        number = scalar(graph, other)
        view = constant_view(graph, operand) if number is not None else None
        if number is not None and view is not None and len(view.axes) == 1:
            return ConstantView(view.constant, view.axes, view.offset + number)
    return None


def _reshaped_axes(
    axes: tuple[int | None, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int | None, ...] | None:
    """Axes after a reshape that only inserts or removes axes of size one; `None` for any other."""
    long = iter([axis for axis, size in zip(axes, before) if size != 1])
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    return tuple(next(long) if size != 1 else None for size in after)
