# SPDX-License-Identifier: Apache-2.0
"""Neutral graphs for tests: built by hand, executed in numpy, and changed by edits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fewbit.graph.check import check_removable, relative_difference
from fewbit.graph.edits import AddBias, Edit, RemoveChannels, ReplaceNode, ScaleChannels, SetConstant
from fewbit.graph.ir import Constant, Graph, Node, Value
from fewbit.graph.layers import WeightAxes
from fewbit.graph.pruning import PruneAnalysis


class Maker:
    """Builds a graph node by node; shapes come from executing it.

    >>> maker = Maker(x=(2, 3))
    >>> y = maker.linear("fc", "x", 4)
    >>> maker.graph(y).dims(y)
    (2, 4)
    """

    def __init__(self, seed: int = 0, **inputs: tuple[int, ...]):
        self.random = np.random.default_rng(seed)
        self.values = {name: self.random.standard_normal(shape) for name, shape in inputs.items()}
        self.inputs, self.nodes, self.constants = tuple(inputs), [], {}

    def constant(self, name: str, array: Any, *, stored: bool = True) -> str:
        array = np.asarray(array, np.float64)
        self.constants[name] = Constant(name, array.shape, "float64", lambda: array, stored)
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, self.random.standard_normal(shape) / math.sqrt(math.prod(shape[1:]) or 1))

    def node(self, op: str, *inputs: Any, outputs: int = 1, shape: tuple[int, ...] | None = None, **attrs: Any) -> Any:
        name = f"n{len(self.nodes)}"
        names = tuple(name if outputs == 1 else f"{name}#{i}" for i in range(outputs))
        inputs = tuple(
            self.constant(f"{name}.{i}", x, stored=False) if isinstance(x, float) else x for i, x in enumerate(inputs)
        )
        node = Node(name, op, inputs, names, attrs)
        operands = {**self.values, **{key: constant.read() for key, constant in self.constants.items()}}
        results = execute(node, [None if i is None else operands[i] for i in inputs], [shape] * outputs)
        self.values.update(zip(names, results, strict=True))
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def linear(self, name: str, x: str, out: int, *, bias: bool = True) -> str:
        weight = self.weight(f"{name}.weight", out, self.values[x].shape[-1])
        rest = [self.weight(f"{name}.bias", out)] if bias else []
        return self.node("matmul", x, weight, *rest, transpose_b=True)

    def conv(self, name: str, x: str, *shape: int, bias: bool = True, **attrs: Any) -> str:
        """A convolution with a weight `OIHW`."""
        weight = self.weight(f"{name}.weight", *shape)
        rest = [self.weight(f"{name}.bias", shape[0])] if bias else []
        return self.node("conv", x, weight, *rest, **{"data": "NCHW", "weight": "OIHW", "groups": 1, **attrs})

    def graph(self, *outputs: str) -> Graph:
        values = {name: Value(name, array.shape, str(array.dtype)) for name, array in self.values.items()}
        graph = Graph(self.inputs, outputs, tuple(self.nodes), values, self.constants)
        graph.validate()
        return graph

    def sample(self) -> dict[str, np.ndarray]:
        """Other inputs than those the shapes come from."""
        return {name: self.random.standard_normal(self.values[name].shape) for name in self.inputs}


def run(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph."""
    values = {name: np.asarray(array) for name, array in inputs.items()}
    values |= {name: np.asarray(constant.read(), np.float64) for name, constant in graph.constants.items()}
    for node in graph.nodes:
        operands = [None if name is None else values[name] for name in node.inputs]
        shapes = [graph.values[name].dims for name in node.outputs]
        values.update(zip(node.outputs, execute(node, operands, shapes)))
    return [values[name] for name in graph.outputs]


