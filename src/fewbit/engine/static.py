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
  settle                the choice, written
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import BiasProblem, Taps
from fewbit.algorithms._members import algorithm
from fewbit.engine.collect import Statistics, is_held_out
from fewbit.engine.nearness import nearness
from fewbit.engine.observing import range_observer
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.solve import settle
from fewbit.model.placing import Placed, PlacingView, Rounding
from fewbit.model.points import Point, Role
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, WINDOWS, Watch
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams, from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._base import Observer, RangeObserver, observer_class
from fewbit.observers.moments import MomentsObserver
from fewbit.record import Record

_FLUSH = 1 << 14  # values gathered before an observer is told
_KEPT = 1 << 12  # values of each activation that stay, to see what rounding does to them
_SAMPLES, _LEAST = 1 << 17, 256  # values of each activation in all, and of an item at least
_PROBES = 64  # runs to measure harm with, about; each site at least once
_TEACHERS, _JUDGES = 4, 8  # items kept to measure harm with, and to judge the result


@dataclass
class Site:
    """What was seen of one activation.

    Args:
        observer: of its range.
        kept: some of its values.
    """

    observer: RangeObserver
    waiting: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    count: int = 0

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows."""
        values = torch.cat([found[SAMPLE].flatten().float(), found[LOW].min()[None], found[HIGH].max()[None]])
        self.waiting.append(values)
        self.count += values.numel()
        if sum(map(torch.numel, self.kept)) < _KEPT:
            self.kept.append(values)
        if self.count > _FLUSH:
            self.flush()

    @property
    def empty(self) -> bool:
        """Whether no item reached it."""
        return not self.kept

    def flush(self) -> None:
        """Tell the observer what was gathered."""
        if self.waiting:
            self.observer.observe(torch.cat(self.waiting)[None])
        self.waiting, self.count = [], 0

    def grid(self, grid: Grid) -> QParams:
        """Scale and zero point of its codes."""
        self.flush()
        low, high = self.observer.range(grid)
        return from_range(low, high, grid, (1,))

    def noise(self, qparams: QParams) -> float:
        """The energy of rounding over that of the values."""
        values = torch.cat(self.kept)
        spread = float(values.double().square().sum())
        off = fake_quantize(values, replace(qparams, block=(values.numel(),))) - values
        return float(off.double().square().sum()) / max(spread, 1e-30)


@dataclass
class Input:
    """What was seen of one layer's input: from the items that teach, and from those kept aside."""

    moments: dict[bool, MomentsObserver] = field(default_factory=dict)
    taps: dict[bool, Taps] = field(default_factory=dict)

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        """Take in what one item shows."""
        aside = is_held_out(item)
        known = {name: found[name] for name in (SUM, SQUARE, COUNT)}
        self.moments.setdefault(aside, MomentsObserver()).absorb(
            {name: x.reshape(-1, 1) if x.ndim else x for name, x in known.items()}
        )
        before = self.taps.get(aside)
        sums, windows = found[TAPS], found[WINDOWS]
        self.taps[aside] = Taps(sums, windows) if before is None else Taps(before.sums + sums, before.windows + windows)


def execute_static(
    view: PlacingView, plan: Plan, items: Iterable[Any], *, record: Record, options: Options, samples: int | None = None
) -> PlacingView:
    """Carry a plan with static activations out on a graph.

    Returns:
        A view of the quantized model; the one given is as it was.
    """
    run = Calibrated(view, plan, options, record)
    run.look(items, sample=max(_LEAST, _SAMPLES // (samples or 100)))
    run.solve()
    placed = run.place(options.price)
    result = run.write(placed)
    run.note(placed)
    run.verify(result)
    return result


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

    @property
    def target(self) -> str | None:
        """The runtime."""
        return self.options.target

    def look(self, items: Iterable[Any], *, sample: int = 1024) -> None:
        """One pass over the data."""
        watch: dict[Point, Watch] = {}
        for point in self.view.sites(self.target):
            self.sites[point] = Site(_observer(self._spec))
            watch[point] = Watch(frozenset({LOW, HIGH, SAMPLE}), self.sites[point].take, sample)
        layers = {w.point.layer for w in self.plan.weights}
        for point in self.view.points(lambda p: p.role is Role.input and p.layer in layers):
            self.inputs[point.layer] = Input()
            needs = frozenset({SUM, SQUARE, COUNT, TAPS, WINDOWS})
            watch[point] = Watch(needs, self.inputs[point.layer].take)
        self.items = self.view.run(self._keeping(items), watch)

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

    def place(self, price: float = inf, forbidden: Mapping[str, str] | None = None) -> Placed:
        """What computes in integers."""
        return self.view.place(
            self.target, rounding=self.rounding, weights=self._noise, price=price, forbidden=forbidden or {}
        )

    def write(self, placed: Placed) -> PlacingView:
        """A view of the quantized model."""
        twin: Any = self.view.copy()
        if self.options.correct is not None:
            self._correct(twin, placed, self.options.correct)
        ranges = {point: _ends(grid) for point, grid in self.grids.items()}
        twin.settle(placed, ranges, {layer: self.codes[layer] for layer in placed.layers})
        return twin  # type: ignore[no-any-return]

    def _correct(self, view: PlacingView, placed: Placed, name: str) -> None:
        solver = algorithm(name)
        for w in self.plan.weights:
            layer = w.point.layer
            if layer not in placed.layers:
                continue
            seen, codes = self.inputs[layer], self.codes[layer]
            problem = BiasProblem(
                self.view.read(w.point), codes.dequantize(), w.point.groups, seen.taps.get(False), seen.taps.get(True),
                name=layer,
            )  # fmt: skip
            found = solver.solve(problem)
            if found.amount is not None:
                view.shift(layer, found.amount)

    def note(self, placed: Placed) -> None:
        """A line about each layer, and what was chosen."""
        for w in self.plan.weights:
            layer = w.point.layer
            if layer in placed.layers:
                self.record.note("quantized", w.why, where=layer, algorithm=w.algorithm.name, **self._facts[layer])
            else:
                size = w.bytes_before
                self.record.note("float", placed.kept.get(layer, "no sample reached it"), where=layer, bytes=size)
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
            kept, most = (self._judges, _JUDGES) if is_held_out(index) else (self._teachers, _TEACHERS)
            if len(kept) < most:
                kept.append(item)
            yield item

    def _statistics(self, layer: str) -> Statistics:
        seen: dict[bool, Observer] = {**self.inputs.get(layer, Input()).moments}
        inputs = {layer: {"moments": seen[False]}} if False in seen else {}
        held_out = {layer: {"moments": seen[True]}} if True in seen else {}
        return Statistics(inputs=inputs, held_out=held_out)


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
