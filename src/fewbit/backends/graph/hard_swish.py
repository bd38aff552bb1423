# SPDX-License-Identifier: Apache-2.0
"""Hard-swish, x · clip(x + 3, 0, 6) / 6, spelled out in four nodes: said in the two that runtimes know."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import only_reader, real, replace_value


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
    if add is None or add.op_type != "Add" or only_reader(add) is None:
        return None
    x = next((v for v in add.inputs if v is not None and constant(v) is None), None)
    three = next((constant(v) for v in add.inputs if v is not None and constant(v) is not None), None)
    if x is None or three is None or three.size != 1 or not np.all(np.asarray(three) == 3):
        return None
    first = only_reader(clip)
    second = None if first is None else only_reader(first)
    if first is None or second is None:
        return None
    for mul, scale in ((first, second), (second, first)):
        if mul.op_type == "Mul" and x in mul.inputs and _is_sixth(scale):
            return x, [add, clip, first, second]
    return None


def _is_sixth(node: ir.Node) -> bool:
    value = next((constant(v) for v in node.inputs if v is not None and constant(v) is not None), None)
    if value is None or value.size != 1:
        return False
    wanted = 6.0 if node.op_type == "Div" and constant(node.inputs[1]) is not None else 1 / 6
    return node.op_type in ("Div", "Mul") and bool(np.allclose(np.asarray(value, np.float64), wanted, rtol=1e-5))


def _clip_ends(node: ir.Node) -> tuple[float, float] | None:
    if "min" in node.attributes or "max" in node.attributes:
        return real(node, "min", -np.inf), real(node, "max", np.inf)
    ends = [constant(v) if v is not None else None for v in (*node.inputs[1:3], None, None)[:2]]
    return None if any(end is None for end in ends) else (float(ends[0]), float(ends[1]))  # type: ignore[arg-type]
