# SPDX-License-Identifier: Apache-2.0
"""A graph that gives statistics of its values, and nothing else.

All numbers leave as one list, and all lengths as another, for two reasons. Each output costs some microseconds of
Python. And the runtime orders nodes by going back from the last one of the graph, later nodes first: with one last
node, and what reads early values added late, every statistic is computed right after its value, which is still in the
cache and then freed. Statistics that were outputs of their own would all be computed at the end, with every activation
alive. Lists of two types come from one node only if that is an If, whose condition is an input: a constant is folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes import common as passes
from torch import Tensor

from fewbit.backends.graph.adding import Adder, values_of
from fewbit.backends.graph.reducing import Gauge, Key, whole
from fewbit.backends.graph.sights import Sight, check_sights, grouped
from fewbit.backends.graph.tapping import Dims
from fewbit.backends.graph.writing import Writer
from fewbit.model.watch import SAMPLE, TAPS, VALUES, WINDOWS

STEPS = "fewbit.steps"
"""The input that says, for each value of which there is a sample, through how many elements to step."""

ASKED = "fewbit.asked"
"""The input that says that statistics are wanted."""

# What gives as many things as it finds, none among them, and what holds other graphs.
_FINDING = ("NonZero", "NonMaxSuppression", "Compress", "Unique", "If", "Loop", "Scan")


class Probe:
    """A copy of a model that answers what is asked about its values.

    Args:
        model: the model; it is not changed.
        sights: what is asked, at least one thing.
        shapes: of the values, for one item.

    Attributes:
        model: the copy.
        samples: for each value of which there is a sample, how large it is to be.
        shapes: of these values, for the item that was read last.

    Raises:
        UsageError: a value that cannot be watched.
    """

    def __init__(self, model: ir.Model, sights: Sequence[Sight], shapes: Mapping[str, Dims]):
        self.model = model.clone(deep_copy=False)
        graph = self.model.graph
        values = values_of(graph)
        check_sights(sights, graph, shapes)
        order = {name: place for place, name in enumerate(values)}
        groups = sorted(grouped(sights, shapes).items(), key=lambda pair: order[pair[0][0]])
        self._sights = [group for _, group in groups]
        sizes = [
            max((max(1, s.watch.sample) for s in group if SAMPLE in s.watch.needs), default=0) for _, group in groups
        ]
        self.samples = [size for size in sizes if size]
        self.shapes = [shapes[group[0].value] for group, size in zip(self._sights, sizes) if size]
        self._sampled = [bool(size) for size in sizes]
        sparse = _sparse(graph)
        add = Adder(graph)
        steps = _steps(graph, add, len(self.samples))
        self._gauges: list[Gauge] = []
        for (name, features), group in reversed(groups):
            needs = frozenset[str]().union(*(sight.needs for sight in group))
            needs |= {TAPS} if WINDOWS in needs else set()
            layers = dict.fromkeys(s.axes for s in group if s.wants_taps and s.axes is not None)
            step = steps.pop() if SAMPLE in needs else None
            gauge = Gauge(add, values[name], shapes[name], features, needs, step, layers, values[name] in sparse)
            self._gauges.insert(0, gauge)
        self._ranks = [len(shapes[name]) for (name, _), _ in groups]
        self._wide, self._narrow = self._named(wide=True), self._named(wide=False)
        pieces = [self._gauges[index].pieces[key].value for index, key in (*self._wide, *self._narrow)]
        lists = {ir.DataType.INT64: [gauge.dims for gauge in self._gauges], ir.DataType.FLOAT: pieces}
        packed = _packed(graph, {dtype: values for dtype, values in lists.items() if values})
        graph.outputs[:] = [*packed, *(gauge.raw for gauge in self._gauges if gauge.raw is not None)]
        passes.RemoveUnusedNodesPass()(self.model)
        self._lengths: dict[tuple[tuple[Dims, ...], tuple[int, ...]], tuple[list[int], list[int]]] = {}

    def feed(self, item: Mapping[str, Any], steps: Sequence[int]) -> dict[str, Any]:
        """What the copy is to be given for an item.

        Args:
            item: arrays by input.
            steps: through each value of which there is a sample.
        """
        more = {STEPS: np.array(steps, np.int64)} if steps else {}
        return {**item, **more, ASKED: np.array(True)}

    def read(self, outputs: Sequence[NDArray[Any]], steps: Sequence[int]) -> Iterator[tuple[Sight, dict[str, Tensor]]]:
        """What each sight is to be shown; values as they are, for `Sight.shown`; nothing where one is empty.

        Args:
            outputs: of the copy, for one item.
            steps: that it was given.
        """
        numbers, rest = iter(outputs[0].tolist()), iter(outputs[1:])
        dims = tuple(tuple(islice(numbers, rank)) for rank in self._ranks)
        packed = torch.from_numpy(next(rest)) if self._wide or self._narrow else torch.empty(0)
        self.shapes = [shape for shape, sampled in zip(dims, self._sampled) if sampled]
        lengths = self._lengths_of(dims, tuple(steps))
        middle = sum(lengths[0])
        wide = packed[:middle].double()
        clean = bool(wide.sum().isfinite())
        given: list[dict[Key, Tensor]] = [{} for _ in self._gauges]
        for names, part, sizes in ((self._wide, wide, lengths[0]), (self._narrow, packed[middle:], lengths[1])):
            for (index, key), piece in zip(names, torch.split(part, sizes)):
                given[index][key] = piece
        for gauge, sights, shape, pieces in zip(self._gauges, self._sights, dims, given):
            raw = None if gauge.raw is None else next(rest)
            if 0 in shape:
                continue
            found = gauge.found(pieces, shape, clean)
            if raw is not None:
                found[VALUES] = torch.from_numpy(raw)
            for sight in sights:
                known = found if VALUES in sight.needs else {key: x for key, x in found.items() if key != VALUES}
                mine = dict(known) if sight.features is not None else whole(known, shape)
                if sight.wants_taps:
                    mine |= gauge.taps(sight.axes, pieces, shape)
                yield sight, mine

    def _named(self, wide: bool) -> list[tuple[int, Key]]:
        pieces = [(i, key, piece) for i, gauge in enumerate(self._gauges) for key, piece in gauge.pieces.items()]
        return [(i, key) for i, key, piece in pieces if piece.wide == wide]

    def _lengths_of(self, dims: tuple[Dims, ...], steps: tuple[int, ...]) -> tuple[list[int], list[int]]:
        found = self._lengths.get((dims, steps))
        if found is None:
            rest = iter(steps)
            step = [next(rest) if sampled else 1 for sampled in self._sampled]
            wide, narrow = (
                [self._gauges[i].pieces[key].length(dims[i], step[i]) for i, key in names]
                for names in (self._wide, self._narrow)
            )
            found = self._lengths[dims, steps] = (wide, narrow)
        return found


def _steps(graph: ir.Graph, add: Adder, count: int) -> list[ir.Value]:
    if not count:
        return []
    steps = ir.Value(name=STEPS, shape=ir.Shape([count]), type=ir.TensorType(ir.DataType.INT64))
    graph.inputs.append(steps)
    return add.part(steps, count)


def _sparse(graph: ir.Graph) -> set[ir.Value]:
    """Values that an item may leave empty, though nothing that it holds is."""
    found: set[ir.Value] = set()
    for node in graph:
        if node.op_type in _FINDING or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _packed(graph: ir.Graph, lists: dict[ir.DataType, list[ir.Value]]) -> list[ir.Value]:
    """Each of some lists of values as one: what leaves is computed by one node, and that is the last one."""
    asked = ir.Value(name=ASKED, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(asked)
    write = Writer(graph)

    def branch(name: str, parts: dict[ir.DataType, list[ir.Value]]) -> ir.Graph:
        nodes = [write.node("Concat", part, f"{name}.{dtype.name}", {"axis": 0}) for dtype, part in parts.items()]
        for node, dtype in zip(nodes, parts):
            node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), ir.Shape([None])
        return ir.Graph([], [node.outputs[0] for node in nodes], nodes=nodes, name=name)

    branches = {
        "then_branch": branch("fewbit.all", lists),
        "else_branch": branch("fewbit.few", {dtype: part[:1] for dtype, part in lists.items()}),
    }
    node = write.node("If", [asked], "fewbit.packed", branches, outputs=[dtype.name for dtype in lists])
    for value, dtype in zip(node.outputs, lists):
        value.type, value.shape = ir.TensorType(dtype), ir.Shape([None])
    graph.append(node)
    return list(node.outputs)