def apply(graph: Graph, edits: Iterable[Edit]) -> Graph:
    """The graph after edits."""
    constants, values, nodes = dict(graph.constants), dict(graph.values), {node.name: node for node in graph.nodes}

    def store(name: str, array: np.ndarray) -> None:
        old = graph.constants.get(name)
        constants[name] = Constant(name, array.shape, old.dtype if old else "float64", lambda: array)

    for edit in edits:
        if isinstance(edit, SetConstant):
            store(edit.constant, np.asarray(edit.value))
        elif isinstance(edit, ScaleChannels):
            store(edit.constant, edit.scaled(np.asarray(constants[edit.constant].read(), np.float64)))
        elif isinstance(edit, ReplaceNode):
            old = nodes[edit.node]
            nodes[edit.node] = Node(old.name, edit.op, edit.inputs, old.outputs, edit.attrs)
        elif isinstance(edit, AddBias):
            old = nodes[edit.node]
            assert old.operand(2) is None
            store(f"{edit.node}.new_bias", np.asarray(edit.bias))
            nodes[edit.node] = Node(
                old.name, old.op, (*old.inputs[:2], f"{edit.node}.new_bias"), old.outputs, old.attrs
            )
        elif isinstance(edit, RemoveChannels):
            for (name, axis), kept in edit.keep.items():
                store(name, np.asarray(constants[name].read()).take(kept, axis))
            values |= {name: Value(name, shape, values[name].dtype) for name, shape in edit.shapes.items()}
            for name, attrs in edit.attrs.items():
                old = nodes[name]
                nodes[name] = Node(old.name, old.op, old.inputs, old.outputs, {**old.attrs, **attrs})
        else:
            raise TypeError(edit)
    return Graph(graph.inputs, graph.outputs, tuple(nodes.values()), values, constants, graph.revision + 1)


def zeroed_columns(graph: Graph, gone: Iterable[tuple[str, np.ndarray, tuple[int, ...]]]) -> Graph:
    """The graph with some elements of constants set to zero: (constant, mask, view)."""
    edits = []
    for name, mask, view in gone:
        edits.append(ScaleChannels(name, np.where(mask, 0.0, 1.0), view))
    return apply(graph, edits)


def removed(graph, sample, share=0.5, seed=0):
    """Remove a share of every exact family; compare with zeroed readers; the edit, and the families."""
    analysis, random = PruneAnalysis(graph), np.random.default_rng(seed)
    chosen = {
        position: random.permutation(family.size)[: int(family.size * share)].tolist()
        for position, family in enumerate(analysis.families)
        if not family.inexact
    }
    edit = analysis.removal(chosen)
    masks = [
        (use.constant, np.isin(use.index, chosen[position]), use.view)
        for position, family in enumerate(analysis.families)
        if position in chosen
        for use in family.of_role("in")
    ]
    expected = run(zeroed_columns(graph, masks), sample)
    assert relative_difference(run(apply(graph, [edit]), sample), expected) < 1e-12
    assert relative_difference(expected, run(graph, sample)) > 1e-3, "the removal had no effect"
    exact = [family for family in analysis.families if not family.inexact]
    accepted, rejected = check_removable(exact, lambda edits: run(apply(graph, edits), sample), tolerance=1e-9)
    assert list(accepted) == exact and not rejected
    return edit, analysis.families


UNARY = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) if x.size else x,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "softplus": lambda x: np.logaddexp(x, 0),
}
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "pow": np.power,
}  # fmt: skip
REDUCE = {
    "mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod,
    "norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    "std": lambda x, axis, keepdims: np.std(x, axis=axis, keepdims=keepdims, ddof=1),
    "var": lambda x, axis, keepdims: np.var(x, axis=axis, keepdims=keepdims, ddof=1),
}  # fmt: skip


