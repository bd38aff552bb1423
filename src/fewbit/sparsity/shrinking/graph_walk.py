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
from fewbit.sparsity.shrinking.graph_classes import Classes, Labels, Reason

Kept = Callable[[Labels], int]
Rule = Callable[["Walk", ir.Node], None]


@dataclass(frozen=True)
class Read:
    """Channels that a node sums over: one of its inputs, the axis, and their labels."""

    node: ir.Node
    index: int
    axis: int
    labels: Labels


class Walk:
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
        self.classes = Classes()
        self.opset = model.opset_imports.get("", 13)
        self.strict = strict
        self.made: list[tuple[ir.Node, Labels]] = []
        self.reads: list[Read] = []
        self.heads: list[Labels] = []
        self.fixes: list[Callable[[Kept], None]] = []
        self.choices: dict[tuple[int, ...], None] = {}
        self.labels: dict[ir.Value, list[Labels | None]] = {}
        self._forms, self._carriers = forms, carriers or {}
        self._asked: set[tuple[int, int]] = set()
        for value in model.graph.inputs:
            self.labels[value] = self._no_channels(value)
        for node in model.graph:
            self._visit(node, rules)
        for value in model.graph.outputs:
            self._hold(value, Reason(value.name or "", "output", "an output of the graph"))

    # what rules ask

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape that a value had in the run, or that a constant has."""
        if value is None:
            return ()
        held = constant(value)
        if held is not None:
            return tuple(held.shape)
        form = self._forms.get(value.name or "")
        return () if form is None else form.shape

    def form(self, value: ir.Value) -> Form:
        """Shape and type of an activation in the run."""
        return self._forms[value.name or ""]

    def is_constant(self, node: ir.Node, index: int) -> bool:
        """Whether an input of a node is an initializer."""
        return len(node.inputs) > index and constant(node.inputs[index]) is not None

    def has(self, node: ir.Node, index: int) -> bool:
        """Whether a node has an input."""
        return len(node.inputs) > index and node.inputs[index] is not None

    def axis(self, node: ir.Node, index: int, axis: int) -> Labels:
        """The labels along an axis of an input."""
        held, axis = self._held(node, index, axis)
        found = held[axis]
        if found is None:
            found = held[axis] = self.classes.new(self.shape(node.inputs[index])[axis])
        return found

    def axes(self, node: ir.Node, index: int = 0) -> list[Labels]:
        """The labels along all axes of an input."""
        return [self.axis(node, index, axis) for axis in range(len(self.shape(node.inputs[index])))]

    # what rules say

    def tie(self, node: ir.Node, index: int, axis: int, labels: Labels) -> None:
        """Let the places along an axis of an input go together with others."""
        held, axis = self._held(node, index, axis)
        found = held[axis]
        if found is None:
            held[axis] = labels
        elif found is not labels:
            self.join(node, found, labels)

    def join(self, node: ir.Node, a: Labels, b: Labels) -> None:
        """Let places go together."""
        self.classes.join(a, b, reason_at(node, "it joins them with what is no channel that could be taken out"))

    def stay(self, node: ir.Node, labels: Labels, what: str) -> None:
        """Let channels stay."""
        self.classes.stay(labels[labels > 0], reason_at(node, what))

    def give(self, node: ir.Node, *outputs: list[Labels]) -> None:
        """Say the labels of a node's outputs."""
        for value, labels in zip(node.outputs, outputs):
            self.labels[value] = list(labels)

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

    # inside

    def _visit(self, node: ir.Node, rules: Mapping[str, Rule]) -> None:
        self._asked.clear()
        rule = rules.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        if rule is not None and all(self.shape(out) or out.name in self._forms for out in node.outputs[:1]):
            rule(self, node)
        for out in node.outputs:
            if out not in self.labels:
                self.labels[out] = self._no_channels(out)
        what = "an axis that it does not pass on" if rule else "an operator without a rule"
        for index, value in enumerate(node.inputs):
            if value is not None:
                self._hold(value, reason_at(node, what), index)
        for read in _captured(node):
            if read in self.labels or constant(read) is not None:
                self._hold(read, reason_at(node, "a branch or a loop reads them"))

    def _held(self, node: ir.Node, index: int, axis: int) -> tuple[list[Labels | None], int]:
        value = node.inputs[index]
        assert value is not None
        held = self.labels.setdefault(value, [None] * len(self.shape(value)))
        axis %= max(1, len(held))
        self._asked.add((index, axis))
        return held, axis

    def _hold(self, value: ir.Value, reason: Reason, index: int = -1) -> None:
        """Keep every axis of a value that no rule asked about."""
        held = self.labels.setdefault(value, [None] * len(self.shape(value)))
        for axis, labels in enumerate(held):
            if (index, axis) in self._asked and index >= 0:
                continue
            if labels is None:
                held[axis] = np.zeros(self.shape(value)[axis], np.int64)
            else:
                self.classes.stay(labels[labels > 0], reason)

    def _no_channels(self, value: ir.Value) -> list[Labels | None]:
        return [np.zeros(side, np.int64) for side in self.shape(value)]


def reason_at(node: ir.Node, what: str) -> Reason:
    """A reason with its node."""
    return Reason(node.name or "", node.op_type, what)


def _captured(node: ir.Node) -> list[ir.Value]:
    """What the branches and loops of a node read, from around them too."""
    graphs = [attr.as_graph() for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]
    inner = [value for graph in graphs for one in graph.all_nodes() for value in one.inputs if value is not None]
    return list(dict.fromkeys([*inner, *(value for graph in graphs for value in graph.outputs)]))
