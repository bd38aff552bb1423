# SPDX-License-Identifier: Apache-2.0
"""Attributes that a later operator set has as inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.writing import Writer


@dataclass(frozen=True)
class Context:
    """What a step may need besides its node: who writes, and the operator set in the end."""

    writer: Writer
    target: int

    def give(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let a node read a value at an index that it may not have yet."""
        if len(node.inputs) <= index:
            node.resize_inputs(index + 1)
        node.replace_input_with(index, value)

    def give_constant(self, node: ir.Node, index: int, name: str, array: NDArray[np.generic]) -> None:
        """Let a node read a new constant."""
        self.give(node, index, self.writer.constant(f"{node.name}.{name}", array, node.graph))


Step = Callable[[ir.Node, Context], None]
"""Makes a node of one operator set a node of the next, in place."""


def lists(*names: str) -> Step:
    """Attributes that are lists of whole numbers, as inputs 1, 2, …"""

    def step(node: ir.Node, context: Context) -> None:
        for index, name in enumerate(names, 1):
            attribute = node.attributes.pop(name, None)
            if attribute is not None:
                context.give_constant(node, index, name, np.array(attribute.as_ints(), np.int64))

    return step


def numbers(*names: str) -> Step:
    """Attributes that are numbers, as inputs 1, 2, … of the type of input 0."""

    def step(node: ir.Node, context: Context) -> None:
        for index, name in enumerate(names, 1):
            attribute = node.attributes.pop(name, None)
            if attribute is not None:
                context.give_constant(node, index, name, _number(node, attribute))

    return step


def _number(node: ir.Node, attribute: ir.Attr) -> NDArray[np.generic]:
    """A number in the type of the node's input; float32 if that is not known."""
    first = node.inputs[0]
    dtype = np.dtype(np.float32) if first is None or first.dtype is None else first.dtype.numpy()
    with np.errstate(over="ignore"):  # the largest float32 says "no limit" in half floats too
        return np.array(attribute.as_float()).astype(dtype)


def pad(node: ir.Node, context: Context) -> None:
    """Sides, and the number to pad with."""
    value = node.attributes.pop("value", None)
    lists("pads")(node, context)
    if value is not None and value.as_float():
        context.give_constant(node, 2, "value", _number(node, value))


def top_k(node: ir.Node, context: Context) -> None:
    """One number, as a list of one."""
    context.give_constant(node, 1, "k", np.array([node.attributes.pop("k").as_int()], np.int64))


def upsample_scales(node: ir.Node, context: Context) -> None:
    """A list of floats."""
    context.give_constant(node, 1, "scales", np.array(node.attributes.pop("scales").as_floats(), np.float32))


def dft(node: ir.Node, context: Context) -> None:
    """An axis, whose default changed too."""
    axis = node.attributes.pop("axis", None)
    context.give_constant(node, 2, "axis", np.array(1 if axis is None else axis.as_int(), np.int64))
