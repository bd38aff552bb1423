# SPDX-License-Identifier: Apache-2.0
"""A graph that gives statistics of its values, and nothing else.

All numbers leave as one list, for two reasons. Each output costs some microseconds of Python. And the runtime orders
nodes by going back from the last one of the graph, later nodes first: with one last node, and what reads early values
added late, every statistic is computed right after its value, which is still in the cache and then freed. Statistics
that were outputs of their own would all be computed at the end, with every activation alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes import common as passes
from torch import Tensor

from fewbit.backends.graph.adding import Adder, values_of
from fewbit.backends.graph.reducing import DIMS, Gauge, Key, whole
from fewbit.backends.graph.sights import Sight, check_sight, grouped
from fewbit.backends.graph.tapping import Dims
from fewbit.model.watch import SAMPLE, TAPS, VALUES, WINDOWS

STEPS = "fewbit.steps"
"""The input that says, for each value of which there is a sample, through how many elements to step."""

Outputs = Sequence[NDArray[np.float32]]


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
        for sight in sights:
            check_sight(sight, graph, shapes)
        order = {name: place for place, name in enumerate(values)}
        groups = sorted(grouped(sights, shapes).items(), key=lambda pair: order[pair[0][0]])
        self._sights = [group for _, group in groups]
        sizes = [
            max((max(1, s.watch.sample) for s in group if SAMPLE in s.watch.needs), default=0) for _, group in groups
        ]
        self.samples = [size for size in sizes if size]
        self.shapes = [shapes[group[0].value] for group, size in zip(self._sights, sizes) if size]
        self._sampled = [bool(size) for size in sizes]
        add = Adder(graph)
        steps = _steps(graph, add, len(self.samples))
        self._gauges: list[Gauge] = []
        for (name, features), group in reversed(groups):
            needs = frozenset[str]().union(*(sight.watch.needs for sight in group))
            needs |= {TAPS} if WINDOWS in needs else set()
            layers = dict.fromkeys(s.axes for s in group if s.wants_taps and s.axes is not None)
            step = steps.pop() if SAMPLE in needs else None
            self._gauges.insert(0, Gauge(add, values[name], shapes[name], features, needs, step, layers))
        self._ranks = [len(shapes[name]) for (name, _), _ in groups]
        self._wide, self._narrow = self._named(wide=True), self._named(wide=False)
        dims: list[tuple[int, Key]] = [(index, DIMS) for index in range(len(groups))]
        pieces = [self._gauges[index].pieces[key] for index, key in (*dims, *self._wide, *self._narrow)]
        packed = add.join([piece.value for piece in pieces])
        packed.type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs[:] = [packed, *(gauge.raw for gauge in self._gauges if gauge.raw is not None)]
        passes.RemoveUnusedNodesPass()(self.model)
        self._lengths: dict[tuple[tuple[Dims, ...], tuple[int, ...]], tuple[list[int], list[int]]] = {}

    def read(
        self, outputs: Sequence[NDArray[np.float32]], steps: Sequence[int]
    ) -> Iterator[tuple[Sight, dict[str, Tensor]]]:
        """What each sight is to be shown.

        Args:
            outputs: of the copy, for one item.
            steps: that it was given.
        """
        packed = torch.from_numpy(outputs[0])
        raws = iter(outputs[1:])
        dims, start = self._read_dims(outputs[0])
        self.shapes = [shape for shape, sampled in zip(dims, self._sampled) if sampled]
        lengths = self._lengths_of(dims, tuple(steps))
        middle = start + sum(lengths[0])
        wide = packed[start:middle].double()
        clean = bool(wide.sum().isfinite())
        given: list[dict[Key, Tensor]] = [{} for _ in self._gauges]
        for names, part, sizes in ((self._wide, wide, lengths[0]), (self._narrow, packed[middle:], lengths[1])):
            for (index, key), piece in zip(names, torch.split(part, sizes)):
                given[index][key] = piece
        for gauge, sights, shape, pieces in zip(self._gauges, self._sights, dims, given):
            found = gauge.found(pieces, shape, clean)
            if gauge.raw is not None:
                found[VALUES] = torch.from_numpy(next(raws))
            for sight in sights:
                mine = gauge.by_feature(found) if sight.features is not None else whole(found, shape)
                if sight.wants_taps:
                    mine |= gauge.taps(sight.axes, pieces, shape)
                yield sight, mine

    def _named(self, wide: bool) -> list[tuple[int, Key]]:
        pieces = [(i, key, piece) for i, gauge in enumerate(self._gauges) for key, piece in gauge.pieces.items()]
        return [(i, key) for i, key, piece in pieces if piece.wide == wide and key != DIMS]

    def _read_dims(self, packed: NDArray[np.float32]) -> tuple[tuple[Dims, ...], int]:
        count = sum(self._ranks)
        numbers = iter(packed[:count].astype(np.int64).tolist())
        return tuple(tuple(islice(numbers, rank)) for rank in self._ranks), count

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