def execute(node: Node, x: list[Any], shapes: list[Any]) -> list[np.ndarray]:
    """The outputs of one node; `shapes` are those of its outputs, for reshapes."""
    op, at = node.op, node.attrs
    if op in BINARY:
        result = x[0]
        for other in x[1:]:
            result = BINARY[op](result, other)
        return [result]
    if op == "unary":
        return [UNARY[at["fn"]](x[0])]
    if op in ("conv", "conv_transpose"):
        return [_conv(node, x)]
    if op == "matmul":
        one = x[0].swapaxes(-1, -2) if at.get("transpose_a") else x[0]
        other = x[1].swapaxes(-1, -2) if at.get("transpose_b") else x[1]
        return [one @ other + (x[2] if len(x) > 2 and x[2] is not None else 0)]
    if op == "gather":
        return [x[0].take(np.asarray(at["indices"]) if "indices" in at else x[1].astype(int), at["axis"])]
    if op == "attention":
        return [_attention(node, x)]
    if op in ("batch_norm", "layer_norm", "rms_norm", "group_norm"):
        return [_norm(node, x)]
    if op in ("max_pool", "avg_pool"):
        return [_pool(node, x[0], shapes[0])]
    if op == "resize":
        return [_resize(node, x[0], shapes[0])]
    if op == "reduce":
        return [REDUCE[at["fn"]](x[0], axis=tuple(at["axes"]), keepdims=at["keepdims"])]
    if op == "split":
        parts = np.split(x[0], np.cumsum(at["sizes"])[:-1], at["axis"])
        return [part.squeeze(at["axis"]) if at.get("drop") else part for part in parts]
    if op == "slice":
        part = x[0][(slice(None),) * at["axis"] + (slice(at["start"], at["stop"], at["step"]),)]
        return [part.squeeze(at["axis"]) if at.get("drop") else part]
    if op == "repeat":
        return [
            np.repeat(x[0], at["times"], at["axis"])
            if at["interleave"]
            else np.concatenate([x[0]] * at["times"], at["axis"])
        ]
    if op == "softmax":
        e = np.exp(x[0] - x[0].max(at["axis"], keepdims=True))
        return [e / e.sum(at["axis"], keepdims=True)]
    if op == "pad" and at["value"] is None:
        return [np.pad(x[0], at["pads"], mode="reflect")]
    simple = {
        "relu": lambda: np.maximum(x[0], 0),
        "leaky_relu": lambda: np.where(x[0] > 0, x[0], x[0] * at["slope"]),
        "prelu": lambda: np.where(x[0] > 0, x[0], x[0] * x[1]),
        "neg": lambda: -x[0],
        "abs": lambda: np.abs(x[0]),
        "clip": lambda: np.clip(x[0], at["low"], at["high"]),
        "where": lambda: np.where(x[0] != 0, x[1], x[2]),
        "cumsum": lambda: np.cumsum(x[0], at["axis"]),
        "reshape": lambda: x[0].reshape(shapes[0]),
        "transpose": lambda: x[0].transpose(at["perm"]),
        "concat": lambda: np.stack(x, at["axis"]) if at.get("new_axis") else np.concatenate(x, at["axis"]),
        "expand": lambda: np.broadcast_to(x[0], shapes[0]),
        "pad": lambda: np.pad(x[0], at["pads"], constant_values=at["value"]),
        "cast": lambda: x[0],
        "identity": lambda: x[0],
    }
    return [simple[op]()]


