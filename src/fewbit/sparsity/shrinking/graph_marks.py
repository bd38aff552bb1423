# SPDX-License-Identifier: Apache-2.0
"""The labels along every axis of every value of a graph, of its constants too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.shaping import Form
from fewbit.sparsity.shrinking.classes import Classes, Labels, Reason


class Marks:
    """Labels of values, as rules ask for them and say them, node after node.

    A constant has labels of its own until something ties them to others. Whatever is not asked about by the rule of a
    node that reads it is not understood, and stays.

    Args:
        forms: of all values in one run, by name.

    Attributes:
        classes: what goes together.
        labels: of values, by axis; none for axes of constants that nobody has asked about yet.
    """

    def __init__(self, forms: Mapping[str, Form]):
        self.classes = Classes()
        self.labels: dict[ir.Value, list[Labels | None]] = {}
        self._forms = forms
        self._asked: set[tuple[int, int]] = set()

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

    def no_channels(self, value: ir.Value) -> None:
        """Say that a value has none."""
        self.labels[value] = [np.zeros(side, np.int64) for side in self.shape(value)]

    def hold(self, value: ir.Value, reason: Reason, index: int = -1) -> None:
        """Keep every axis of a value; of an input of the node that is looked at, those that no rule asked about."""
        held = self.labels.setdefault(value, [None] * len(self.shape(value)))
        for axis, labels in enumerate(held):
            if (index, axis) in self._asked:
                continue
            if labels is None:
                held[axis] = np.zeros(self.shape(value)[axis], np.int64)
            else:
                self.classes.stay(labels[labels > 0], reason)

    def _held(self, node: ir.Node, index: int, axis: int) -> tuple[list[Labels | None], int]:
        value = node.inputs[index]
        assert value is not None
        held = self.labels.setdefault(value, [None] * len(self.shape(value)))
        axis %= max(1, len(held))
        self._asked.add((index, axis))
        return held, axis


def reason_at(node: ir.Node, what: str) -> Reason:
    """A reason with its node."""
    return Reason(node.name or "", node.op_type, what)
