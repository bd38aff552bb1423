# SPDX-License-Identifier: Apache-2.0
"""Placement: which units of a graph compute in integers, as the cheapest choice of all at once.

A unit in integers costs its integer time, in float its float time. Between the two, floats are made codes and codes
floats, each once for a value, whoever reads it. What rounding a value does to the model's answers is a cost too,
counted with a price: at price 0 only time counts, at a higher one more stays in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import onnx_ir as ir

from fewbit.backends.graph.cut import Choice
from fewbit.backends.graph.targets import Shape, Target, crossing, elements, work_of
from fewbit.backends.graph.unable import no_kernel
from fewbit.backends.graph.units import Unit

NO_REASON = "in float it costs less, all in all"
TOO_HARMFUL = "what rounding it does to the answers is not worth the time"


@dataclass(frozen=True)
class Harm:
    """What rounding does to the model's answers, as shares of their energy.

    Args:
        values: by the name of a value that a unit computes: as codes.
        weights: by the name of a layer: its weight as codes.
        shared: names of values that are the codes their unit reads, read in another way: in integers, it does no harm.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Edge:
    """A value, who gives it and who reads it."""

    value: ir.Value
    producer: Unit | None
    readers: tuple[Unit, ...]


@dataclass(frozen=True)
class Placement:
    """What computes in integers.

    Args:
        target: for which runtime.
        units: in integers, in order.
        before: what the model costs in float, in nanoseconds.
        after: what it costs like this.
        harm: the sum of the shares that are taken.
    """

    target: Target
    units: tuple[Unit, ...]
    before: float
    after: float
    harm: float

    def gives_codes(self, unit: Unit) -> bool:
        """Whether what a unit in integers gives comes as codes, and as codes only."""
        return not self.target.gives_floats(unit)


