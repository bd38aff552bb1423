# SPDX-License-Identifier: Apache-2.0
"""One walk through a graph, node after node, that finds which channels must go together and which must stay.

Rules (`graph_rules`) say what a node does to the labels of what it reads. What a rule does not ask about is not
understood, and stays: an operator without a rule keeps everything that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.shaping import Form
from fewbit.sparsity.shrinking.classes import Labels, Reason
from fewbit.sparsity.shrinking.graph_marks import Marks, reason_at

Kept = Callable[[Labels], int]
Rule = Callable[["Walk", ir.Node], None]


@dataclass(frozen=True)
class Read:
    """Channels that a node sums over: one of its inputs, the axis, and their labels."""

    node: ir.Node
    index: int
    axis: int
    labels: Labels


class Walk(Marks):
    """What a graph does with the channels that its layers make.

    Args:
        model: the graph; it is looked at, not changed.
        forms: of all its values in one run, by name.
        rules: by operator.
        carriers: where a Reshape cuts an axis into several, which of them counts the channels, by the lengths of these.
        strict: let channels stay whose number the graph reads (Shape), instead of relying on what it does with it.

    Attributes:
        made: layers with the labels of their output channels.
        reads: where channels are summed over.
        heads: labels of heads of attention.
        fixes: what has to be changed beside weights, once it is known how many places each axis keeps.
        choices: lengths of axes between which a choice of carrier was made.
    """

    def __init__(
        self,
        model: ir.Model,
        forms: Mapping[str, Form],
        rules: Mapping[str, Rule],
        carriers: Mapping[tuple[int, ...], int] | None = None,
        *,
        strict: bool = False,
    ):
        super().__init__(forms)
        self.opset = model.opset_imports.get("", 13)
        self.strict = strict
        self.made: list[tuple[ir.Node, Labels]] = []
        self.reads: list[Read] = []
        self.heads: list[Labels] = []
        self.fixes: list[Callable[[Kept], None]] = []
        self.choices: dict[tuple[int, ...], None] = {}
        self._carriers = carriers or {}
        for value in model.graph.inputs:
            self.no_channels(value)
        for node in model.graph:
            self._visit(node, rules)
        for value in model.graph.outputs:
            self.hold(value, Reason(value.name or "", "output", "an output of the graph"))

    # what rules say of channels

    def make(self, node: ir.Node, labels: Labels) -> None:
        """Name the output channels of a layer."""
        self.made.append((node, labels))

    def read(self, node: ir.Node, index: int, axis: int, labels: Labels) -> None:
        """Name channels that are summed over."""
        self.reads.append(Read(node, index, axis, labels))

    def carrier(self, sides: tuple[int, ...], candidates: list[int]) -> int:
        """Which of several axes, of these lengths, counts the channels."""
        if len(candidates) == 1:
            return candidates[0]
        self.choices[sides] = None
        wanted = self._carriers.get(sides, candidates[0])
        return wanted if wanted in candidates else candidates[0]

    def readers(self, roots: set[int]) -> list[str]:
        """The nodes that sum over channels of some classes."""
        wanted = np.array(sorted(roots), np.int64)
        return [read.node.name or "" for read in self.reads if np.isin(self.classes.roots(read.labels), wanted).any()]

    # inside

    def _visit(self, node: ir.Node, rules: Mapping[str, Rule]) -> None:
        self._asked.clear()
        rule = rules.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        if rule is not None and all(self.shape(out) or out.name in self._forms for out in node.outputs[:1]):
            rule(self, node)
        for out in node.outputs:
            if out not in self.labels:
                self.no_channels(out)
        what = "an axis that it does not pass on" if rule else "an operator without a rule"
        for index, value in enumerate(node.inputs):
            if value is not None:
                self.hold(value, reason_at(node, what), index)
        for read in _captured(node):
            if read in self.labels or constant(read) is not None:
                self.hold(read, reason_at(node, "a branch or a loop reads them"))


def _captured(node: ir.Node) -> list[ir.Value]:
    """What the branches and loops of a node read, from around them too."""
    graphs = [attr.as_graph() for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]
    inner = [value for graph in graphs for one in graph.all_nodes() for value in one.inputs if value is not None]
    return list(dict.fromkeys([*inner, *(value for graph in graphs for value in graph.outputs)]))
