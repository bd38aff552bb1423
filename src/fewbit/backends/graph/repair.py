# SPDX-License-Identifier: Apache-2.0
"""Repairs before quantization: the same function in fewer nodes, so that what a runtime fuses can be seen.

repair(model)
  fold_constants        what follows from initializers alone becomes one
  drop_idle             Identity, and Dropout as it is at inference
  fold_affine           a batch norm, or a product or sum with constants, into the convolution or Gemm before it
  name_hard_swish       x · clip(x + 3, 0, 6) / 6, spelled out, as HardSigmoid and Mul
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.backends.graph.folding import fold_constants

Array = NDArray[np.generic]


def repair(model: ir.Model) -> list[tuple[str, str]]:
    """Repair a graph in place.

    Returns:
        What was done, as `(node, what)`.
    """
    notes: list[tuple[str, str]] = []
    for graph in model.graphs():
        notes += fold_constants(graph, model.opset_imports)
        notes += drop_idle(graph)
        notes += fold_affine(graph)
        notes += name_hard_swish(graph)
    passes.RemoveUnusedNodesPass()(model)
    return notes


def drop_idle(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Take out nodes that pass their input on."""
    for node in list(graph):
        idle = node.op_type == "Identity" or (node.op_type == "Dropout" and _is_inference(node))
        if node.domain or not idle or node.inputs[0] is None:
            continue
        if replace_value(graph, node.outputs[0], node.inputs[0]):
            graph.remove(node, safe=True)
            yield node.name or "", f"{node.op_type} passes its input on"


