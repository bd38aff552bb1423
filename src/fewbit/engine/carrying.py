# SPDX-License-Identifier: Apache-2.0
"""Carrying over: what a pass over the data found, as if the inputs had been divided by factors already.

Sums by feature and extremes by feature follow by arithmetic. What looks at a whole tensor at once (a histogram, an
average of extremes) does not, and is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fewbit.engine.collect import Statistics
from fewbit.engine.inputs import InputSeen
from fewbit.engine.observing import range_observer
from fewbit.engine.plan import ActivationPlan, Plan
from fewbit.model.points import Role
from fewbit.model.watch import COUNT, HIGH, LOW, SQUARE, SUM
from fewbit.observers._base import Observer
from fewbit.observers._layout import activation_rows
from fewbit.observers.gram import GramObserver
from fewbit.observers.min_max import MinMaxObserver
from fewbit.observers.moments import MomentsObserver


def carry_over(
    statistics: Statistics, plan: Plan, factors: Mapping[str, Tensor], seen: Mapping[str, InputSeen]
) -> Plan:
    """Turn the statistics of a model into those of the model after `prepare`.

    Args:
        statistics: of the pass before; changed in place.
        plan: what they were collected for.
        factors: what each layer's input was divided by.
        seen: what each layer's input carries now.

    Returns:
        The part of the plan whose statistics do not follow: it has to be collected for again.
    """
    lost = {
        layer
        for layer, by in factors.items()
        for observers in (statistics.inputs.get(layer, {}), statistics.held_out.get(layer, {}))
        for observer in observers.values()
        if not _divide(observer, by)
    }
    again = [a for a in plan.static if not _is_carried(a, statistics, factors, seen)] if factors else []
    return replace(plan, weights=tuple(w for w in plan.weights if w.point.layer in lost), activations=tuple(again))


def _divide(observer: Observer, factors: Tensor) -> bool:
    """Divide what was seen by feature; whether that can be."""
    if observer.empty:
        return True
    state = observer.state()
    if type(observer) is MomentsObserver:
        by = factors.to(state[SUM].device).double()
        observer.load_state({SUM: state[SUM] / by, SQUARE: state[SQUARE] / by.square(), COUNT: state[COUNT]})
    elif type(observer) is GramObserver:
        by = factors.to(state["gram"].device).double()
        observer.load_state({"gram": state["gram"] / by.outer(by), "count": state["count"]})
    else:
        return False
    return True


def _is_carried(
    planned: ActivationPlan, statistics: Statistics, factors: Mapping[str, Tensor], seen: Mapping[str, InputSeen]
) -> bool:
    point, observer = planned.point, statistics.ranges.get(planned.point)
    if observer is None:
        return True  # no item reached it
    if point.role is not Role.input:
        return False  # an output or a cache may hold any channel that was scaled
    if point.layer not in factors:
        return True
    now = seen.get(point.layer)
    if type(observer) is not MinMaxObserver or now is None or now.low is None or now.high is None:
        return False
    statistics.ranges[point] = fresh = range_observer(planned.spec, point.name)
    ends = {LOW: now.low, HIGH: now.high}
    fresh.absorb({name: activation_rows(end.float()[None], planned.grid) for name, end in ends.items()})
    return True
