# SPDX-License-Identifier: Apache-2.0
"""Rotating: the state that goes through a model is turned before anything else, so that no channel stands out.

trial    a copy is turned; its answers have to be those of the model, up to rounding
judge    both are rounded plainly as the plan says: turned, the answers have to be nearer to the float model's
apply    then the model itself is turned

Weights that were one tensor may be two from then on, so what becomes of the model is planned anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fewbit.algorithms._base import StreamProblem
from fewbit.algorithms._members import Algorithm, algorithm
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics, collect
from fewbit.engine.nearer import apart
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.planning import make_plan
from fewbit.engine.solve import solve
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.model.streaming import RotatingView, Stream
from fewbit.model.view import Item, ModelView
from fewbit.numerics.grid import Grid
from fewbit.record import Record

JUDGES = 4
"""Items that are looked at."""

# What the answers may differ by, as a share of their energy, by the narrowest type that weights are kept in: a weight
# that is turned is rounded to its type anew, and half types have two or three digits.
_ROUNDING = {"float64": 1e-20, "float32": 1e-8, "float16": 1e-3, "bfloat16": 1e-2}


def rotations(options: Options) -> tuple[list[Algorithm], Options]:
    """The algorithms among those that prepare a model that turn it, and options without them."""
    named = options.prepare or ()
    solvers = [found for name in named if (found := algorithm(name)).stage == "rotate"]
    rest = tuple(name for name in named if name not in {each.name for each in solvers})
    return solvers, replace(options, prepare=rest) if solvers else options


def rotate(view: ModelView, plan: Plan, solvers: Sequence[Algorithm], items: Sequence[Item], record: Record) -> Plan:
    """Turn the stream of a model by one algorithm after the other.

    Args:
        view: of the float model, which is changed.
        plan: how it will be rounded.
        solvers: algorithms of the stage `"rotate"`.
        items: some that show what flows through the model, and judge.
        record: takes a line about each algorithm.

    Returns:
        What becomes of the model as it is from now on.

    Raises:
        UsageError: a model that cannot be turned, or no item.
    """
    names = ", ".join(each.name for each in solvers)
    if "rotate" not in view.can:
        raise UsageError(f"{names} for a graph", where="prepare", expected="a PyTorch module", try_="smooth_quant")
    if not items:
        raise UsageError(
            f"{names} without calibration data",
            where="prepare",
            expected="at least one sample: what flows through a model is found by running it",
        )
    for solver in solvers:
        plan = _rotated(view, plan, solver, items, record)
    return plan


def _rotated(view: Any, plan: Plan, solver: Algorithm, items: Sequence[Item], record: Record) -> Plan:
    turning: RotatingView = view
    stream = turning.stream(items[0])
    found = solver.solve(
        StreamProblem(stream.width, [h.size for h in stream.heads], stream.centred, _grids(plan, stream))
    )
    facts = {"algorithm": solver.name, "width": stream.width, "writers": len(stream.writers), **found.facts}
    if found.stream is None:
        record.note("not-rotated", facts.pop("reason"), **facts)
        return plan
    trial = view.copy()
    trial.rotate(stream, found.stream, found.heads)
    _refuse_change(view, trial, items)
    other = make_plan(trial, plan.config)
    without, error = apart(view, [_rounded(view, plan, items), _rounded(trial, other, items)], items)
    facts |= {"items": len(items), "error": error, "error_unrotated": without}
    if not error < without:
        record.note("not-rotated", "rounded plainly, the answers would not be nearer to the float model's", **facts)
        return plan
    del trial  # before a second set of weights is made
    parted = turning.rotate(stream, found.stream, found.heads)
    record.note("rotated", "rounded plainly, the answers are nearer to the float model's", **facts)
    if parted:
        reason = "they were one tensor; turned, each has values of its own"
        record.note("untied", reason, where=", ".join(parted))
    return make_plan(view, plan.config)


def _grids(plan: Plan, stream: Stream) -> list[Grid]:
    """What those who read a stream are rounded to; their inputs if these are rounded, else their weights."""
    readers = {*stream.layers, *(name for heads in stream.heads for name in heads.link.consumers)}
    inputs = [a.grid for a in plan.activations if a.point.layer in readers and a.point.role is Role.input]
    return inputs or [w.grid for w in plan.weights if w.point.layer in readers]


def _refuse_change(view: ModelView, trial: ModelView, items: Sequence[Item]) -> None:
    """Refuse a model whose answers are not the same when its stream is turned."""
    narrow = max(_ROUNDING.get(point.dtype, 0.0) for point in view.points(lambda p: p.role is Role.weight))
    (off,) = apart(view, [trial], items)
    if not off <= narrow:
        raise UsageError(
            f"turned, the model gives other answers: {off:.2g} of their energy, where rounding explains {narrow:g}",
            where="rotation",
            expected="a model in which layers do nothing but add to the state, and norms and layers read it",
            try_="leave rotation out; smooth_quant evens channels out as well",
        )


def _rounded(view: ModelView, plan: Plan, items: Sequence[Item]) -> ModelView:
    """A copy of a model, rounded plainly."""
    plain = replace(plan, weights=tuple(replace(w, algorithm=algorithm("rtn"), parameters={}) for w in plan.weights))
    made = view.copy()
    statistics = collect(made, plain, iter(items)) if plain.static else Statistics()
    solve(made, plain, statistics, Record("trial"), Progress())
    return made
