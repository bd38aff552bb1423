# SPDX-License-Identifier: Apache-2.0
"""Preparing: channels of very different sizes are evened out between layers before anything is rounded.

What a producer gives is divided channel by channel, and what its consumers' weights multiply is multiplied: the float
model computes the same, and what will be rounded suits its grids better. Statistics of the pass before follow by
arithmetic, see `fewbit.engine.carrying`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Activation, LinkProblem, Operand
from fewbit.algorithms._members import Algorithm
from fewbit.engine.inputs import InputSeen
from fewbit.engine.plan import Plan
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.structure import Link
from fewbit.model.view import ModelView
from fewbit.record import Record

_ROUNDS = 5  # links in a row move one another; after a few rounds they stand still
_STILL = log(1.05)


@dataclass
class Prepared:
    """What was done to a model.

    Args:
        factors: for each layer whose input changed what it was divided by, `[features]`.
        steps: the links that were scaled, one after the other, each with its factors.
    """

    factors: dict[str, Tensor] = field(default_factory=dict)
    steps: list[tuple[Link, Tensor]] = field(default_factory=list)

    def repeat(self, view: ModelView) -> None:
        """Do the same to another view of the same model."""
        for link, factors in self.steps:
            view.rescale(link.producer, link.consumers, link.channels, factors)


def prepare(
    view: ModelView,
    plan: Plan,
    solvers: Sequence[Algorithm],
    found: Sequence[Link],
    seen: Mapping[str, InputSeen],
    record: Record,
) -> Prepared:
    """Scale the links of a model by one algorithm after the other.

    Args:
        view: of the float model, which is changed.
        plan: says which weights and inputs will be rounded, and on which grids.
        solvers: algorithms of the stage `"prepare"`.
        found: the links that this view, or the one it is a copy of, found in the structure of the model.
        seen: what the layers' inputs carry, by layer; divided along with them.
        record: takes a line about each link, or one that there is none.
    """
    links = _Links(view, plan, seen)
    for solver in solvers:
        if not found:
            reason = "no producer's channels can be scaled and scaled back by all that read them"
            record.note("not-scaled", reason, algorithm=solver.name)
        lines: dict[Link, dict[str, Any]] = {}
        waiting: Sequence[Link] = found
        for _ in range(_ROUNDS):
            moved: set[str] = set()
            for link in waiting:
                facts, far = links.scale(link, solver)
                before = lines.setdefault(link, {"rounds": 0, **facts})
                if far:
                    first = before.get("error_unscaled")
                    lines[link] = {**facts, "error_unscaled": first, "rounds": before["rounds"] + 1}
                moved |= {link.producer, *link.consumers} if far > _STILL else set()
            waiting = [link for link in found if moved & {link.producer, *link.consumers}]
        for link, facts in lines.items():
            what = "scaled" if facts["rounds"] else "not-scaled"
            reason = facts.pop("reason", "the expected error falls")
            facts |= {"consumers": list(link.consumers), "algorithm": solver.name}
            record.note(what, reason, where=link.producer, **facts)
    return links.done


class _Links:
    """The links of a model, and what has become of them so far."""

    def __init__(self, view: ModelView, plan: Plan, seen: Mapping[str, InputSeen]):
        self._view, self._seen = view, seen
        self._grids = {user: w.grid for w in plan.weights for user in w.point.users}
        self._reads = {a.point.layer: a.grid for a in plan.activations if a.point.role is Role.input}
        self._feeds = {p.layer: p.feeds for p in view.points(lambda p: p.role is Role.input)}
        self._weights: dict[str, list[Point]] = {}
        for point in view.points(lambda p: p.role is Role.weight):
            self._weights.setdefault(point.layer, []).append(point)
        self.done = Prepared()

    def scale(self, link: Link, solver: Algorithm) -> tuple[dict[str, Any], float]:
        """Scale a link as an algorithm says; what is worth recording, and how far the farthest channel moved."""
        problem = self._problem(link)
        if isinstance(problem, str):
            return {"reason": problem}, 0.0
        found = solver.solve(problem)
        if found.factors is None:
            return found.facts, 0.0
        try:
            self._view.rescale(link.producer, link.consumers, link.channels, found.factors)
        except UsageError as error:
            return {"reason": error.what}, 0.0
        by, factors = problem.spread(found.factors), self.done.factors
        self.done.steps.append((link, found.factors))
        for layer in link.consumers:
            factors[layer] = by * factors.get(layer, torch.ones_like(by))
            if layer in self._seen:
                self._seen[layer].divide(by)
        return found.facts, float(found.factors.log().abs().max())

    def _problem(self, link: Link) -> LinkProblem | str:
        """The link as tensors; or why it is left alone."""
        consumers = [operand for layer in link.consumers for operand in self._consumer(layer)]
        wide = len(link.channels)
        if not consumers or any(operand.inputs != wide for operand in consumers):
            return "its consumers' weights are not multiplied with its channels one by one"
        shown = [each for layer in link.consumers if (each := self._shown(layer, wide)) is not None]
        if not shown:
            return "no calibration sample reached its consumers"
        producer = self._producer(link.producer)
        grid = next((self._reads[layer] for layer in link.consumers if layer in self._reads), None)
        if grid is None and all(end is None or end.grid is None for end in (producer, *consumers)):
            return "nothing at either end is quantized"
        return LinkProblem(consumers, link.channels, producer, replace(_joined(shown), grid=grid), link.producer)

    def _consumer(self, layer: str) -> list[Operand]:
        fed = self._feeds.get(layer, ())
        points = [point for point in self._weights.get(layer, []) if point.tensor in fed]
        return [
            Operand(self._view.read(p).flatten(0, p.stack), self._grids.get(p.name), p.groups) for p in points
        ]  # experts side by side

    def _producer(self, layer: str) -> Operand | None:
        """The layer whose channels they are; none if it is a norm, or has no one matrix."""
        points = self._weights.get(layer, [])
        if len(points) != 1 or points[0].stack or points[0].op not in (LINEAR, CONV, CONV_TRANSPOSE):
            return None
        made = Operand(self._view.read(points[0]), self._grids.get(points[0].name), points[0].groups)
        fed = self._shown(layer, made.inputs)
        return made if fed is None else replace(made, mean_square=fed.mean_square)

    def _shown(self, layer: str, features: int) -> Activation | None:
        """What a layer reads; none if it was not seen, or reads something else than its weight is multiplied with."""
        found = self._seen[layer].activation if layer in self._seen else None
        return found if found is not None and found.low is not None and found.low.numel() == features else None


def _joined(shown: list[Activation]) -> Activation:
    """What all consumers read, taken together."""
    low, high, mean = (torch.stack([getattr(each, name) for each in shown]) for name in ("low", "high", "mean_square"))
    return Activation(low.amin(0), high.amax(0), mean.mean(0), None)
