# SPDX-License-Identifier: Apache-2.0
"""Nodes added behind a graph, in the form that its operator set asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.writing import Writer
from fewbit.errors import UsageError

END = 1 << 62
"""The end of a slice that has none."""

_SINCE = 10  # the operator set in which slices have steps


class Adder:
    """Adds nodes that read a graph's values; what the graph computes stays as it is.

    Args:
        graph: the main graph of a model, of operator set 10 or later.
    """

    def __init__(self, graph: ir.Graph):
        self._write = Writer(graph)
        self._graph = graph
        if self._write.opset < _SINCE:
            raise UsageError(
                f"the model is of operator set {self._write.opset}",
                expected=f"{_SINCE} or later to look at its values",
                try_="`fewbit.backends.graph.opset.raise_opset`",
            )

    def op(self, op_type: str, inputs: Sequence[ir.Value], domain: str = "", **attributes: Any) -> ir.Value:
        """A node; what it gives."""
        return self._node(op_type, inputs, 1, attributes, domain)[0]

    def whole(self, *numbers: int) -> ir.Value:
        """A constant list of whole numbers."""
        return self._write.constant(f"fewbit.{'_'.join(map(str, numbers))}", np.array(numbers, np.int64))

    def floats(self, value: ir.Value) -> ir.Value:
        """A value in float32."""
        return value if value.dtype == ir.DataType.FLOAT else self.op("Cast", [value], to=ir.DataType.FLOAT)

    def reshape(self, value: ir.Value, *sides: int) -> ir.Value:
        """A value in another shape."""
        return self.op("Reshape", [value, self.whole(*sides)])

    def reduce(self, op_type: str, value: ir.Value, axes: Iterable[int], keepdims: bool = False) -> ir.Value:
        """`ReduceSum`, `ReduceMax` or `ReduceMin` over some axes, at least one."""
        axes = list(axes)
        if self._write.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, [value, self.whole(*axes)], keepdims=int(keepdims))
        return self.op(op_type, [value], axes=axes, keepdims=int(keepdims))

    def cut(self, value: ir.Value, axis: int, start: int, end: int = END, step: int | ir.Value = 1) -> ir.Value:
        """Every step-th of the positions along an axis; a start below zero counts from the end."""
        steps = self.whole(step) if isinstance(step, int) else step
        return self.op("Slice", [value, self.whole(start), self.whole(end), self.whole(axis), steps])

    def join(self, values: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        """Values one after the other."""
        return values[0] if len(values) == 1 else self.op("Concat", values, axis=axis)

    def part(self, value: ir.Value, count: int) -> list[ir.Value]:
        """A list of `count` numbers as so many lists of one."""
        more = {"num_outputs": count} if self._write.opset >= 18 else {}
        return self._node("Split", [value], count, {"axis": 0, **more})

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value], count: int, attributes: Mapping[str, Any], domain: str = ""
    ) -> list[ir.Value]:
        names = [f"out{index}" for index in range(count)]
        node = self._write.node(op_type, inputs, f"fewbit.{op_type}", attributes, domain=domain, outputs=names)
        self._graph.append(node)
        return list(node.outputs)


def values_of(graph: ir.Graph) -> dict[str, ir.Value]:
    """What flows through a main graph, by name, in order: its inputs, then what its nodes give."""
    flowing = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {value.name: value for value in flowing if value.name}
