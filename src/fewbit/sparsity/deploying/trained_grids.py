# SPDX-License-Identifier: Apache-2.0
"""On which grid each activation of a graph is that integer kernels read or give.

What a trained layer reads is on the grid of its quantizer. What the layer before gives is on the same grid, if nobody
else reads it: it is rounded once, where it was in training, and ONNX Runtime makes one kernel of both. Moving, pooling
and clipping give the same before and after rounding, so that it may come before them. A convolution that gives to
something else, such as a sum, needs a grid nobody trained: its range on data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir
from torch import Tensor

from fewbit.backends.graph.grids import CodeScale, Kin, code_scales
from fewbit.backends.graph.running import Sight, run
from fewbit.backends.graph.units import Unit, units
from fewbit.backends.graph.writing import Writer
from fewbit.model.watch import HIGH, LOW, Watch
from fewbit.sparsity.deploying.grid_readers import Grids, Readers

Range = tuple[float, float]


@dataclass
class Chosen:
    """What computes in integers.

    Args:
        units: layers, and what moves, pools or clips between them.
        scales: by the name of a value, its grid.
        untrained: the layers whose output is on a grid that nobody trained, by the name of the node.
    """

    units: list[Unit] = field(default_factory=list)
    scales: dict[str, CodeScale] = field(default_factory=dict)
    untrained: list[str] = field(default_factory=list)


def choose_grids(model: ir.Model, reads: Grids, integer: Collection[str], feeds: Sequence[Mapping[str, Any]]) -> Chosen:
    """Choose the grids; in the graph a value that is read on several is passed on by an Identity for each.

    Args:
        model: a float graph.
        reads: by the name of a node, the grid of what it reads.
        integer: the names of those nodes that compute in integers.
        feeds: inputs of the graph, for the ranges of values whose readers agree on no grid.
    """
    _part(model.graph, reads)
    readers = Readers(model.graph, reads)
    ranges = _ranges(model, [unit.out for unit in readers.givers(integer) if readers.grid(unit.out) is None], feeds)
    _part_narrow(model.graph, reads, ranges)
    return _chosen(Readers(model.graph, reads), reads, integer, ranges)


def untrained_nodes(model: ir.Model, reads: Grids, integer: Collection[str]) -> list[str]:
    """The nodes that compute in integers only if what they give is rounded as it was not in training."""
    readers = Readers(model.graph, reads)
    return [unit.name for unit in readers.givers(integer) if readers.grid(unit.out) is None]


def _chosen(readers: Readers, reads: Grids, integer: Collection[str], ranges: Mapping[str, Range]) -> Chosen:
    found, chosen = Chosen(), dict[Unit, None]()
    for unit in readers.units:
        if unit.name in integer:
            chosen[unit] = None
            found.scales[_name(unit.reads[0])] = reads[unit.name]
    for unit in readers.givers(integer):
        grid, name = readers.grid(unit.out), _name(unit.out)
        if grid is None:
            found.untrained.append(unit.name)
            offered = readers.offered(unit.out)
            grid = offered if offered is not None and _covers(offered, ranges[name]) else None
        if grid is None:
            found.scales[name] = code_scales({name: Kin(name)}, ranges)[name]
            continue
        found.scales[name] = grid
        for each in readers.between(unit.out):
            chosen[each] = None
            found.scales[_name(each.out)] = grid
    found.units = [unit for unit in readers.units if unit in chosen]
    return found


def _part(graph: ir.Graph, reads: Grids) -> None:
    """A value of its own for each grid on which a value is read."""
    for node, value in list(_reading(graph, reads)):
        others = [use.node.name or "" for use in value.uses()]
        if any(reads.get(other, reads[node.name or ""]) != reads[node.name or ""] for other in others):
            _pass_on(graph, node, value)


def _part_narrow(graph: ir.Graph, reads: Grids, ranges: Mapping[str, Range]) -> None:
    """A value of its own for those who read on a grid that would clip what others read too."""
    for node, value in list(_reading(graph, reads)):
        grid, ends = reads[node.name or ""], ranges.get(_name(value))
        if ends is not None and not _covers(grid, ends):
            _pass_on(graph, node, value)


def _covers(grid: CodeScale, ends: Range) -> bool:
    """Whether a grid reaches as far as a value, to a step."""
    low, high = grid.range
    return low - grid.scale <= ends[0] and ends[1] <= high + grid.scale


def _reading(graph: ir.Graph, reads: Grids) -> Iterator[tuple[ir.Node, ir.Value]]:
    for unit in units(graph):
        if unit.name in reads and unit.layer is not None:
            value = unit.nodes[0].inputs[unit.layer.reads]
            assert value is not None
            yield unit.nodes[0], value


def _pass_on(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    passed = Writer(graph).node("Identity", [value], f"{node.name}.read")
    passed.outputs[0].shape, passed.outputs[0].type = value.shape, value.type
    graph.insert_before(node, passed)
    node.replace_input_with(next(i for i, each in enumerate(node.inputs) if each is value), passed.outputs[0])


def _ranges(model: ir.Model, values: Sequence[ir.Value], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Range]:
    """The smallest and the largest of each value, and zero."""
    found: dict[str, Range] = {_name(value): (0.0, 0.0) for value in values}

    def take(name: str, seen: Mapping[str, Tensor], index: int) -> None:
        low, high = found[name]
        found[name] = min(low, float(seen[LOW].min())), max(high, float(seen[HIGH].max()))

    run(model, feeds, [Sight(name, None, Watch(frozenset({LOW, HIGH}), partial(take, name))) for name in found])
    return found


def _name(value: ir.Value) -> str:
    return value.name or ""
