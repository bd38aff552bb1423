# SPDX-License-Identifier: Apache-2.0
"""A model in a later operator set: nodes that changed are rewritten, all else stays as it is."""

from __future__ import annotations

import onnx_ir as ir
from onnx import defs, helper

from fewbit.backends.graph.opset_inputs import Context
from fewbit.backends.graph.opset_steps import DOUBTS, STEPS
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.backends.graph.writing import RUNTIME, Writer
from fewbit.errors import UsageError

BY_AXIS, BY_BLOCK = 13, 21
"""The operator sets that first have scales along an axis, and scales of blocks and 4-bit types."""

_RUNTIME_SINCE = 10  # the set that ONNX Runtime's integer kernels belong to


def raise_opset(model: ir.Model, at_least: int, *, fallback: int | None = None) -> list[tuple[str, str]]:
    """Bring a model to an operator set, in place; one that is there already is left alone.

    Weights are not touched, so the size of the model does not matter. Nodes in branches and loops are rewritten too,
    those of other domains never; names, doc strings and metadata stay.

    Args:
        model: the model.
        at_least: the operator set that is needed.
        fallback: an earlier one that will do where the model cannot be brought to the first; see `quantize_domain`.

    Returns:
        What was done, as `(node, what)`; the model itself has the name "".

    Raises:
        UsageError: an operator that cannot be taken there; the model is as it was.
    """
    if "ai.onnx" in model.opset_imports:  # the same domain by its long name
        model.opset_imports[""] = model.opset_imports.pop("ai.onnx")
    before = model.opset_imports.get("", at_least)
    # Without this, older files would have to name every initializer among the inputs.
    model.ir_version = max(model.ir_version, 4)
    if before >= at_least:
        return []
    reasons = _reasons(model, before, at_least)
    if reasons and fallback is not None and fallback < at_least:
        notes = raise_opset(model, fallback)
        return [*notes, *((name, f"keeps the model from operator set {at_least}: {why}") for name, why in reasons)]
    if reasons:
        raise UsageError(
            f"the model cannot be brought from operator set {before} to {at_least}: {reasons[0][1]}",
            where=", ".join(name for name, _ in reasons[:5]),
            expected=f"operators that operator set {at_least} has too",
            try_=f"export the model with operator set {at_least} or later",
        )
    notes = _convert(model, before, at_least)
    model.opset_imports[""] = at_least
    for function in model.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = max(at_least, function.opset_imports[""])
    needed = helper.find_min_ir_version_for([helper.make_opsetid("", at_least)], ignore_unknown=True)
    model.ir_version = max(model.ir_version, needed)
    return [("", f"from operator set {before} to {at_least}"), *notes]


def quantize_domain(model: ir.Model | ir.Graph) -> str:
    """The domain in which a model can have QuantizeLinear and DequantizeLinear with scales along an axis.

    ONNX Runtime has operators of its own that take them in operator sets 10 to 12, and fuses them in the same way.
    """
    return "" if model.opset_imports.get("", 1) >= BY_AXIS else RUNTIME


def _standard(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx")


def _reasons(model: ir.Model, before: int, target: int) -> list[tuple[str, str]]:
    """Nodes that cannot be taken to an operator set, and why not."""
    found = []
    for node in model.graph.all_nodes():
        if not _standard(node):
            continue
        doubts = (DOUBTS.get((node.op_type, version)) for version in range(before + 1, target + 1))
        reasons = [reason for doubt in doubts if doubt is not None and (reason := doubt(node))]
        renamed = {"Upsample": "Resize", "Scatter": "ScatterElements"}.get(node.op_type, node.op_type)
        if not reasons and not defs.has(renamed, target, ""):
            reasons = [f"it has no operator {node.op_type}"]
        found += [(node.name or "", f"{node.op_type}: {reasons[0]}")] if reasons else []
    for function in model.functions.values():
        since = function.opset_imports.get("", target)
        for node in function.all_nodes():
            if _standard(node) and any((node.op_type, v) in STEPS for v in range(since + 1, target + 1)):
                found.append((node.name or "", f"{node.op_type}: it lies inside the function {function.name}"))
    return found


def _convert(model: ir.Model, before: int, target: int) -> list[tuple[str, str]]:
    nodes = [node for node in model.graph.all_nodes() if _standard(node)]
    versions = range(before + 1, target + 1)
    changing = [node for node in nodes if any((node.op_type, version) in STEPS for version in versions)]
    if any(value.dtype is None or value.shape is None for node in changing for value in node.inputs[:1] if value):
        infer_shapes(model)  # types of new constants follow from the values they are used with
    context, notes = Context(Writer(model.graph), target), []
    for node in changing:
        for version in versions:
            step = STEPS.get((node.op_type, version))
            if step is not None and node.graph is not None:
                step(node, context)
        notes.append((node.name or "", f"{node.op_type}, as operator set {target} writes it"))
    return notes
