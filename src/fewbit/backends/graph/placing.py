# SPDX-License-Identifier: Apache-2.0
"""The verbs of a view that places: sites, harm, place, settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import onnx_ir as ir

from fewbit.backends.graph.catalogue import output_point
from fewbit.backends.graph.emit import emit
from fewbit.backends.graph.gating import Gated
from fewbit.backends.graph.grids import CodeScale, code_scales, families, share_codes
from fewbit.backends.graph.placement import NO_REASON, TOO_HARMFUL, Board, Harm, Placement
from fewbit.backends.graph.targets import Shape, target_of
from fewbit.backends.graph.unable import INSIDE
from fewbit.backends.graph.units import Unit, units
from fewbit.model.placing import Placed, Rounding
from fewbit.model.points import Point
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

Range = tuple[float, float]
NO_CODES = "the configuration leaves its weight in float"


@dataclass(frozen=True)
class Choice:
    """A placement, with the names of its units and the place it was made in: the graph it is written to is a copy, and
    may have been given biases meanwhile."""

    names: frozenset[str]
    placement: Placement
    made_in: Placing


class Placing:
    """A graph of which some is to compute in integers.

    Args:
        model: the graph.
        shapes: of its float values, for one sample.
        target: the runtime's name.
        left: names of nodes that stay in float; units are made without them where they can be.
    """

    def __init__(
        self, model: ir.Model, shapes: Mapping[str, Shape], target: str | None, left: Collection[str] = frozenset()
    ):
        self._model, self._left = model, left
        self._shared: frozenset[str] = frozenset()
        self.board = Board(units(model.graph, left), target_of(target), shapes)
        self.points = {_point(value): value for value in self.board.sites()}

    def harm(
        self,
        grids: Mapping[Point, QParams],
        items: Sequence[Mapping[str, Any]],
        noise: Mapping[Point, float] | None = None,
        allowed: float = 0.0,
    ) -> dict[Point, float]:
        """What rounding each value does to the answers."""
        scales = {self.points[point].name or "": scale_of(grid) for point, grid in grids.items()}
        self._shared = self._sharing({point: scale_of(grid).range for point, grid in grids.items()})
        own = None if noise is None else {self.points[point].name or "": noise[point] for point in grids}
        found = Gated(self._model, scales).harm(items, own, allowed)
        return {point: found[self.points[point].name or ""] for point in grids}

    def place(
        self,
        rounding: Mapping[Point, Rounding],
        weights: Mapping[str, float],
        price: float,
        forbidden: Mapping[str, str],
    ) -> Placed:
        """The choice; a layer whose weight has no codes stays in float."""
        without = {unit.name for unit in self.board.units if unit.layer is not None and unit.name not in weights}
        forbidden = {**dict.fromkeys(without, NO_CODES), **forbidden}
        harm = self._harm(rounding, weights)
        free = self.board.place(harm, 0.0, forbidden)
        found = self.board.place(harm, free.before / price, forbidden) if price < float("inf") else free
        quick, chosen = set(free.units), set(found.units)
        kept = {unit.name: self._reason(unit, quick, forbidden) for unit in self.board.units if unit not in chosen}
        main = {node for unit in self.board.units for node in unit.nodes}
        kept |= {node.name or "": INSIDE for node in self._model.graph.all_nodes() if node not in main}
        layers = frozenset(unit.name for unit in found.units if unit.layer is not None)
        counts = Counter(unit.nodes[0].op_type for unit in found.units if unit.kind not in ("pass", "affine"))
        rounded = {
            value for unit in found.units for edge in (*unit.reads, unit.out) for value in self.board.roots(edge)
        }
        sites = frozenset(point for point, value in self.points.items() if value in rounded)
        own = Choice(frozenset(unit.name for unit in found.units), found, self)
        saved = {unit.name: self.board.saved(unit) / found.before for unit in found.units if unit.layer is not None}
        return Placed(
            self.board.target.name, layers, sites, counts, kept, saved, found.before, found.after, found.harm,
            harm.weights, own,
        )  # fmt: skip

    def settle(self, placed: Placed, ranges: Mapping[Point, Range], weights: Mapping[str, QTensor]) -> None:
        """Write the choice into the graph."""
        whole = placed.own.made_in.ranges(ranges)
        fresh = tuple(unit for unit in units(self._model.graph, self._left) if unit.name in placed.own.names)
        for unit in fresh:
            if unit.kind == "hard_sigmoid":
                whole[unit.out.name or ""] = (0.0, 1.0)
            elif unit.layer is not None and unit.out.name not in whole:  # a new bias: everyone reads another value
                whole[unit.out.name or ""] = whole[unit.nodes[0].outputs[0].name or ""]
        placement = replace(placed.own.placement, units=fresh)
        emit(self._model, placement, code_scales(families(fresh, whole), whole), weights)

    def limits(self) -> dict[Point, tuple[float, float]]:
        """Of values that gates alone read, in integers if at all: where the gates are shut, and where wide open."""
        found = {}
        readers = {edge.value: edge.readers for edge in self.board.edges}
        for point, value in self.points.items():
            units = readers.get(value, ())
            if not units or value.is_graph_output() or any(unit.factor <= 0 for unit in units):
                continue
            shut = [-unit.offset / unit.factor for unit in units if unit.kind in ("hard_swish", "hard_sigmoid")]
            if len(shut) != len(units):
                continue
            wide = [(1 - unit.offset) / unit.factor for unit in units if unit.kind == "hard_sigmoid"]
            found[point] = min(shut), max(wide) if len(wide) == len(units) else inf
        return found

    def ranges(self, sites: Mapping[Point, Range]) -> dict[str, Range]:
        """The ranges of all values, by name, from those that were looked at."""
        known = {self.points[point].name or "": ends for point, ends in sites.items()}
        found = {edge.value.name or "": self._range(edge.value, known) for edge in self.board.edges}
        return {name: ends for name, ends in found.items() if ends is not None}

    def _harm(self, rounding: Mapping[Point, Rounding], weights: Mapping[str, float]) -> Harm:
        """A weight's own noise does to the answers what the same noise of rounding the layer's output does."""
        values = {self.points[point].name or "": it for point, it in rounding.items()}
        shares = {}
        for unit in self.board.units:
            it = values.get(unit.out.name or "")
            if unit.layer is not None and unit.name in weights and it is not None:
                shares[unit.name] = weights[unit.name] * it.harm / max(it.noise, 1e-12)
        return Harm({name: it.harm for name, it in values.items()}, shares, self._shared)

    def _sharing(self, sites: Mapping[Point, Range]) -> frozenset[str]:
        """The sums with a number whose codes will be those of what it is added to."""
        known = self.ranges(sites)
        lines = [unit for unit in self.board.units if unit.kind == "affine"]
        ends = {unit: [known.get(value.name or "") for value in (unit.reads[0], unit.out)] for unit in lines}
        return frozenset(
            unit.out.name or ""
            for unit, (before, after) in ends.items()
            if before is not None and after is not None and share_codes(unit, before, after)
        )

    def _reason(self, unit: Unit, quick: Collection[Unit], forbidden: Mapping[str, str]) -> str:
        named = next((forbidden[name] for node in unit.nodes if (name := node.name or "") in forbidden), None)
        return named or self.board.refused(unit) or (TOO_HARMFUL if unit in quick else NO_REASON)

    def _range(self, value: ir.Value, known: Mapping[str, Range]) -> Range | None:
        """The range of a value: its own, or what follows from the one it was moved or scaled from."""
        unit = self.board.derived.get(value)
        if unit is None:
            return known.get(value.name or "")
        found = self._range(unit.reads[0], known)
        return None if found is None else (found[0] * unit.factor, found[1] * unit.factor)


def scale_of(grid: QParams) -> CodeScale:
    """Scale and zero point of one value as uint8 has them."""
    lowest = int(grid.grid.dtype.lowest)
    zero = 0 if grid.zero_point is None else int(grid.zero_point.reshape(-1)[0])
    return CodeScale(float(grid.scale.reshape(-1)[0]), zero - lowest)


def _point(value: ir.Value) -> Point:
    node = value.producer()
    if node is None or node.outputs[0] is not value:  # an input of the graph, or one of several parts
        return output_point(value.name or "", "Input" if node is None else node.op_type)
    return output_point(node.name or "", node.op_type)
