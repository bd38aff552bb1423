# SPDX-License-Identifier: Apache-2.0
"""What multiplies and shifts channels, folded into the convolution or Gemm before it: computed in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.backends.graph.nodes import flag, only_reader, real, replace_value

Array = NDArray[np.float64]


def fold_affine(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Fold what multiplies and shifts the channels of a convolution or a Gemm into its weight and bias."""
    for node in list(graph):
        if node.graph is not graph:
            continue  # folded into the one before
        if node.domain or node.op_type not in ("Conv", "ConvTranspose", "Gemm"):
            continue
        while (follower := only_reader(node)) is not None:
            found = _affine(follower, node)
            if found is None or not _apply(graph, node, *found):
                break
            out = follower.outputs[0]
            if not replace_value(graph, out, node.outputs[0]):
                break
            graph.remove(follower, safe=True)
            yield node.name or "", f"{follower.op_type} {follower.name} folded in"


def _affine(node: ir.Node, before: ir.Node) -> tuple[Array, Array] | None:
    """What a node does to each channel, as factor and shift `[channels]`; none if it is something else."""
    channels = _channels(before)
    if channels is None or node.domain:
        return None
    if node.op_type == "BatchNormalization":
        if any(out.uses() or out.is_graph_output() for out in node.outputs[1:]) or flag(node, "training_mode"):
            return None
        parts = [None if x is None else constant(x) for x in node.inputs[1:5]]
        if any(part is None for part in parts):
            return None
        scale, shift, mean, variance = (np.asarray(part, np.float64) for part in parts)
        factor = scale / np.sqrt(variance + real(node, "epsilon", 1e-5))
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
    """Put factor and shift into a weight and a bias of the node's own; false where one of them is not constant."""
    weight_value = node.inputs[1]
    weight = constant(weight_value)
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = constant(bias_value)
    if (
        weight_value is None
        or weight is None
        or (bias_value is not None and bias is None)
        or not np.all(np.isfinite(factor))
    ):
        return False
    if node.op_type == "Gemm" and (real(node, "alpha", 1.0) != 1.0 or real(node, "beta", 1.0) != 1.0):
        return False
    wide = np.asarray(weight, np.float64)
    before = np.zeros(len(factor)) if bias is None else np.broadcast_to(np.asarray(bias, np.float64), factor.shape)
    if not np.all(factor == 1):
        node.replace_input_with(
            1, new_constant(graph, weight_value, (wide * _spread(node, factor, wide.shape)).astype(weight.dtype))
        )
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
        return factor.reshape((-1, 1) if flag(node, "transB") else (1, -1))
    groups = node.attributes.get_int("group", 1)  # ConvTranspose: [in, out / groups, kernel…]
    each = np.repeat(factor.reshape(groups, -1), shape[0] // groups, axis=0)
    return each.reshape(shape[0], shape[1], *(1 for _ in shape[2:]))


def _channels(node: ir.Node) -> int | None:
    shape = None if node.inputs[1] is None or node.inputs[1].const_value is None else node.inputs[1].const_value.shape
    if shape is None:
        return None
    sides = [int(str(side)) for side in shape]
    if node.op_type == "Conv":
        return sides[0]
    if node.op_type == "Gemm":
        return sides[0] if flag(node, "transB") else sides[1]
    return sides[1] * node.attributes.get_int("group", 1)


def _axes_after_channel(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None
    return 0 if node.op_type == "Gemm" else len(weight.const_value.shape) - 2


def _by_channel(value: Array, channels: int, after: int) -> Array | None:
    """A constant that is the same at every position, as `[channels]`."""
    if value.size == 1 and value.ndim <= after + 2:  # with more axes it would add some to what it is put on
        return np.full(channels, value.reshape(-1)[0])
    wanted = (channels, *(1 for _ in range(after)))
    shape = value.shape[-len(wanted) :]
    lead = value.shape[: -len(wanted)]
    return value.reshape(channels) if shape == wanted and all(side == 1 for side in lead) and len(lead) <= 1 else None
