# SPDX-License-Identifier: Apache-2.0
"""Where the output channels of a node go: which layers read them, and which constants on the way move with them."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.commuting import step
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.reshaping import Mark
from fewbit.backends.graph.sources import Edit, Source, by_input, has_floats
from fewbit.model.ops import EMBEDDING
from fewbit.model.structure import Link


class Places:
    """The nodes of a model in order, by name, and their places; made once for many questions.

    Args:
        model: the model, whose nodes have names.
    """

    def __init__(self, model: ir.Model):
        self.nodes = list(model.graph.all_nodes())
        self.named = {node.name or "": node for node in self.nodes}
        self.order = {node: place for place, node in enumerate(self.nodes)}


class Flow:
    """The way of a source's channels through the graph, until each is read by a layer or lost.

    Args:
        source: whose channels.
        places: of the model's nodes.

    Attributes:
        readers: the layers that read them, and the channel behind each of their inputs (-1: from somewhere else).
        added: constants on the way that have to be scaled with the channels.
        lost: channels that something reads which does not pass a scale on.
        passed: nodes on the way.
    """

    def __init__(self, source: Source, places: Places):
        self.readers: dict[Layer, tuple[int, ...]] = {}
        self.added: list[Edit] = []
        self.lost: set[int] = set()
        self.passed: set[ir.Node] = set()
        self._places = places
        self._marks: dict[ir.Value, Mark] = {}
        self._waiting: list[int] = []  # nodes in the order they run: what joins two ways has seen both
        self._reach(source.node.outputs[0], source.mark)
        before = -1
        while self._waiting and len(self.lost - {-1}) < source.mark.size:
            place = heappop(self._waiting)
            if place != before:  # once for all that it reads
                self._visit(places.nodes[place])
            before = place

    def links(self, name: str) -> list[Link]:
        """The links of the source; two, if one layer reads some channels and another one others."""
        readers: dict[tuple[int, ...], list[str]] = {}
        for layer, channels in self.readers.items():
            readers.setdefault(channels, []).append(layer.name)
        found = []
        for channels, names in readers.items():
            free = tuple(-1 if channel in self.lost else channel for channel in channels)
            if max(free) >= 0:
                found.append(Link(name, tuple(names), free))
        return sorted(found, key=lambda link: link.channels)

    def _reach(self, value: ir.Value, mark: Mark) -> None:
        if mark.max(initial=-1) < 0:
            return
        self._marks[value] = mark
        if value.is_graph_output():
            self._lose(mark)
        for node, _ in value.uses():
            heappush(self._waiting, self._places.order[node])

    def _lose(self, *marks: Mark | None) -> None:
        for mark in marks:
            self.lost.update([] if mark is None else mark.ravel().tolist())

    def _visit(self, node: ir.Node) -> None:
        given = [None if value is None else self._marks.get(value) for value in node.inputs]
        layer = layer_of(node)
        if layer is not None and layer.op is not EMBEDDING:
            self._read(layer, given)
            return
        found = step(node, given)
        if found is None:
            self._lose(*given)
            return
        self.passed.add(node)
        self.lost |= found.lost
        if found.added is not None:
            self.added.append(Edit(node, *found.added))
        for value, mark in zip(node.outputs, found.outputs):
            if mark is not None:
                self._reach(value, mark)

    def _read(self, layer: Layer, given: list[Mark | None]) -> None:
        """A layer that reads marked channels; those it can not scale back are lost."""
        mark = given[layer.reads]
        count = int(by_input(layer).max()) + 1
        channels = None if mark is None else _features(mark, layer.features, count)
        others = [other for place, other in enumerate(given) if other is not None and place != layer.reads]
        if channels is None or others or not has_floats(layer.weight_value):
            self._lose(*given)
            return
        for other in {known for known in self.readers.values() if known != channels}:
            self.lost |= set(other) & set(channels)  # a link has one list for all that read it
        self.readers[layer] = channels


def _features(mark: Mark, axis: int, count: int) -> tuple[int, ...] | None:
    """The channel behind each input of a layer; none if it is not the same everywhere."""
    if mark.ndim < (axis + 1 if axis >= 0 else -axis) or mark.size != mark.shape[axis] or mark.size not in (1, count):
        return None
    return tuple(np.broadcast_to(mark.ravel(), count).tolist())
