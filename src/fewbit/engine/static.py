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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any

from torch import Tensor

from fewbit.algorithms._members import algorithm
from fewbit.engine.collect import HELD_OUT_EVERY, Statistics, is_held_out, refuse_non_finite
from fewbit.engine.correcting import FEW, correct_fast, correct_slow
from fewbit.engine.inputs import watch_inputs
from fewbit.engine.measuring import Enough, measure, reference_on
from fewbit.engine.observing import range_observer
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.preparing import prepare
from fewbit.engine.runtime_check import check_runtime
from fewbit.engine.seen import Gathering, Input, Site, Taker
from fewbit.engine.solve import settle
from fewbit.engine.storing import storable
from fewbit.errors import UsageError
from fewbit.model.placing import Placed, PlacingView, Rounding
from fewbit.model.points import Point, Role
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, VALUES, WINDOWS, Watch
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.observers._base import Observer, RangeObserver, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.record import Record

_SAMPLES, _LEAST = 1 << 17, 256  # values of each activation in all, and of an item at least
_PROBES = 1  # items to measure harm with
Passes = Callable[[str], Iterator[Any]]
_OF_SITE = frozenset({LOW, HIGH, SAMPLE})
_OF_INPUT = frozenset({SUM, SQUARE, COUNT, TAPS, WINDOWS})


def execute_static(
    view: PlacingView,
    plan: Plan,
    items: Passes,
    *,
    record: Record,
    options: Options,
    samples: int | None = None,
    in_order: int | None = None,
) -> PlacingView:
    """Carry a plan with static activations out on a graph.

    Args:
        view: of the float graph.
        plan: what becomes of it.
        items: starts a pass over the data, shown under a label.
        record: takes a line about each layer.
        options: of the run.
        samples: how many items there are, about.
        in_order: how many there are at most, if they come in the order of the data.

    Returns:
        A view of the quantized model; the one given is as it was.
    """
    run = calibrate(view, plan, items, record=record, options=options, samples=samples, in_order=in_order)
    placed = run.place(options.price)
    result = run.write(placed)
    run.note(placed)
    run.verify(result)
    return result


