# SPDX-License-Identifier: Apache-2.0
"""Codes of a weight that a batch norm was folded into.

That multiplies each output of the weight by a number. The codes stay as they were trained, with the other sign where
the number is negative, and its size goes into their scale; zeros stay zeros.
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.weights import read_weight
from fewbit.backends.graph.writing import Writer
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

_NEAR = 1e-5
"""Of the largest weight: what float32 makes of a product."""


def shield(node: ir.Node, codes: QTensor) -> None:
    """Keep what follows a layer out of its weight, in place, where its codes could not follow a factor for each output:
    where they are no integers, and where they have zero points or scales of scales."""
    follower = only_reader(node)
    if follower is None or follower.op_type not in ("BatchNormalization", "Mul", "Div") or _can_follow(codes):
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    apart = Writer(graph).node("Identity", node.outputs, f"{node.name}.apart")
    apart.outputs[0].shape, apart.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
    graph.insert_after(node, apart)
    follower.replace_input_with(
        next(i for i, v in enumerate(follower.inputs) if v is node.outputs[0]), apart.outputs[0]
    )


def _can_follow(codes: QTensor) -> bool:
    return codes.zero_point is None and codes.super_scale is None and codes.grid.dtype.is_integer


def refitted(layer: Layer, codes: QTensor, name: str) -> QTensor:
    """The codes of a layer's weight as it is now.

    Args:
        layer: of the graph.
        codes: its weight before anything was folded into it.
        name: of the layer, for messages.

    Raises:
        UsageError: these codes do not stand for it.
    """
    now, before = read_weight(layer).float(), codes.dequantize(torch.float32)
    if now.shape == before.shape and torch.equal(now, before):
        return codes
    half = torch.equal(now.half(), before.half()) if now.shape == before.shape else False
    if half and layer.weight_value.dtype == ir.DataType.FLOAT16:
        return codes
    if now.shape == before.shape and _can_follow(codes):
        made = _times(codes, _factor(now, before))
        if (made.dequantize(torch.float32) - now).abs().max() <= _NEAR * now.abs().max():
            return made
    raise UsageError("its weight in the graph is not what its codes stand for", where=name, expected="the same weight")


def _factor(now: Tensor, before: Tensor) -> Tensor:
    """What each row was multiplied with, read off its largest element."""
    rows = before.reshape(len(before), -1)
    place = rows.abs().argmax(1, keepdim=True)
    old, new = (each.reshape(len(before), -1).gather(1, place).reshape(-1).double() for each in (before, now))
    return torch.where(old != 0, new / old, torch.ones_like(old)).float()


def _times(codes: QTensor, factor: Tensor) -> QTensor:
    """Codes that stand for each row of a weight times a number.

    The sign goes into the codes. Only where a row has the lowest code, which has no opposite, it goes into the scale.
    """
    own, block = codes.codes(), (1, *codes.block[1:])
    each = factor.reshape(-1, *(1,) * (own.ndim - 1))
    lowest = (own == int(codes.grid.dtype.lowest)).flatten(1).any(1).reshape(each.shape)
    turns = (each < 0) & ~lowest
    turned = torch.where(turns, -own, own).masked_fill(each == 0, 0)
    step = codes.qparams.step.expand(Blocks(codes.shape, block).counts)
    scale = torch.where(each == 0, step, step * torch.where(turns, -each, each))
    grid = codes.grid.replace(scale_type=ScaleType.float32)  # a product is no number of a narrower type
    return QTensor.from_codes(turned, QParams(grid, block, scale))


def by_row(codes: QTensor) -> QTensor:
    """The same codes with a scale for each output, where they had one for all."""
    return codes if codes.block[0] == 1 else _times(codes, torch.ones(codes.shape[0]))