class Board:
    """The units of a graph, ready to be placed.

    Args:
        units: all of them.
        target: the runtime.
        shapes: of the float values, for one sample.
    """

    def __init__(self, units: list[Unit], target: Target, shapes: Mapping[str, Shape]):
        self.units, self.target, self.shapes = units, target, shapes
        owner = {node: unit for unit in units for own in unit.nodes for node in _whole(own)}
        self.edges = [_edge(value, owner) for value in dict.fromkeys(_values(units))]
        self.derived = {edge.value: edge.producer for edge in self.edges if _is_derived(edge.producer)}
        work = {unit: work_of(unit, shapes) for unit in units}
        self._float = {unit: target.floating(work[unit]) for unit in units}
        self._integer = {unit: target.integer[unit.kind](work[unit]) for unit in units if not self.refused(unit)}

    def refused(self, unit: Unit) -> str | None:
        """Why a unit cannot compute in integers; none if it can."""
        if (known := no_kernel(unit, self.target)) is not None:
            return known
        if any((value.name or "") not in self.shapes for value in (*unit.reads, *unit.gives)):
            return "its values are not float, or no sample reached it"
        if any(value.dtype not in (None, ir.DataType.FLOAT) for value in (*unit.reads, unit.out)):
            return f"it computes in {unit.out.dtype}, and codes are made of float32 only"
        if unit.kind == "affine" and len({len(self.shapes[v.name or ""]) for v in (*unit.reads, unit.out)}) > 1:
            return "it adds axes"
        return None

    def saved(self, unit: Unit) -> float:
        """The time that a unit takes less in integers, by itself."""
        return self._float[unit] - self._integer[unit]

    def sites(self) -> list[ir.Value]:
        """The values that may become codes and that a unit computes: what merely moves or is scaled follows them."""
        wanted: dict[ir.Value, None] = {}
        for edge in self.edges:
            if any(unit in self._integer for unit in (edge.producer, *edge.readers) if unit is not None):
                wanted.update(dict.fromkeys(self.roots(edge.value)))
        return [value for value in wanted if (value.name or "") in self.shapes]

    def roots(self, value: ir.Value) -> list[ir.Value]:
        """The computed values that a value consists of."""
        found: dict[ir.Value, None] = {}
        waiting = [value]
        while waiting:
            at = waiting.pop()
            unit = self.derived.get(at)
            if unit is None:
                found[at] = None
            else:
                waiting += unit.reads
        return list(found)

    def place(self, harm: Harm | None = None, price: float = 0.0, forbidden: Iterable[str] = ()) -> Placement:
        """The units that compute in integers.

        Args:
            harm: what rounding does to the answers.
            price: nanoseconds that a whole unit of harm is worth.
            forbidden: nodes that stay in float, by name.
        """
        harm, out = harm or Harm(), set(forbidden)
        choice = Choice()
        labels = {unit: choice.add(**self._costs(unit, harm, price, out)) for unit in self.units}
        rounders: dict[ir.Value, dict[int, None]] = {}
        for edge in self.edges:
            for label in self._charge(choice, labels, edge):
                for root in self.roots(edge.value):
                    rounders.setdefault(root, {})[label] = None
        makers = {edge.value: edge.producer for edge in self.edges if edge.value.name in harm.shared}
        for root, members in rounders.items():
            maker = makers.get(root)
            without = None if maker is None else labels[maker]
            choice.charge_if_any(members, without=without, cost=harm.values.get(root.name or "", 0.0) * price)
        chosen = {unit: None for unit, yes in zip(labels, choice.solve(labels.values())) if yes}
        before = sum(self._float.values())
        return Placement(self.target, tuple(chosen), before, self._time(chosen), self._harm(chosen, harm))

    def _costs(self, unit: Unit, harm: Harm, price: float, out: set[str]) -> dict[str, float]:
        if unit not in self._integer or any(node.name in out for node in unit.nodes):
            return {"yes": inf}
        return {"yes": self._integer[unit] + harm.weights.get(unit.name, 0.0) * price, "no": self._float[unit]}

    def _crossings(self, edge: Edge) -> tuple[float, float]:
        shape = self.shapes.get(edge.value.name or "", ())
        return crossing(self.target, self.target.to_codes, shape), crossing(self.target, self.target.from_codes, shape)

    def _unfused(self, edge: Edge) -> float:
        """What the one reader of a convolution costs more in float, if the convolution is not."""
        if edge.producer is None or edge.producer.kind != "conv" or len(edge.readers) != 1:
            return 0.0
        each = self.target.unfused.get(edge.readers[0].kind, 0.0)
        return each * elements(self.shapes.get(edge.value.name or "", ()))

    def _charge(self, choice: Choice, labels: Mapping[Unit, int], edge: Edge) -> list[int]:
        """Put the costs of an edge into the choice; those who, if in integers, see the value rounded."""
        to_codes, from_codes = self._crossings(edge)
        readers = [labels[unit] for unit in edge.readers]
        if edge.producer is None:
            choice.charge_if_any(readers, cost=to_codes)
            return readers
        own = labels[edge.producer]
        choice.charge_if_any(readers, without=own, cost=to_codes)
        choice.charge_if_any_not(readers, beside=own, cost=self._unfused(edge))
        if self.target.gives_floats(edge.producer):
            return readers
        outside = [choice.add(yes=inf)] if edge.value.is_graph_output() else []
        choice.charge_if_any_not([*readers, *outside], beside=own, cost=from_codes)
        return [*readers, own]

    def _time(self, chosen: dict[Unit, None]) -> float:
        total = sum(self._integer[unit] if unit in chosen else self._float[unit] for unit in self.units)
        for edge in self.edges:
            to_codes, from_codes = self._crossings(edge)
            readers = [unit in chosen for unit in edge.readers]
            if edge.producer not in chosen:
                total += to_codes if any(readers) else 0.0
                continue
            total += 0.0 if all(readers) else self._unfused(edge)
            if not self.target.gives_floats(edge.producer) and (not all(readers) or edge.value.is_graph_output()):
                total += from_codes
        return total

    def _harm(self, chosen: dict[Unit, None], harm: Harm) -> float:
        rounded: dict[ir.Value, None] = {}
        free: set[ir.Value] = set()
        for edge in self.edges:
            codes = edge.producer in chosen and not self.target.gives_floats(edge.producer)
            if codes or any(unit in chosen for unit in edge.readers):
                rounded.update(dict.fromkeys(self.roots(edge.value)))
            if codes and edge.value.name in harm.shared:
                free.add(edge.value)
        values = sum(harm.values.get(value.name or "", 0.0) for value in rounded if value not in free)
        return values + sum(harm.weights.get(unit.name, 0.0) for unit in chosen)


def _is_derived(unit: Unit | None) -> bool:
    """Whether what a unit gives follows from what it reads without being rounded anew.

    What is clipped has a range of its own, should it be clipped in float. So has a sum with a number: codes that reach
    from there to zero may be much wider apart.
    """
    return unit is not None and unit.kind in ("pass", "affine") and unit.ends is None and unit.offset == 0


def _values(units: Iterable[Unit]) -> Iterable[ir.Value]:
    return (value for unit in units for value in (*unit.reads, *unit.gives))


def _edge(value: ir.Value, owner: Mapping[ir.Node, Unit]) -> Edge:
    maker = value.producer()
    producer = None if maker is None else owner.get(maker)
    readers = dict.fromkeys(unit for use in value.uses() if (unit := owner.get(use.node)) is not None)
    return Edge(value, producer, tuple(unit for unit in readers if unit is not producer))


def _whole(node: ir.Node) -> Iterator[ir.Node]:
    """A node, and those of its branches or its loop: they too read what the graph around them computes."""
    yield node
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph().all_nodes()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from graph.all_nodes()
