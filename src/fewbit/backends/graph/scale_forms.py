# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points as DequantizeLinear takes them: one number, a row along an axis, or blocks along an axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.weights import to_node
from fewbit.errors import UsageError
from fewbit.modules.layout import inverse
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Form:
    """How DequantizeLinear says who shares a scale.

    Args:
        axis: none if there is one scale; otherwise scales lie along it.
        block: elements of a block along the axis; none if each index of the axis has one scale.
    """

    axis: int | None = None
    block: int | None = None

    @property
    def attributes(self) -> dict[str, int]:
        """As the node has it."""
        found = {} if self.axis is None else {"axis": self.axis}
        return found if self.block is None else {**found, "block_size": self.block}


def form_of(blocks: Blocks) -> Form:
    """The shortest form for a way to cut a tensor.

    >>> form_of(Blocks((64, 8), (32, 1)))
    Form(axis=0, block=32)
    """
    cut = [axis for axis, count in enumerate(blocks.counts) if count > 1]
    if not cut:
        return Form()
    if len(cut) == 1 and blocks.block[cut[0]] == 1:
        return Form(cut[0])
    # One axis can have blocks; along the others scales are repeated, so the longest block saves most.
    axis = max(range(len(blocks.shape)), key=lambda axis: min(blocks.block[axis], blocks.shape[axis]))
    return Form(axis, min(blocks.block[axis], blocks.shape[axis]))


def own_scales(layer: Layer, codes: QTensor) -> tuple[Form, Tensor, Tensor | None]:
    """Scales and zero points in the layout of the node and in the shape that DequantizeLinear takes."""
    if codes.grid.free_zero:
        raise UsageError("zero points that are not whole", where=layer.name, expected="float_zero=False")
    blocks, qparams = own_blocks(layer, codes), codes.qparams
    form = form_of(blocks)

    def shaped(values: Tensor) -> Tensor:
        own = _own_scale(layer, codes, values)
        if form.axis is None:
            return own.reshape(())
        if form.block is None:
            return own.reshape(-1)
        for axis, (side, width) in enumerate(zip(blocks.shape, blocks.block)):
            if axis != form.axis:
                own = own.index_select(axis, torch.arange(side) // width)
        return own.contiguous()

    return form, shaped(qparams.step), None if qparams.zero_point is None else shaped(qparams.zero_point)


def own_blocks(layer: Layer, codes: QTensor) -> Blocks:
    """How the weight is cut in the layout of its node."""
    shape = tuple(to_node(layer, torch.empty(codes.shape, device="meta")).shape)
    if not layer.split:
        return Blocks(shape, tuple(codes.block[axis] for axis in inverse(layer.axes)))
    if codes.scale.numel() == 1:
        return Blocks(shape, shape)
    return Blocks(shape, (_width_in_group(codes), 1, *codes.block[2:]))


def _own_scale(layer: Layer, codes: QTensor, values: Tensor) -> Tensor:
    """One number a block, in the layout of the node."""
    if layer.split and values.numel() == 1:
        return values.reshape([1] * len(codes.shape))
    if layer.split:  # the node has groups on its other axis, so each channel needs numbers of its own
        values = values.index_select(0, torch.arange(codes.shape[0]) // codes.block[0])
        if _width_in_group(codes) == 1:
            values = values.index_select(1, torch.arange(codes.shape[1]) // codes.block[1])
    return to_node(layer, values)


def _width_in_group(codes: QTensor) -> int:
    """How long blocks along the input channels of a group are; one by one where they would reach into the next."""
    return codes.block[1] if codes.shape[1] % codes.block[1] == 0 else 1
