# SPDX-License-Identifier: Apache-2.0
"""From settings to the plan that the engine carries out: which weights, which zeros, found how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from fewbit.engine.mix import by_user
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.planning import make_plan
from fewbit.errors import UsageError
from fewbit.model.points import Point
from fewbit.model.view import ModelView
from fewbit.numerics.sparsity import Pattern, count
from fewbit.schemes.config import Config
from fewbit.schemes.faults import Fault
from fewbit.schemes.layer import QuantizationConfig
from fewbit.schemes.modes import mode_spec
from fewbit.schemes.spec import QuantizationSpec
from fewbit.sparsity.layers import choose_layers
from fewbit.sparsity.pruning.global_threshold import zeros_of_each
from fewbit.sparsity.pruning.settings import Settings
from fewbit.sparsity.pruning.solvers import solvers, usual


@dataclass(frozen=True)
class Pruning:
    """What will be pruned.

    Args:
        plan: as the engine takes it, every weight with its pattern and algorithm.
        algorithm: that of most weights, and why it is this one.
        dense: layers that stay as they are, each with the reason.
        others: weights with another algorithm than the rest, as `(name, algorithm, reason)`.
    """

    plan: Plan
    algorithm: tuple[str, str]
    dense: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str, str], ...]

    def with_zeros(self, zeros: Mapping[str, int]) -> Pruning:
        """The same with other numbers of zeros, by the name of the weight."""
        weights = tuple(with_zeros(w, zeros[w.point.name]) for w in self.plan.weights)
        return replace(self, plan=replace(self.plan, weights=weights))


def pruning_plan(view: ModelView, settings: Settings, *, data: bool) -> Pruning:
    """Decide what becomes of each weight.

    Args:
        view: of the model, which is not changed.
        settings: of the stage.
        data: whether there are samples.

    Raises:
        UsageError: names that match nothing; a model that is quantized already; weights that a pattern does not fit.
    """
    chosen = choose_layers(view, settings.targets, settings.ignore)
    faults = misfits(chosen.points, settings.pattern)
    if faults:
        raise UsageError(faults[0].found, where=faults[0].path, expected=faults[0].expected, try_=faults[0].try_)
    spec = QuantizationSpec("float32")
    if settings.quantize is not None:
        spec = mode_spec(settings.quantize, group_size=settings.group_size)
    entry = QuantizationConfig(weight=spec)
    names = (name for point in chosen.points for name in (point.name, *point.users))
    config = Config(layer_quant_config={name.rpartition(".")[0]: entry for name in names})
    planned = by_user(make_plan(view, config))
    found = solvers(view, chosen.points, settings, data=data)
    weights = []
    for point, solver in zip(chosen.points, found):
        pattern = _no_less(settings.pattern, view, point)
        weights.append(
            replace(
                _apart(planned[point.name]),
                algorithm=solver.algorithm,
                parameters=solver.parameters,
                why=f"prune: {pattern.text}",
                pattern=pattern,
            )
        )
    others = tuple((p.name, s.algorithm.name, s.why) for p, s in zip(chosen.points, found) if s.why is not None)
    plan = Plan(config, tuple(weights), (), ())
    name = usual(view, chosen.points, settings, data=data)
    made = Pruning(plan, name, (*chosen.dense, *view.skipped()), others)
    return made.with_zeros(_by_threshold(view, made.plan, settings)) if settings.scope == "global" else made


def misfits(points: tuple[Point, ...], pattern: Pattern) -> list[Fault]:
    """Weights whose inputs N:M does not divide, as one fault; none if it fits all."""
    wrong = [p for p in points if pattern.of and p.shape[p.stack + 1] % pattern.of]
    if not wrong:
        return []
    named = [f"{point.layer} ({point.shape[point.stack + 1]} inputs)" for point in wrong]
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    what = f"{pattern.text} does not divide the inputs of {len(named)} layer{'s' if len(named) > 1 else ''}"
    where = ", ".join(named[:8]) + more
    return [Fault(where, what, f"inputs that {pattern.of} divides", f"ignore: {[point.layer for point in wrong[:8]]}")]


def with_zeros(w: WeightPlan, zeros: int) -> WeightPlan:
    """What becomes of a weight, with another number of zeros in it."""
    assert w.pattern is not None
    pattern = replace(w.pattern, share=zeros / w.point.elements)
    return replace(w, pattern=pattern, why=f"prune: {pattern.text}")


def _no_less(pattern: Pattern, view: ModelView, point: Point) -> Pattern:
    """A pattern with no fewer zeros than a weight has already: what was pruned stays so."""
    if pattern.of or pattern.by_row or pattern.block != (1, 1):
        return pattern
    there = int((view.read(point) == 0).sum())
    return replace(pattern, share=max(pattern.share, there / max(1, point.elements)))


def _apart(w: WeightPlan) -> WeightPlan:
    """The same where each weight of a stack has scales of its own, floats too."""
    stack = w.point.stack
    return replace(w, block=(*(1,) * stack, *w.block[stack:])) if stack else w


def _by_threshold(view: ModelView, plan: Plan, settings: Settings) -> dict[str, int]:
    """So many zeros in all, the smallest weights of all layers."""
    points = [w.point for w in plan.weights]
    there = sum(int((view.read(point) == 0).sum()) for point in points)
    zeros = max(there, count(settings.pattern.share, sum(point.elements for point in points)))
    return dict(zip((point.name for point in points), zeros_of_each([partial(view.read, p) for p in points], zeros)))
