# SPDX-License-Identifier: Apache-2.0
"""Where a model says float16: in types, constants and attributes; each found, and replaced by float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

HALF, FULL = ir.DataType.FLOAT16, ir.DataType.FLOAT
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that name a type


def has_half(model: ir.Model) -> bool:
    """Whether a model says float16 anywhere."""
    said = any(is_half(value.type) for value in values(model))
    return said or any(next(_half_attributes(node), None) is not None for node in nodes(model))


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node, those of branches, loops and functions too."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value, each once."""
    for graph in (*model.graphs(), *(part for function in model.functions.values() for part in _parts(function))):
        yield from graph.inputs
        yield from (value for value in graph.initializers.values() if not value.is_graph_input())
        for node in graph:
            yield from node.outputs


def _parts(function: ir.Function) -> Iterator[ir.Graph]:
    yield function.graph
    yield from function.subgraphs()


def is_half(kind: ir.TypeProtocol | None) -> bool:
    """Whether a type is float16, or a list of it."""
    return kind is not None and kind.dtype == HALF


def widen_value(value: ir.Value) -> None:
    """Make a value float32, and its numbers, if it is a constant."""
    if value.const_value is not None and value.const_value.dtype == HALF:
        value.const_value = _wide_tensor(value.const_value)
    value.type = _wide_type(value.type)


def widen_attributes(node: ir.Node) -> None:
    """Let a node that names float16 name float32: a Cast, a constant, a random number."""
    for attribute in list(_half_attributes(node)):
        wide = FULL.value if attribute.type == ir.AttributeType.INT else _wide_tensor(attribute.as_tensor())
        node.attributes[attribute.name] = ir.convenience.convert_attribute(attribute.name, wide)


def _half_attributes(node: ir.Node) -> Iterator[ir.Attr]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        named = attribute.type == ir.AttributeType.INT and attribute.name in _TYPES and attribute.as_int() == HALF.value
        if named or (attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == HALF):
            yield attribute


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name, doc_string=tensor.doc_string)


def _wide_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """The same type of float32; a new one, because values share theirs."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        inner = _wide_type(kind.elem_type)
        assert inner is not None
        return type(kind)(inner, denotation=kind.denotation)
    return None if kind is None else type(kind)(FULL, denotation=kind.denotation)  # type: ignore[call-arg]
