# SPDX-License-Identifier: Apache-2.0
"""Who reads the values of a graph, and on which grid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import onnx_ir as ir

from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.targets import ONNXRUNTIME
from fewbit.backends.graph.units import Unit, units

Grids = Mapping[str, CodeScale]
"""By the name of a node, the grid of what it reads."""


class Readers:
    """The readers of a graph as it is; one that was changed has others.

    Args:
        graph: the graph.
        reads: by the name of a node, the grid of what it reads.
    """

    def __init__(self, graph: ir.Graph, reads: Grids):
        self.units, self._reads = units(graph), reads
        self._owner = {node: unit for unit in self.units for node in unit.nodes}

    def givers(self, integer: Collection[str]) -> list[Unit]:
        """The units in integers that have to give codes."""
        return [unit for unit in self.units if unit.name in integer and not ONNXRUNTIME.gives_floats(unit)]

    def grid(self, value: ir.Value) -> CodeScale | None:
        """The grid on which all read a value; none if one of them does not, or another."""
        found = {self._wanted(use.node, value) for use in value.uses()}
        return found.pop() if len(found) == 1 and not value.is_graph_output() else None

    def offered(self, value: ir.Value) -> CodeScale | None:
        """The grid on which some read a value, if it is one."""
        found = {self._wanted(use.node, value, self.offered) for use in value.uses()} - {None}
        return found.pop() if len(found) == 1 else None

    def between(self, value: ir.Value) -> Iterator[Unit]:
        """The units that pass a value on to those who read it on a grid."""
        for unit in {self._owner.get(use.node): None for use in value.uses()}:
            if unit is not None and _passes_on(unit, value):
                yield unit
                yield from self.between(unit.out)

    def _wanted(
        self, node: ir.Node, value: ir.Value, after: Callable[[ir.Value], CodeScale | None] | None = None
    ) -> CodeScale | None:
        unit = self._owner.get(node)
        if unit is None:
            return None
        if unit.name in self._reads and unit.layer is not None and value is node.inputs[unit.layer.reads]:
            return self._reads[unit.name]
        return (after or self.grid)(unit.out) if _passes_on(unit, value) else None


def _passes_on(unit: Unit, value: ir.Value) -> bool:
    """Whether a unit gives what it reads as a value, or some of it, as one other."""
    return unit.kind == "pass" and len(unit.gives) == 1 and value is unit.reads[0]
