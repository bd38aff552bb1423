# SPDX-License-Identifier: Apache-2.0
"""A plan held against the runtime of a graph: what that cannot compute in integers is known without data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fewbit.engine.plan import ActivationPlan, Kept, Plan
from fewbit.engine.static import refuse_schemes
from fewbit.model.view import ModelView


def fit(plan: Plan, view: ModelView, target: str | None) -> Plan:
    """A plan for a runtime: layers that it cannot compute in integers stay in float, each with the reason.

    A plan for a module is right as it is. With static activations the result is an upper bound, to be shown: a run
    begins with the whole plan, because weights of float layers may still be stored as codes.

    Args:
        plan: made from the configuration.
        view: of the model.
        target: the runtime; the backend's first choice if not said.

    Raises:
        UsageError: a target that the backend does not know; static schemes that graphs do not compute with.
    """
    if "place" not in view.can:
        return plan
    graph: Any = view
    graph.aim(target)
    if plan.static:
        refuse_schemes(plan)
        return _bounded(plan, graph)
    return without_input(plan, graph) if plan.activations else plan


def without_input(plan: Plan, graph: Any) -> Plan:
    """A plan with activations scaled in each call: layers without such integer nodes become narrow weights alone."""
    coded = {user.rpartition(".")[0] for w in plan.weights for user in w.point.users or (w.point.name,)}
    reasons = {layer: why for layer, why in graph.unable(static=False).items() if layer in coded}
    notes = tuple((f"{layer}.input", f"{graph.left_in_float}: {why}") for layer, why in reasons.items())
    return replace(plan, activations=_read(plan, graph, reasons), notes=plan.notes + notes)


def _bounded(plan: Plan, graph: Any) -> Plan:
    """A plan with static activations, without the layers that surely stay in float."""
    reasons = graph.unable(static=True)
    weights, kept = [], list(plan.kept)
    for w in plan.weights:
        users = [user.rpartition(".")[0] for user in w.point.users or (w.point.name,)]
        if all(user in reasons for user in users):
            kept.append(Kept(w.point.name, reasons[w.point.layer], w.bytes_before))
        else:
            weights.append(w)
    facts = plan.facts | {"target": graph.target, "upper_bound": True, "needs_data": True}
    return replace(plan, weights=tuple(weights), activations=_read(plan, graph, reasons), kept=tuple(kept), facts=facts)


def _read(plan: Plan, graph: Any, without: dict[str, str]) -> tuple[ActivationPlan, ...]:
    """The activations that are left, each as the runtime reads it."""
    left = (a for a in plan.activations if a.point.layer not in without)
    return tuple(replace(a, read_as=graph.read_as) for a in left)
