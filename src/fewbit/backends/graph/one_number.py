# SPDX-License-Identifier: Apache-2.0
"""Nodes that do one thing to a whole tensor: clip it between two numbers, multiply it with one, or add one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import real
from fewbit.backends.graph.shapes import rank


def clip_of(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a node clips, and where."""
    x = node.inputs[0] if node.inputs else None
    if node.domain or x is None:
        return None
    if node.op_type == "Relu":
        return x, 0.0, np.inf
    if node.op_type == "Clip":
        ends = [real(node, "min", -np.inf), real(node, "max", np.inf)]
        for index, value in enumerate(node.inputs[1:3]):
            if value is not None:
                known = _number(value, x)
                if known is None:
                    return None
                ends[index] = known
        return x, ends[0], ends[1]
    if node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for x, value in (node.inputs, reversed(node.inputs)):
        known = _number(value, x)
        if x is not None and known is not None and constant(x) is None:
            return (x, known, np.inf) if node.op_type == "Max" else (x, -np.inf, known)
    return None


def line_of(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a node reads, what it multiplies that with and what it adds, each one number."""
    if node.domain or node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    number = _number(right, left)
    if left is not None and number is not None and constant(left) is None:
        if node.op_type in ("Mul", "Div"):
            factor = number if node.op_type == "Mul" else 1 / number if number else np.nan
            return (left, factor, 0.0) if np.isfinite(factor) else None
        return left, 1.0, number if node.op_type == "Add" else -number
    number = _number(left, right)
    if right is None or number is None or constant(right) is not None or node.op_type == "Div":
        return None
    return {"Mul": (right, number, 0.0), "Add": (right, 1.0, number), "Sub": (right, -1.0, number)}[node.op_type]


def _number(value: ir.Value | None, beside: ir.Value | None) -> float | None:
    """A constant of one number that adds no axes to what it is beside of."""
    found = constant(value)
    if found is None or found.size != 1 or value is None or value.dtype is None or not value.dtype.is_floating_point():
        return None
    if found.ndim > 1 and found.ndim > (rank(beside) or 0):
        return None
    number = float(np.asarray(found, np.float64).reshape(-1)[0])
    return number if np.isfinite(number) else None