def _conv(node: Node, x: list[Any]) -> np.ndarray:
    """A sum over the elements of the kernel, in any layout."""
    at, transposed = node.attrs, node.op == "conv_transpose"
    axes = WeightAxes(at["weight"], x[1].shape, at.get("groups", 1), transposed=transposed)
    weight, letters = x[1].reshape(axes.view), axes.letters
    for letter in "GOI":
        if letter not in letters:
            weight, letters = weight[None], letter + letters
    spatial = [letter for letter in letters if letter in "DHW"]
    weight = weight.transpose(
        [letters.index(a) for a in ["G", "O", "I", *spatial]] + [i for i, a in enumerate(letters) if a == "1"]
    )
    weight = weight.reshape(weight.shape[: 3 + len(spatial)])
    layout = at["data"]
    data = x[0].transpose([layout.index(a) for a in ["N", "C", *spatial]])
    groups, out, inner = weight.shape[:3]
    kernel = weight.shape[3:]
    n = len(kernel)
    strides, dilations = at.get("strides", (1,) * n), at.get("dilations", (1,) * n)
    pads = at.get("pads", ((0, 0),) * n)
    grouped = data.reshape(data.shape[0], groups, inner, *data.shape[2:])
    if transposed:
        sizes = [(s - 1) * st + d * (k - 1) + 1 for s, st, d, k in zip(data.shape[2:], strides, dilations, kernel)]
        result = np.zeros((data.shape[0], groups, out, *sizes))
        for place in np.ndindex(*kernel):
            part = np.einsum("ngi...,goi->ngo...", grouped, weight[(..., *place)])
            where = tuple(
                slice(p * d, p * d + s * st, st) for p, d, s, st in zip(place, dilations, data.shape[2:], strides)
            )
            result[(slice(None),) * 3 + where] += part
        crop = tuple(slice(a, size - b) for (a, b), size in zip(pads, sizes))
        result = result[(slice(None),) * 3 + crop]
    else:
        padded = np.pad(grouped, [(0, 0)] * 3 + list(pads))
        sizes = [(s - d * (k - 1) - 1) // st + 1 for s, st, d, k in zip(padded.shape[3:], strides, dilations, kernel)]
        result = np.zeros((data.shape[0], groups, out, *sizes))
        for place in np.ndindex(*kernel):
            where = tuple(
                slice(p * d, p * d + size * st, st) for p, d, size, st in zip(place, dilations, sizes, strides)
            )
            part = padded[(slice(None),) * 3 + where]
            part = part[(..., *(slice(size) for size in sizes))]
            result += np.einsum("ngi...,goi->ngo...", part, weight[(..., *place)])
    result = result.reshape(data.shape[0], groups * out, *sizes if not transposed else result.shape[3:])
    if len(x) > 2 and x[2] is not None:
        result = result + x[2].reshape(-1, *(1,) * n)
    back = ["N", "C", *spatial]
    return result.transpose([back.index(a) for a in layout])


def _attention(node: Node, x: list[Any]) -> np.ndarray:
    q, k, v = x[:3]
    times = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, times, -3), np.repeat(v, times, -3)
    scale = node.attrs.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    if node.attrs.get("causal"):
        scores = np.where(np.tri(scores.shape[-2], scores.shape[-1]), scores, -np.inf)
    if len(x) > 3 and x[3] is not None:
        scores = scores + x[3]
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def _norm(node: Node, x: list[Any]) -> np.ndarray:
    at, data = node.attrs, x[0]
    weight, bias = (x[i] if len(x) > i and x[i] is not None else None for i in (1, 2))
    if node.op in ("layer_norm", "rms_norm"):
        axes = tuple(at["axes"])
        mean = data.mean(axes, keepdims=True) if node.op == "layer_norm" else 0
        result = (data - mean) / np.sqrt(((data - mean) ** 2).mean(axes, keepdims=True) + (at.get("eps") or 1e-6))
        return result * (1 if weight is None else weight) + (0 if bias is None else bias)
    shape = [1] * data.ndim
    shape[at["axis"]] = -1
    if node.op == "batch_norm":
        result = (data - x[3].reshape(shape)) / np.sqrt(x[4].reshape(shape) + at["eps"])
    else:
        moved = data.reshape(len(data), at["groups"], -1)
        result = (moved - moved.mean(-1, keepdims=True)) / np.sqrt(moved.var(-1, keepdims=True) + at["eps"])
        result = result.reshape(data.shape)
    weight, bias = (np.ones(1) if weight is None else weight), (np.zeros(1) if bias is None else bias)
    return result * weight.reshape(shape) + bias.reshape(shape)


def _pool(node: Node, data: np.ndarray, shape: tuple[int, ...] | None) -> np.ndarray:
    at = node.attrs
    axes = [i for i, letter in enumerate(at["data"]) if letter not in "NC"]
    kernel = at.get("kernel") or [data.shape[axis] // (shape or data.shape)[axis] for axis in axes]
    strides = at.get("strides") or kernel
    pads = at.get("pads") or [(0, 0)] * len(axes)
    widths = [(0, 0)] * data.ndim
    for axis, pair in zip(axes, pads):
        widths[axis] = pair
    padded = np.pad(data, widths, constant_values=-np.inf if node.op == "max_pool" else 0.0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), tuple(axes))
    for axis, stride in zip(axes, strides):
        windows = windows.take(range(0, windows.shape[axis], stride), axis)
    inner = tuple(range(data.ndim, data.ndim + len(axes)))
    return windows.max(inner) if node.op == "max_pool" else windows.mean(inner)


def _resize(node: Node, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Nearest neighbor, to whole multiples."""
    for axis, letter in enumerate(node.attrs["data"]):
        if letter not in "NC":
            data = np.repeat(data, shape[axis] // data.shape[axis], axis)
    return data
