# SPDX-License-Identifier: Apache-2.0
"""Which node of a model a node of the graph that ONNX Runtime made of it was.

A fusion keeps the name of one of its nodes, and may end it in a word or a number of its own. What it gives keeps its
name too. A convolution laid out in blocks of channels gives something new, and is named for what it gave before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

_ENDINGS = re.compile(r"(_token_\d+|/\w+Fusion\w*)+$")
_BLOCKS = re.compile(r"(_mul)?_nchwc$")


class Origins:
    """The nodes of a model, to be found from those of an optimized graph.

    Args:
        model: the model that was optimized.
        kinds: operators that a node to be found may have.
    """

    def __init__(self, model: ir.Model, kinds: Collection[str]):
        nodes = list(model.graph.all_nodes())
        self._kinds = kinds
        self._named = {node.name: node for node in nodes if node.op_type in kinds}
        self._made = {value.name: node for node in nodes for value in node.outputs}

    def names(self, nodes: Sequence[ir.Node]) -> list[str]:
        """For each node of the optimized graph the name of the model's node; its own name where there is none.

        A node of the model is named once. The runtime makes convolutions of what was none too, as of products between
        convolutions: those are named by the last of the nodes they were made of.

        Args:
            nodes: all that were of the wanted kinds, whatever became of them.
        """
        found = [self._named.get(node.name) or self._named.get(_ENDINGS.sub("", node.name or "")) for node in nodes]
        taken = {origin for origin in found if origin is not None}
        names = []
        for node, origin in zip(nodes, found):
            if origin is None:
                last = self._last(node)
                origin = last and (self._back(last, taken) or last)
                taken |= {origin} if origin is not None else set()
            names.append((node.name if origin is None else origin.name) or "")
        return names

    def _last(self, node: ir.Node) -> ir.Node | None:
        """The node of the model that gave what a node gives."""
        name = node.name or ""
        given = (*(value.name for value in node.outputs), name.removesuffix("_nchwc"), _BLOCKS.sub("", name))
        return next((self._made[each] for each in given if each in self._made), None)

    def _back(self, node: ir.Node, taken: Collection[ir.Node]) -> ir.Node | None:
        """The nearest node of the wanted kinds that led to a node; another's node ends the way, as codes do."""
        seen, waiting = {node}, [node]
        while waiting:
            at = waiting.pop(0)
            if at.op_type in self._kinds:
                if at not in taken:
                    return at
            elif at.op_type != "QuantizeLinear":
                new = [before for before in _before(at) if before not in seen]
                seen.update(new)
                waiting += new
        return None


def _before(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        before = None if value is None else value.producer()
        if before is not None:
            yield before
