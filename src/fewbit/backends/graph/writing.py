# SPDX-License-Identifier: Apache-2.0
"""New nodes and constants in a model, each under a name that is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

RUNTIME = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class Writer:
    """Makes nodes and constants for one model.

    Args:
        graph: the model's main graph; what is written may go into a branch or a loop inside it.
    """

    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self._nodes: set[str | None] = set()
        self._values: set[str | None] = set()
        self._look_at(graph)

    def _look_at(self, graph: ir.Graph) -> None:
        self._values.update(graph.initializers)
        self._values.update([value.name for value in graph.inputs])
        for node in graph:
            self._nodes.add(node.name)
            for value in node.outputs:
                self._values.add(value.name)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    self._look_at(attribute.as_graph())

    @property
    def opset(self) -> int:
        """The model's operator set."""
        return self.graph.opset_imports.get("", 1)

    def constant(self, name: str, content: NDArray[Any] | ir.TensorProtocol, owner: ir.Graph | None = None) -> ir.Value:
        """An initializer; one of that name and content which is there already serves again.

        Args:
            name: what to call it.
            content: an array, or a tensor of a type that NumPy does not have.
            owner: the graph it shall live in, if not the main one.
        """
        graph = self.graph if owner is None else owner
        tensor = ir.tensor(np.asarray(content, order="C")) if isinstance(content, np.ndarray) else content
        candidate, count = graph.initializers.get(name), 1
        while candidate is not None:
            if candidate.const_value is not None and _equal(candidate.const_value, tensor):
                return candidate
            candidate, count = graph.initializers.get(f"{name}.{count}"), count + 1
        tensor.name = _free(name, self._values)
        shape = ir.Shape([int(str(side)) for side in tensor.shape])
        value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: Sequence[str] = ("out",),
        dtype: ir.DataType | None = None,
    ) -> ir.Node:
        """A node that is in no graph yet.

        Args:
            op_type: its operator.
            inputs: what it reads.
            name: what to call it, and what it gives.
            attributes: plain values by name.
            domain: of the operator; the model says from then on that it uses it.
            outputs: what each output's name ends with.
            dtype: of the first output, where it is known.
        """
        if domain and domain not in self.graph.opset_imports:
            self.graph.opset_imports[domain] = 1
        values = [ir.Value(name=_free(f"{name}.{end}", self._values)) for end in outputs]
        if dtype is not None:
            values[0].type = ir.TensorType(dtype)
        made = ir.convenience.convert_attributes(dict(attributes or {}))
        return ir.Node(domain, op_type, inputs, made, name=_free(name, self._nodes), outputs=values)


def replace_node(old: ir.Node, new: Sequence[ir.Node], main: ir.Node) -> None:
    """Put nodes in the place of one.

    Args:
        old: what goes.
        new: what comes, in order; the last gives what the old one gave, under the same names.
        main: the one of them that does the old one's work and takes over its name, doc string and metadata.
    """
    graph = old.graph
    assert graph is not None
    main.name, main.doc_string = old.name, old.doc_string
    main.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, old.outputs, new[-1].outputs)


def drop_if_unused(value: ir.Value) -> None:
    """Take an initializer out of its graph when nobody reads it."""
    graph = value.graph
    if graph is not None and value.is_initializer() and not value.uses() and not value.is_graph_output():
        graph.initializers.pop(value.name or "")


def _free(wanted: str, taken: set[str | None]) -> str:
    found, count = wanted, 1
    while found in taken:
        found, count = f"{wanted}.{count}", count + 1
    taken.add(found)
    return found


def _equal(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    if first.dtype != second.dtype or list(first.shape) != list(second.shape):
        return False
    return first is second or first.tobytes() == second.tobytes()