def _is_inference(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    used = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    return not used and (training is None or constant(training) is not None and not bool(constant(training)))


def fold_affine(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Fold what multiplies and shifts the channels of a convolution or a Gemm into its weight and bias."""
    for node in list(graph):
        if node.graph is not graph:
            continue  # folded into the one before
        while (follower := _only_reader(node)) is not None:
            found = _affine(follower, node)
            if found is None or not _apply(graph, node, *found):
                break
            out = follower.outputs[0]
            if not replace_value(graph, out, node.outputs[0]):
                break
            graph.remove(follower, safe=True)
            yield node.name or "", f"{follower.op_type} {follower.name} folded in"


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The node that alone reads what a convolution or Gemm gives."""
    if node.domain or node.op_type not in ("Conv", "ConvTranspose", "Gemm") or node.outputs[0].is_graph_output():
        return None
    readers = node.outputs[0].uses()
    return readers[0].node if len(readers) == 1 and readers[0].node.graph is node.graph else None


def _affine(node: ir.Node, before: ir.Node) -> tuple[Array, Array] | None:
    """What a node does to each channel, as factor and shift `[channels]`; none if it is something else."""
    channels = _channels(before)
    if channels is None or node.domain:
        return None
    if node.op_type == "BatchNormalization":
        if any(out.uses() or out.is_graph_output() for out in node.outputs[1:]) or _flag(node, "training_mode"):
            return None
        parts = [None if x is None else constant(x) for x in node.inputs[1:5]]
        if any(part is None for part in parts):
            return None
        scale, shift, mean, variance = (np.asarray(part, np.float64) for part in parts)
        factor = scale / np.sqrt(variance + _real(node, "epsilon", 1e-5))
        return factor, shift - mean * factor
    if node.op_type not in ("Mul", "Add", "Sub", "Div"):
        return None
    other = next((i for i, x in enumerate(node.inputs) if x is not before.outputs[0]), None)
    value = None if other is None or node.inputs[other] is None else constant(node.inputs[other])
    if value is None or (other == 0 and node.op_type in ("Sub", "Div")):
        return None
    by_channel = _by_channel(np.asarray(value, np.float64), channels, _axes_after_channel(before))
    if by_channel is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    return {
        "Mul": (by_channel, zero), "Div": (one / by_channel, zero), "Add": (one, by_channel), "Sub": (one, -by_channel),
    }[node.op_type]  # fmt: skip


def _apply(graph: ir.Graph, node: ir.Node, factor: Array, shift: Array) -> bool:
    """Put factor and shift into weight and bias; only where the weight is this node's own."""
    weight_value = node.inputs[1]
    weight = None if weight_value is None else constant(weight_value)
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None if bias_value is None else constant(bias_value)
    if weight is None or (bias_value is not None and bias is None) or not np.all(np.isfinite(factor)):
        return False
    if node.op_type == "Gemm" and (_real(node, "alpha", 1.0) != 1.0 or _real(node, "beta", 1.0) != 1.0):
        return False
    wide = np.asarray(weight, np.float64)
    before = np.zeros(len(factor)) if bias is None else np.broadcast_to(np.asarray(bias, np.float64), factor.shape)
    if not np.all(factor == 1):
        node.replace_input_with(1, new_constant(graph, weight_value, (wide * _spread(node, factor, wide.shape)).astype(weight.dtype)))
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    made = (before * factor + shift).astype(weight.dtype)
    node.replace_input_with(2, new_constant(graph, bias_value or weight_value, made, f"{node.name}.bias"))
    return True


def _spread(node: ir.Node, factor: Array, shape: tuple[int, ...]) -> Array:
    """A factor for each output channel, to be broadcast against the weight."""
    if node.op_type == "Conv":
        return factor.reshape(-1, *(1 for _ in shape[1:]))
    if node.op_type == "Gemm":
        return factor.reshape((-1, 1) if _flag(node, "transB") else (1, -1))
    groups = node.attributes.get_int("group", 1)  # ConvTranspose: [in, out / groups, kernel…]
    each = np.repeat(factor.reshape(groups, -1), shape[0] // groups, axis=0)
    return each.reshape(shape[0], shape[1], *(1 for _ in shape[2:]))


def _channels(node: ir.Node) -> int | None:
    shape = None if node.inputs[1] is None or node.inputs[1].const_value is None else node.inputs[1].const_value.shape
    if shape is None:
        return None
    sides = [int(side) for side in shape]
    if node.op_type == "Conv":
        return sides[0]
    if node.op_type == "Gemm":
        return sides[0] if _flag(node, "transB") else sides[1]
    return sides[1] * node.attributes.get_int("group", 1)


def _axes_after_channel(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None
    return 0 if node.op_type == "Gemm" else len(weight.const_value.shape) - 2


def _by_channel(value: Array, channels: int, after: int) -> Array | None:
    """A constant that is the same at every position, as `[channels]`."""
    if value.size == 1:
        return np.full(channels, value.reshape(-1)[0])
    wanted = (channels, *(1 for _ in range(after)))
    shape = value.shape[-len(wanted) :]
    lead = value.shape[: -len(wanted)]
    return value.reshape(channels) if shape == wanted and all(side == 1 for side in lead) and len(lead) <= 1 else None


def name_hard_swish(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Say hard-swish in the two operators that runtimes know, where it is spelled out in four."""
    for node in list(graph):
        if node.graph is not graph or node.domain or node.op_type != "Clip":
            continue
        found = _hard_swish(node)
        if found is None:
            continue
        x, chain = found
        gate = ir.node("HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5}, name=f"{node.name}.gate")
        swish = ir.node("Mul", [x, gate.outputs[0]], name=f"{chain[-1].name}.swish")
        out = chain[-1].outputs[0]
        gate.outputs[0].name, swish.outputs[0].name = f"{out.name}.gate", f"{out.name}.swish"
        swish.outputs[0].shape, swish.outputs[0].type = out.shape, out.type
        graph.insert_before(chain[-1], [gate, swish])
        if replace_value(graph, out, swish.outputs[0]):
            for old in reversed(chain):
                graph.remove(old, safe=True)
            yield swish.name or "", "hard-swish, spelled out in four nodes"


def _hard_swish(clip: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """The input of a hard-swish and its nodes in order, found from the Clip in its middle."""
    if _clip_ends(clip) != (0.0, 6.0):
        return None
    add = None if clip.inputs[0] is None else clip.inputs[0].producer()
    if add is None or add.op_type != "Add" or not _read_once(add):
        return None
    x = next((v for v in add.inputs if v is not None and constant(v) is None), None)
    three = next((constant(v) for v in add.inputs if v is not None and constant(v) is not None), None)
    if x is None or three is None or not np.all(np.asarray(three) == 3):
        return None
    first = _reader(clip)
    second = None if first is None else _reader(first)
    if first is None or second is None:
        return None
    for mul, scale in ((first, second), (second, first)):
        if mul.op_type == "Mul" and x in mul.inputs and _is_sixth(scale):
            return x, [add, clip, first, second]
    return None


def _is_sixth(node: ir.Node) -> bool:
    value = next((constant(v) for v in node.inputs if v is not None and constant(v) is not None), None)
    if value is None:
        return False
    wanted = 6.0 if node.op_type == "Div" and constant(node.inputs[1]) is not None else 1 / 6
    return node.op_type in ("Div", "Mul") and bool(np.allclose(np.asarray(value, np.float64), wanted, rtol=1e-5))


def _clip_ends(node: ir.Node) -> tuple[float, float] | None:
    if "min" in node.attributes or "max" in node.attributes:
        return _real(node, "min", -np.inf), _real(node, "max", np.inf)
    ends = [constant(v) if v is not None else None for v in (*node.inputs[1:3], None, None)[:2]]
    return None if any(end is None for end in ends) else (float(ends[0]), float(ends[1]))  # type: ignore[arg-type]


def _read_once(node: ir.Node) -> bool:
    return len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output()


def _reader(node: ir.Node) -> ir.Node | None:
    return node.outputs[0].uses()[0].node if _read_once(node) else None


def replace_value(graph: ir.Graph, old: ir.Value, new: ir.Value) -> bool:
    """Let everyone who reads `old` read `new`; an output of the graph keeps its name.

    Returns:
        False where that cannot be: the output would be an input, or another output.
    """
    if old.is_graph_output():
        if new.is_graph_input() or new.is_graph_output() or new.is_initializer() or new.graph is not graph:
            return False
        name, old.name = old.name, f"{old.name}.before"
        new.name = name
        for index, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[index] = new
        if new.shape is None:
            new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new)
    return True


def _flag(node: ir.Node, name: str) -> bool:
    return bool(node.attributes.get_int(name, 0))


def _real(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes.get_float(name, default))


Repair = Callable[[ir.Graph], Iterator[tuple[str, str]]]
