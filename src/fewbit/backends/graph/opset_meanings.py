# SPDX-License-Identifier: Apache-2.0
"""Operators that mean something else, or are called something else, in a later operator set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.opset_inputs import Context, Step
from fewbit.backends.graph.shapes import sides
from fewbit.backends.graph.writing import replace_node

Doubt = Callable[[ir.Node], str | None]
"""Why a node cannot be taken to an operator set; none if it can."""


def rename(op_type: str) -> Step:
    """The same operator under another name."""

    def step(node: ir.Node, context: Context) -> None:
        node.op_type = op_type

    return step


def resize(node: ir.Node, context: Context) -> None:
    """Set 10 put both corners at zero; set 11 puts the centres of pixels there unless it is told."""
    scales = node.inputs[1]
    context.give(node, 2, scales)
    no_region = None if context.target >= 13 else context.writer.constant("resize.roi", np.zeros(0, np.float32))
    node.replace_input_with(1, no_region)
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    known = constant(scales)
    shrinks = known is not None and bool(np.any(np.asarray(known, np.float64) < 1))
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")


def doubt_resize(node: ir.Node) -> str | None:
    """ONNX Runtime rounds up where a nearest resize of set 10 shrinks, and down where it grows."""
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return None
    scales = node.attributes.get_floats("scales") if "scales" in node.attributes else constant(node.inputs[1])
    mixed = scales is not None and bool(np.any(np.asarray(scales) < 1) and np.any(np.asarray(scales) > 1))
    return "it grows along one axis and shrinks along another, to the nearest" if mixed else None


def softmax(node: ir.Node, context: Context) -> None:
    """Before 13 all axes from `axis` on were one; from 13 on `axis` stands alone."""
    axis = node.attributes.get_int("axis", 1)
    known = sides(node.inputs[0])
    if known is not None:
        axis %= len(known)
    is_last = axis == -1 or (known is not None and all(side == 1 for side in known[axis + 1 :]))
    node.attributes["axis"] = ir.AttrInt64("axis", axis if is_last else -1)
    if is_last:
        return
    x, name, write = node.inputs[0], node.name or "", context.writer
    shape = write.node("Shape", [x], f"{name}.shape")
    flat = write.node("Flatten", [x], f"{name}.flatten", {"axis": axis})
    inner = write.node(node.op_type, flat.outputs, name, {"axis": -1})
    back = write.node("Reshape", [inner.outputs[0], shape.outputs[0]], f"{name}.reshape")
    replace_node(node, [shape, flat, inner, back], inner)


def split(node: ir.Node, context: Context) -> None:
    """Equal parts have to be counted."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


def batch_norm(node: ir.Node, context: Context) -> None:
    """Outputs of training that nobody reads."""
    node.resize_outputs(1)


def doubt_outputs(node: ir.Node) -> str | None:
    """Before 14 the number of outputs said whether a node trains."""
    used = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    return "it gives more than one output, as in training" if used else None


def no_spatial(node: ir.Node, context: Context) -> None:
    """Always over all positions."""
    node.attributes.pop("spatial", None)


def doubt_spatial(node: ir.Node) -> str | None:
    """One mean a position."""
    return None if node.attributes.get_int("spatial", 1) else "`spatial` is 0, which later operator sets do not have"


def roi_align(node: ir.Node, context: Context) -> None:
    """Set 10 shifted no regions by half a pixel; set 16 does unless it is told."""
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "output_half_pixel"
    )


def grid_sample(node: ir.Node, context: Context) -> None:
    """Modes were renamed."""
    mode = node.attributes.get_string("mode", "bilinear")
    node.attributes["mode"] = ir.AttrString("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def never(reason: str) -> Doubt:
    """A doubt about every node."""
    return lambda node: reason
