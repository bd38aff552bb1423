# SPDX-License-Identifier: Apache-2.0
"""Formats a result goes to: their names, and everything that speaks against one before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit import registry
from fewbit.engine.plan import Plan
from fewbit.errors import UsageError
from fewbit.exporters._base import Destined
from fewbit.model.ops import EMBEDDING
from fewbit.model.points import Role
from fewbit.model.view import ModelView

_SHOWN = 6  # layers of each reason


def format_name(text: str) -> str:
    """A format's name as the registry has it.

    >>> format_name("compressed-tensors")
    'compressed_tensors'
    """
    name = text.strip().lower().replace("-", "_")
    registry.get("exporters", name)
    return name


def refuse_formats(view: ModelView, plan: Plan, formats: Sequence[str]) -> None:
    """Refuse what a format cannot hold, every reason at once, with the layers it is about.

    Raises:
        UsageError: with a line for each reason; or a format that has no place for such a model.
    """
    faults: dict[str, list[str]] = {}
    weights = destined(view, plan)
    for name in formats:
        exporter = registry.get("exporters", name)
        reasons = list(exporter.refusals(weights)) if hasattr(exporter, "refusals") else []
        if hasattr(exporter, "model_refusals"):
            reasons += exporter.model_refusals(view.native(), weights)
        for layer, reason in reasons:
            faults.setdefault(f"{name}: {reason}", []).append(layer)
    if faults:
        lines = [f"{reason} ({_few(layers)})" for reason, layers in faults.items()]
        raise UsageError(
            f"{len(lines)} reason{'s' if len(lines) > 1 else ''} why {' and '.join(formats)} cannot hold this",
            where="; ".join(lines),
            expected="weights as the format has them",
            try_="another mode or group size, ignored_scope for these layers, or another format",
        )


def destined(view: ModelView, plan: Plan) -> list[Destined]:
    """Every weight of a model, and what a plan makes of it and of its layer's input."""
    grids = {w.point.name: w.grid for w in plan.weights}
    inputs = {a.point.layer: a for a in plan.activations if a.point.role is Role.input}
    found = []
    for point in view.points(lambda p: p.role is Role.weight):
        grid = next((grids[user] for user in (point.name, *point.users) if user in grids), None)
        given = inputs.get(point.layer)
        found.append(
            Destined(
                point.layer,
                point.tensor,
                point.shape,
                grid,
                None if given is None else given.grid,
                given is not None and given.dynamic,
                point.op is EMBEDDING,
            )
        )
    return found


def _few(layers: Sequence[str]) -> str:
    more = len(layers) - _SHOWN
    return ", ".join(layers[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
