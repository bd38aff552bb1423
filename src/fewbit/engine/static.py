# SPDX-License-Identifier: Apache-2.0
"""Static quantization of a graph: look once, choose what computes in integers, settle it, and hold the result against
the float model.

one pass over the data
  sites                 ranges of every activation that may become codes
  inputs                what each layer's input carries, at every place of its kernel
then, without data
  weights               codes, by the algorithm of the plan
  harm                  what rounding each activation does to the answers: a few items, one session
  place                 the cheapest choice, error counted at a price
  correct               biases make up for what rounding did to the mean of each output
  settle                the choice, written; what stays in float is stored as codes where that does no harm
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from torch import Tensor

from fewbit.algorithms._members import algorithm
from fewbit.engine.collect import Statistics, is_held_out, refuse_non_finite
from fewbit.engine.correcting import FEW, correct_fast, correct_slow
from fewbit.engine.nearness import nearness
from fewbit.engine.observing import range_observer
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.seen import Input, Site
from fewbit.engine.solve import settle
from fewbit.engine.storing import storable
from fewbit.model.placing import Placed, PlacingView, Rounding
from fewbit.model.points import Point, Role
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, WINDOWS, Watch
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.observers._base import Observer, RangeObserver, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.record import Record

_SAMPLES, _LEAST = 1 << 17, 256  # values of each activation in all, and of an item at least
_PROBES = 64  # runs to measure harm with, about; each activation at least once
_JUDGES = 8  # items, of those kept aside, that the result is held against
_OF_SITE = frozenset({LOW, HIGH, SAMPLE})
_OF_INPUT = frozenset({SUM, SQUARE, COUNT, TAPS, WINDOWS})


def execute_static(
    view: PlacingView, plan: Plan, items: Iterable[Any], *, record: Record, options: Options, samples: int | None = None
) -> PlacingView:
    """Carry a plan with static activations out on a graph.

    Returns:
        A view of the quantized model; the one given is as it was.
    """
    run = calibrate(view, plan, items, record=record, options=options, samples=samples)
    placed = run.place(options.price)
    result = run.write(placed)
    run.note(placed)
    run.verify(result)
    return result


def calibrate(
    view: PlacingView, plan: Plan, items: Iterable[Any], *, record: Record, options: Options, samples: int | None = None
) -> Calibrated:
    """Look at a graph with data, and find codes for all of it."""
    run = Calibrated(view, plan, options, record)
    run.look(items, sample=max(_LEAST, _SAMPLES // (samples or 100)))
    run.solve()
    return run


class Calibrated:
    """A graph that was looked at with data, ready to be written in any number of ways.

    Args:
        view: of the float graph; it stays as it is.
        plan: what becomes of each weight, and the scheme of activations.
        options: target, price and so on.
        record: takes a line about each layer.
    """

    def __init__(self, view: PlacingView, plan: Plan, options: Options, record: Record):
        self.view, self.plan, self.options, self.record = view, plan, options, record
        self.items = 0
        self._forbidden = _forbidden(view, plan)
        self._teachers: list[Any] = []
        self._judges: list[Any] = []
        self._facts: dict[str, dict[str, Any]] = {}
        self.grid = plan.static[0].grid
        self._spec = plan.static[0].spec
        self.sites: dict[Point, Site] = {}
        self.inputs: dict[str, Input] = {}
        self.codes: dict[str, QTensor] = {}
        self.rounding: dict[Point, Rounding] = {}
        self._noise: dict[str, float] = {}
        self._corrections: list[dict[str, Any]] = []

    @property
    def target(self) -> str | None:
        """The runtime."""
        return self.options.target

    def look(self, items: Iterable[Any], *, sample: int = 1024) -> None:
        """One pass over the data."""
        takers: dict[Point, Site | Input] = {}
        for point in self.view.sites(self.target):
            takers[point] = self.sites[point] = Site(_observer(self._spec))
        layers = {w.point.layer for w in self.plan.weights}
        for point in self.view.points(lambda p: p.role is Role.input and p.layer in layers):
            takers[point] = self.inputs[point.layer] = Input()
        guards = {point: FiniteGuard() for point in takers}

        def watch(point: Point) -> Watch:
            def take(found: Mapping[str, Tensor], item: int) -> None:
                if guards[point].look(found, item):
                    takers[point].take(found, item)

            return Watch(_OF_SITE if point in self.sites else _OF_INPUT, take, sample)

        self.items = self.view.run(self._keeping(items), {point: watch(point) for point in takers})
        refuse_non_finite(guards)

    def solve(self) -> None:
        """Codes of all weights, scales of all activations, and what each does to the answers."""
        for w in self.plan.weights:
            solution = settle(self.view.read(w.point), w, self._statistics(w.point.layer))
            self.codes[w.point.layer] = solution.qtensor
            self._noise[w.point.layer] = float(solution.facts.get("error", 0.0))
            self._facts[w.point.layer] = solution.facts
        self.grids = {point: site.grid(self.grid) for point, site in self.sites.items() if not site.empty}
        # What would not be rounded if only time counted will not be if error counts too.
        free = self.place().sites
        wanted = {point: grid for point, grid in self.grids.items() if point in free}
        few = self._teachers[: max(1, _PROBES // max(1, len(wanted)))]
        harm = self.view.harm(self.target, wanted, few)
        self.rounding = {p: Rounding(self.sites[p].noise(grid), harm[p]) for p, grid in wanted.items()}

    def place(self, price: float = inf) -> Placed:
        """What computes in integers."""
        return self.view.place(
            self.target, rounding=self.rounding, weights=self._noise, price=price, forbidden=self._forbidden
        )

    def write(self, placed: Placed) -> PlacingView:
        """A view of the quantized model."""
        twin: Any = self.view.copy()
        self._correct(twin, placed)
        ranges = {point: _ends(grid) for point, grid in self.grids.items()}
        twin.settle(placed, ranges, {layer: self.codes[layer] for layer in placed.layers})
        for point, codes in storable(self.view, self.plan, placed, self.codes).items():
            twin.store(point, codes, self.target)
        return twin  # type: ignore[no-any-return]

    def _correct(self, view: PlacingView, placed: Placed) -> None:
        """Shift the layers whose weights were rounded; a view of them as rounded floats is what slow correction runs."""
        if self.options.correct is None:
            return
        solver, record = algorithm(self.options.correct, stage="correct"), Record("correct")
        points = [w.point for w in self.plan.weights if w.point.layer in placed.layers]

        def rounded(point: Point) -> Tensor:
            return self.codes[point.layer].dequantize()

        if TAPS in solver.needs:
            taps = {layer: seen.taps for layer, seen in self.inputs.items()}
            correct_fast(view, solver, points, self.view.read, rounded, taps, record)
        else:
            twin: Any = self.view.copy()
            for point in points:
                twin.write(point, rounded(point))
            items = [item for pair in zip(self._teachers, self._judges) for item in pair][:FEW]
            for layer, amount in correct_slow(self.view, twin, solver, points, items, record).items():
                view.shift(layer, amount)
        self._corrections = record.lines

    def note(self, placed: Placed) -> None:
        """A line about each layer, and what was chosen."""
        for w in self.plan.weights:
            layer = w.point.layer
            if layer in placed.layers:
                self.record.note("quantized", w.why, where=layer, algorithm=w.algorithm.name, **self._facts[layer])
            else:
                size = w.bytes_before
                self.record.note("float", placed.kept.get(layer, "no sample reached it"), where=layer, bytes=size)
        self.record.lines += self._corrections
        self.record.facts |= {
            "items": self.items,
            "target": placed.target,
            "integer": dict(placed.integer),
            "activations": len(placed.sites),
            "expected_speedup": placed.time_before / max(placed.time_after, 1e-9),
            "expected_error": placed.harm,
        }

    def verify(self, result: PlacingView) -> None:
        """Hold the result against the float model, and see what the runtime makes of it."""
        judges = self._judges or self._teachers
        self.record.facts["answers"] = nearness(self.view.answers(judges), result.answers(judges))
        self.record.facts["executed"] = result.executed()

    def _keeping(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass items on, and keep a few: to measure harm with, and, of those kept aside, to judge the result."""
        for index, item in enumerate(items):
            kept, most = (self._judges, _JUDGES) if is_held_out(index) else (self._teachers, FEW)
            if len(kept) < most:
                kept.append(item)
            yield item

    def _statistics(self, layer: str) -> Statistics:
        seen: dict[bool, Observer] = {**self.inputs.get(layer, Input()).moments}
        inputs = {layer: {"moments": seen[False]}} if False in seen else {}
        held_out = {layer: {"moments": seen[True]}} if True in seen else {}
        return Statistics(inputs=inputs, held_out=held_out)


def _forbidden(view: PlacingView, plan: Plan) -> dict[str, str]:
    """Nodes that stay in float, by name: those the configuration excludes, and layers that have no plan."""
    planned = {w.point.layer for w in plan.weights}
    reasons = {kept.name.removesuffix(".weight"): kept.reason for kept in plan.kept}
    weights = {point.layer for point in view.points(lambda p: p.role is Role.weight)}
    found = {layer: reasons.get(layer, "the configuration has no scheme for it") for layer in weights - planned}
    for name, types in view.layers().items():
        resolved = plan.config.resolve(name, types)
        if resolved.source == "excluded":
            found[name] = resolved.why
    return found


def _observer(spec: Any) -> RangeObserver:
    made = range_observer(spec) if spec.observer_cls is not None else observer_class("mse")()
    assert isinstance(made, RangeObserver)
    return made


def _ends(qparams: QParams) -> tuple[float, float]:
    """The values of the lowest and the highest code."""
    scale = float(qparams.scale.reshape(-1)[0])
    zero = 0.0 if qparams.zero_point is None else float(qparams.zero_point.reshape(-1)[0])
    dtype = qparams.grid.dtype
    return scale * (dtype.lowest - zero), scale * (dtype.highest - zero)
