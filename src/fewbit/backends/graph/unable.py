# SPDX-License-Identifier: Apache-2.0
"""Layers that cannot compute in integers, whatever the data shows: what a plan can say beforehand."""

from __future__ import annotations

import onnx_ir as ir

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.linear import bias_of, linear_terms
from fewbit.backends.graph.targets import Target
from fewbit.backends.graph.units import Unit, units
from fewbit.backends.graph.weights import shape_of
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, LINEAR

INSIDE = "it lies in a branch or a loop, which computes in float"
_OTHER_FLOATS = (ir.DataType.DOUBLE, ir.DataType.BFLOAT16)  # float16 is made float32 first


def no_kernel(unit: Unit, target: Target) -> str | None:
    """Why a runtime cannot compute a unit in integers with fixed scales; none if nothing is known against it."""
    if unit.kind not in target.integer:
        return f"{target.name} has no integer kernel for {unit.nodes[0].op_type}"
    if any(value.dtype in _OTHER_FLOATS for value in (*unit.reads, unit.out)):
        return f"it computes in {unit.out.dtype}, and codes are made of float32 only"
    if unit.layer is not None and unit.layer.split:
        return "of a grouped transposed convolution no axis numbers the output channels"
    return None


def unable_static(model: ir.Model, target: Target) -> dict[str, str]:
    """The nodes that a runtime does not compute in integers with fixed scales, by name, each with the reason."""
    placed = units(model.graph)
    found = {unit.name: why for unit in placed if (why := no_kernel(unit, target)) is not None}
    main = {node for unit in placed for node in unit.nodes}
    return found | {node.name or "": INSIDE for node in model.graph.all_nodes() if node not in main}


def unable_dynamic(layer: Layer) -> str | None:
    """Why a layer with an integer weight cannot have its input scaled in each call; none if it can."""
    if layer.op not in (LINEAR, CONV):
        return f"a {layer.node.op_type}, of which there are no integer nodes"
    try:
        if layer.op is LINEAR:
            bias_of(layer, linear_terms(layer), shape_of(layer)[0])
    except UsageError as error:
        return error.what
    return None
