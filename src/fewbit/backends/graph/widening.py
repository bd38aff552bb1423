# SPDX-License-Identifier: Apache-2.0
"""A float16 model computed in float32: what a processor does with it anyway, said in the graph.

widen(model)
  infer_shapes      the type of every value
  half              types, constants and casts inside, made float32
  _to_wide          casts behind what stays float16: inputs, and what operators of other domains give
  _to_half          casts before what stays float16: outputs, and what those operators read
  _drop_idle        casts from float32 to float32
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from fewbit.backends.graph.half import FULL, HALF, has_half, is_half, nodes, values, widen_attributes, widen_value
from fewbit.backends.graph.nodes import replace_value
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.backends.graph.writing import RUNTIME, Writer
from fewbit.errors import UsageError

_KNOWN = ("", "ai.onnx", RUNTIME)


def widen(model: ir.Model) -> list[tuple[str, str]]:
    """Compute a float16 model in float32, in place; inputs and outputs stay float16, and all names as they are.

    ONNX Runtime has no integer kernels for float16 on a CPU, and computes it in float32 between casts. The result
    is as near to the float16 model's as float16 rounds, but for numbers that float16 cannot hold.

    Args:
        model: the model; one without float16 is not changed.

    Returns:
        What was done, as `(value or node, what)`; the model itself has the name "".

    Raises:
        UsageError: a list of float16 goes in or out, or the types at an operator of another domain are not known.
    """
    if not has_half(model):
        return []
    infer_shapes(model)
    foreign = [node for node in nodes(model) if _is_foreign(node, model)]
    _refuse(model, foreign)
    graph, write = model.graph, Writer(model.graph)
    kept = [value for value in graph.inputs if value.dtype == HALF]
    kept += [value for node in foreign for value in node.outputs if value.dtype == HALF]
    reads = {(node, i) for node in foreign for i, value in enumerate(node.inputs) if value and value.dtype == HALF}
    outputs = [value for value in graph.outputs if value.dtype == HALF]
    notes = [(node.name or "", f"an operator of the domain {node.domain}: left as it is") for node in foreign]
    notes += [
        (value.name or "", "float16 outside, float32 inside")
        for value in (*graph.inputs, *outputs)
        if is_half(value.type)
    ]
    casts = [node for node in graph.all_nodes() if node.op_type == "Cast" and not node.domain and _meets_half(node)]

    for value in values(model):
        if is_half(value.type) and value not in kept:
            widen_value(value)
    for node in nodes(model):
        if node not in foreign:
            widen_attributes(node)
    for node, index in reads:
        if node.inputs[index] not in kept:
            _read_half(write, node, index)
    for value in kept:
        _read_wide(write, value, reads)
    for value in outputs:
        if value not in kept:
            _end_in_half(write, value)
    idle = sum(_drop_idle(node) for node in casts)
    return [("", f"computed in float32 where it was float16; {idle} casts taken out"), *notes]


def _is_foreign(node: ir.Node, model: ir.Model) -> bool:
    return node.domain not in _KNOWN and node.op_identifier() not in model.functions


def _meets_half(cast: ir.Node) -> bool:
    return is_half(cast.outputs[0].type) or (cast.inputs[0] is not None and is_half(cast.inputs[0].type))


def _read_half(write: Writer, node: ir.Node, index: int) -> None:
    """A cast before a node that reads float16."""
    value = node.inputs[index]
    assert value is not None and node.graph is not None
    cast = write.node("Cast", [value], f"{node.name}.half", {"to": HALF.value}, dtype=HALF)
    node.graph.insert_before(node, cast)
    node.replace_input_with(index, cast.outputs[0])


def _read_wide(write: Writer, value: ir.Value, but: Collection[tuple[ir.Node, int]]) -> None:
    """A cast behind a value that stays float16, for all who read it but some."""
    readers = [(node, index) for node, index in value.uses() if (node, index) not in but]
    is_given = value.is_graph_output() and value.graph is not write.graph  # what a branch or a loop gives is float32
    if not readers and not is_given:
        return
    cast = write.node("Cast", [value], f"{value.name}.wide", {"to": FULL.value}, dtype=FULL)
    cast.outputs[0].shape = value.shape
    producer = value.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.insert_after(producer, cast)
    else:
        write.graph.insert_before(write.graph[0], cast)
    for node, index in readers:
        node.replace_input_with(index, cast.outputs[0])
    if is_given and value.graph is not None:
        ends = value.graph.outputs
        ends[:] = [cast.outputs[0] if end is value else end for end in ends]


def _end_in_half(write: Writer, value: ir.Value) -> None:
    """A cast before an output of the model, which keeps its name."""
    name = value.name
    cast = write.node("Cast", [value], f"{name}.half", {"to": HALF.value}, dtype=HALF)
    out = cast.outputs[0]
    value.name, out.name = out.name, name
    out.shape, out.doc_string = value.shape, value.doc_string
    out.metadata_props.update(value.metadata_props)
    write.graph.append(cast)
    ends = write.graph.outputs
    ends[:] = [out if end is value else end for end in ends]


def _drop_idle(cast: ir.Node) -> bool:
    """Take a cast out that changes nothing any more."""
    before, graph = cast.inputs[0], cast.graph
    if before is None or before.dtype != FULL or cast.outputs[0].dtype != FULL or not isinstance(graph, ir.Graph):
        return False
    if not replace_value(graph, cast.outputs[0], before):
        return False
    graph.remove(cast, safe=True)
    return True


def _refuse(model: ir.Model, foreign: Collection[ir.Node]) -> None:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if is_half(value.type) and not isinstance(value.type, ir.TensorType):
            raise UsageError(
                "a list or an optional of float16 goes in or out", where=value.name, expected="float16 tensors only"
            )
    inside = {node for function in model.functions.values() for node in function.all_nodes()}
    for node in foreign:
        ends = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
        unknown = [
            value.name
            for value in ends
            if value.type is None or (is_half(value.type) and not isinstance(value.type, ir.TensorType))
        ]
        if unknown or node in inside:
            raise UsageError(
                f"a float16 model has the operator {node.op_type} of the domain {node.domain!r}, and what it reads and "
                f"gives is not known: {', '.join(map(str, unknown[:3]))}",
                where=node.name,
                expected="operators of ONNX, or a type in `value_info` for each value of another's",
                try_="quantize the float32 model",
            )