def calibrate(
    view: PlacingView,
    plan: Plan,
    items: Passes,
    *,
    record: Record,
    options: Options,
    samples: int | None = None,
    in_order: int | None = None,
    each: bool = False,
) -> Calibrated:
    """Look at a graph with data, and find codes for all of it.

    Args:
        view: of the float graph.
        plan: what becomes of it.
        items: starts a pass over the data, shown under a label.
        record: takes a line about each layer.
        options: of the run.
        samples: how many items there are, about.
        in_order: how many there are at most, if they come in the order of the data.
        each: measure what each activation does by itself, where otherwise those that do little are measured together.
    """
    refuse_schemes(plan)
    run = Calibrated(view, plan, options, record, in_order)
    sample = max(_LEAST, _SAMPLES // (samples or 100))
    if options.prepare:
        run = run.prepared(items)
    run.look(items("calibration"), sample=sample)
    run.solve(each=each)
    return run


def refuse_schemes(plan: Plan) -> None:
    """Refuse what integer kernels do not compute with, before the data is read.

    Raises:
        UsageError: an activation that is no 8-bit integer by tensor, a weight that is no symmetric int8 by channel.
    """
    whole, rows = QSchemeType.per_tensor, QSchemeType.per_channel
    wrong = [a.point.name for a in plan.static if not _is_byte(a.grid) or a.grid.granularity is not whole]
    for w in plan.weights:
        fits = _is_byte(w.grid) and not w.grid.asymmetric and w.grid.granularity in (whole, rows)
        wrong += [] if fits else [w.point.name]
    if wrong:
        raise UsageError(
            f"{len(wrong)} static schemes that integer kernels of graphs do not compute with",
            where=", ".join(wrong[:4]) + (" …" if len(wrong) > 4 else ""),
            expected="8-bit activations with one scale a tensor, symmetric int8 weights with one a channel, as in w8a8",
            try_="compress_weights for narrower weights, a dynamic preset for scales found in each call",
        )


def _is_byte(grid: Grid) -> bool:
    return grid.dtype.is_integer and grid.dtype.bits == 8


@dataclass(frozen=True)
class _Written:
    """What is known of a model that was written: how it was placed, what was corrected, and what stored as codes."""

    placed: Placed
    corrections: list[dict[str, Any]]
    stored: dict[Point, int]


class Calibrated:
    """A graph that was looked at with data, ready to be written in any number of ways.

    Args:
        view: of the float graph; it stays as it is.
        plan: what becomes of each weight, and the scheme of activations.
        options: target, price and so on.
        record: takes a line about each layer.
        in_order: how many items there are at most, if they come in the order of the data.
    """

    def __init__(self, view: PlacingView, plan: Plan, options: Options, record: Record, in_order: int | None = None):
        self.view, self.plan, self.options, self.record = view, plan, options, record
        self.items = 0
        self._forbidden = _forbidden(view, plan)
        view.leave(self._forbidden)
        self._teachers: list[Any] = []
        self._judges: list[Any] = []
        self._numbers: list[int] = []  # of the judges
        self._in_order = in_order
        self._enough: Enough | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self._planned = {user: w for w in plan.weights for user in w.point.users or (w.point.name,)}
        self.weights = view.points(lambda p: p.role is Role.weight and p.name in self._planned)
        self.grid = plan.static[0].grid
        self._spec = plan.static[0].spec
        self.sites: dict[Point, Site] = {}
        self.inputs: dict[str, Input] = {}
        self.codes: dict[str, QTensor] = {}
        self.rounding: dict[Point, Rounding] = {}
        self._noise: dict[str, float] = {}
        self._written: dict[int, _Written] = {}

    @property
    def target(self) -> str | None:
        """The runtime."""
        return self.options.target

    def look(self, items: Iterable[Any], *, sample: int = 1024) -> None:
        """One pass over the data."""
        takers: dict[Point, Taker] = {}
        limits = self.view.limits(self.target)
        for point in self.view.sites(self.target):
            takers[point] = self.sites[point] = Site(_observer(self._spec), limits.get(point, (-inf, inf)))
        layers = {point.layer for point in self.weights} - set(self.view.hidden())
        for point in self.view.points(lambda p: p.role is Role.input and p.layer in layers):
            takers[point] = self.inputs[point.layer] = Input()
        guards = {point: FiniteGuard() for point in takers}
        needs = {point: self._needs(point) for point in takers}
        gathered = {
            point: Gathering(taker, guards[point], 1) if VALUES in needs[point] else Gathering(taker, guards[point])
            for point, taker in takers.items()
        }
        watch = {point: Watch(needs[point], each.add, sample) for point, each in gathered.items()}
        self.items = self.view.run(self._keeping(items), watch)
        for each in gathered.values():
            each.flush()
        refuse_non_finite(guards)

    def _needs(self, point: Point) -> frozenset[str]:
        """What is asked about a site, or about a layer's input."""
        if point in self.sites:
            return _OF_SITE
        planned = [self._planned[w.name] for w in self.weights if w.layer == point.layer]
        return _OF_INPUT | ({VALUES} if any("gram" in w.algorithm.needs for w in planned) else set())

    def prepared(self, items: Passes) -> Calibrated:
        """The same of a model whose channels were evened out, which takes a pass of its own."""
        view: Any = self.view.copy()
        solvers = [algorithm(name, stage="prepare") for name in self.options.prepare or ()]
        layers = {point.layer for point in self.weights} - set(view.hidden())
        watch, seen = watch_inputs(view, layers, (LOW, HIGH, SQUARE, COUNT))
        view.run(self._keeping(items("channels")), watch)
        first = self.kept_items()[0]
        if not prepare(view, self.plan, solvers, view.structure(first).links, seen, self.record).steps:
            return Calibrated(self.view, self.plan, self.options, self.record, self._in_order)
        self.record.note("second-pass", "channels were evened out first, and ranges are of the model after that")
        view.probe(first)
        return Calibrated(view, self.plan, self.options, self.record, self._in_order)

    def kept_items(self) -> list[Any]:
        """The items that were kept, so mixed that those kept aside come out as such again."""
        teachers, judges = iter(self._teachers), iter(self._judges)
        mixed: list[Any] = []
        while (item := next(judges if is_held_out(len(mixed)) else teachers, None)) is not None:
            mixed.append(item)
        return mixed

    def solve(self, *, each: bool = False) -> None:
        """Codes of all weights, scales of all activations, and what each does to the answers."""
        for w in self.plan.weights:
            solution = settle(self.view.read(w.point), w, self._statistics(w.point.layer))
            for point in self.weights:
                if point.name in (w.point.users or (w.point.name,)):  # whoever shares a weight sees the same codes
                    self.codes[point.layer] = solution.qtensor
                    self._noise[point.layer] = float(solution.facts.get("error", 0.0))
                    self._facts[point.layer] = solution.facts
        self.grids = {point: site.grid(self.grid) for point, site in self.sites.items()}
        # What would not be rounded if only time counted will not be if error counts too.
        free = self.place()
        wanted = {point: grid for point, grid in self.grids.items() if point in free.sites}
        noise = {point: self.sites[point].noise(grid) for point, grid in wanted.items()}
        allowed = self.options.price * (1 - free.time_after / max(free.time_before, 1e-9))
        items = self._teachers[:_PROBES]
        harm = self.view.harm(self.target, wanted, items, None if each else noise, allowed)
        self.rounding = {point: Rounding(noise[point], harm[point]) for point in wanted}

    def place(self, price: float = inf) -> Placed:
        """What computes in integers."""
        return self.view.place(
            self.target, rounding=self.rounding, weights=self._noise, price=price, forbidden=self._forbidden
        )

    def write(self, placed: Placed) -> PlacingView:
        """A view of the quantized model."""
        twin: Any = self.view.copy()
        corrections = self._correct(twin, placed)
        ranges = {point: _ends(grid) for point, grid in self.grids.items()}
        twin.settle(placed, ranges, {layer: self.codes[layer] for layer in placed.layers})
        stored = storable(self.view, self.plan, placed, self.codes)
        for point, codes in stored.items():
            twin.store(point, codes, self.target)
        self._written[id(placed)] = _Written(placed, corrections, {p: q.nbytes for p, q in stored.items()})
        return twin  # type: ignore[no-any-return]

    def _correct(self, view: PlacingView, placed: Placed) -> list[dict[str, Any]]:
        """Shift the layers whose weights were rounded, and return a line about each.

        The slow way runs a model whose weights are rounded, and whose activations are not: rounding them to nearest
        leaves their mean where it was.
        """
        if self.options.correct is None:
            return []
        solver, record = algorithm(self.options.correct, stage="correct"), Record("correct")
        points = [point for point in self.weights if point.layer in placed.layers]

        def rounded(point: Point) -> Tensor:
            return self.codes[point.layer].dequantize()

        if TAPS in solver.needs:
            taps = {layer: seen.taps for layer, seen in self.inputs.items()}
            correct_fast(view, solver, points, self.view.read, rounded, taps, record)
        else:
            twin: Any = self.view.copy()
            for point in points:
                twin.write(point, rounded(point))
            items = self.kept_items()[:FEW]
            for layer, amount in correct_slow(self.view, twin, solver, points, items, record).items():
                view.shift(layer, amount)
        return record.lines

    def note(self, placed: Placed) -> None:
        """A line about each layer, and what was chosen."""
        written = self._written[id(placed)]
        for point in self.weights:
            layer, w = point.layer, self._planned[point.name]
            if layer in placed.layers:
                self.record.note("quantized", w.why, where=layer, algorithm=w.algorithm.name, **self._facts[layer])
            else:
                size = w.bytes_before
                self.record.note("float", placed.kept.get(layer, "no sample reached it"), where=layer, bytes=size)
        for point, size in written.stored.items():
            reason = "it computes in float, from a weight that is stored as int8 codes"
            self.record.note("stored", reason, where=point.layer, bytes=size)
        self.record.lines += written.corrections
        stored = sum(placed.weight_harm.get(point.layer, 0.0) for point in written.stored)
        self.record.facts |= {
            "items": self.items,
            "target": placed.target,
            "integer": dict(placed.integer),
            "activations": len(placed.sites),
            "expected_speedup": placed.time_before / max(placed.time_after, 1e-9),
            "expected_error": placed.harm + stored,
        }

    def verify(self, result: PlacingView) -> None:
        """Hold the result against the float model, and see what the runtime makes of it."""
        judges, aside = self._judges or self._teachers, bool(self._judges)
        numbers = self._numbers if aside else (item for item in count() if not is_held_out(item))
        reference = reference_on(self.view, list(zip(numbers, judges)), self.record, held_out=aside)
        if reference is not None and (found := measure(result, reference, self.record)):
            check_runtime(result, reference, found, self.record)
        if not aside:
            reason = f"of fewer than {HELD_OUT_EVERY} items none is kept aside: those that judge are those that taught"
            self.record.note("not-kept-aside", reason, items=len(judges))
        self.record.facts["executed"] = result.executed()

    def _keeping(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass items on, and keep a few: to measure harm with, and, of those kept aside, to judge the result."""
        for index, item in enumerate(items):
            self._enough = self._enough or Enough(item, item, self._in_order)
            if not is_held_out(index):
                if len(self._teachers) < FEW:
                    self._teachers.append(item)
            elif self._enough.take(item, index):
                self._judges.append(item)
                self._numbers.append(index)
            yield item

    def _statistics(self, layer: str) -> Statistics:
        seen = self.inputs.get(layer, Input())
        sides: dict[bool, dict[str, Observer]] = {}
        for name, found in (("moments", seen.moments), ("gram", seen.gram)):
            for aside, observer in found.items():
                sides.setdefault(aside, {})[name] = observer
        inputs, held_out = ({layer: sides[aside]} if aside in sides else {} for aside in (False, True))
        return Statistics(inputs=inputs, held_out=held_out)


def _forbidden(view: PlacingView, plan: Plan) -> dict[str, str]:
    """Nodes that stay in float, by name: those the configuration excludes, and layers that have no plan."""
    planned = {user.rpartition(".")[0] for w in plan.weights for user in w.point.users or (w.point.name,)}
    reasons = view.hidden() | {kept.name.removesuffix(".weight"): kept.reason for kept in plan.kept}
    weights = {point.layer for point in view.points(lambda p: p.role is Role.weight)}
    found = {layer: reasons.get(layer, "the configuration has no scheme for it") for layer in weights - planned}
    found |= view.hidden()
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
