# SPDX-License-Identifier: Apache-2.0
"""What zeros in each layer do to a model's answers, as a curve over their number.

Each weight is pruned to a few shares by its own algorithm, for the second moments that one pass over a few items shows;
nothing is run again for that. What is then off in a layer's output is weighed by how much answers feel it:

answers   where there are gradients: by the Fisher information of the answers. Of g², the squared gradient by a weight,
          sums over rows and columns are known; those over columns are taken to be the second moment H of what the layer
          reads, up to a factor, as K-FAC does (arXiv 1503.05671): ½ Σ r (Δw H Δwᵀ) Σc / tr H, r the sums over rows as
          shares of their sum, c those over columns
measured  for a graph: with this one layer pruned, the answers are held against those of the whole model
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._members import algorithm
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics, collect
from fewbit.engine.evidence import ITEMS
from fewbit.engine.fisher import Curvature, Curvatures
from fewbit.engine.nearer import apart
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.solve import settle
from fewbit.errors import DataError
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.sparsity.pruning.budgets import CAP, Curve
from fewbit.sparsity.pruning.parts import JUDGES, Parts
from fewbit.sparsity.pruning.planning import with_zeros
from fewbit.sparsity.pruning.solvers import moments_fit

_AROUND = (-0.3, -0.15, 0.0, 0.1, 0.2)  # shares that are tried, beside that of all: nobody knows more of the others
_FEWER = (-0.2, 0.0, 0.15)  # where each of them takes a run of the model
_ITEMS = 64  # that second moments are taken of
_LARGE = 1 << 25  # elements: to settle more than these seven times takes longer than a better guess is worth

Harm = Callable[[WeightPlan, Tensor], float]
"""What is lost where a weight becomes another."""


@dataclass(frozen=True)
class Sensed:
    """What was found.

    Args:
        how: `answers` or `measured`.
        curves: one for each weight.
        trial: a weight with so many zeros.
    """

    how: str
    curves: list[Curve]
    trial: Callable[[WeightPlan, int], Tensor]


def sensed(view: ModelView, weights: Sequence[WeightPlan], share: float, parts: Parts, progress: Progress) -> Sensed:
    """The curves of some weights.

    Args:
        view: of the float model, which is not changed.
        weights: with patterns and algorithms.
        share: of zeros in all layers together.
        parts: the data, of which what is kept aside is left alone.
        progress: shows how far it is.

    Raises:
        DataError: the model fails on an item, or gives what is not finite.
    """
    points = [w.point for w in weights]
    if sum(point.elements for point in points) > _LARGE or not moments_fit(points):
        rough = algorithm("wanda")
        weights = [replace(w, algorithm=rough, parameters={}) if w.algorithm.needs else w for w in weights]
    seen = collect(view, Plan(Config(), tuple(weights), (), ()), parts.others(_ITEMS))

    def trial(w: WeightPlan, zeros: int) -> Tensor:
        return settle(view.read(w.point), with_zeros(w, zeros), seen).qtensor.dequantize()

    how, harm = _harm(view, weights, parts, seen)
    curves = []
    for w in progress.track(weights, total=len(weights), label="sensitivity"):
        steps = _steps(view, w, share, _FEWER if how == "measured" else _AROUND)
        curves.append(Curve(steps, tuple(harm(w, trial(w, zeros)) for zeros in steps)))
    return Sensed(how, curves, trial)


def _harm(view: Any, weights: Sequence[WeightPlan], parts: Parts, seen: Statistics) -> tuple[str, Harm]:
    asked = list(parts.others(JUDGES))

    def measured(w: WeightPlan, values: Tensor) -> float:
        one = view.copy()
        one.write(w.point, values)
        return apart(view, [one], asked)[0]

    if "gradients" not in view.can:
        return "measured", measured
    felt = Curvatures()
    try:
        felt.collect(view, [w.point for w in weights], parts.questions(ITEMS))
    except DataError as error:
        if error.code != "no-gradients":
            raise
        return "measured", measured

    def by_answers(w: WeightPlan, values: Tensor) -> float:
        found, weight = felt.found.get(w.point.name), view.read(w.point).float()
        if found is None:
            return 0.0  # no answer depends on it
        gram = seen.inputs.get(w.point.layer, {}).get("gram")
        off = values.to(weight) - weight
        return found.harm(off, w.point.stack) if gram is None else fisher_harm(off, found, gram.seen["gram"])

    return "answers", by_answers


def fisher_harm(off: Tensor, felt: Curvature, gram: Tensor) -> float:
    """What is lost where a weight is off by so much; see above.

    Args:
        off: of the weight's shape, without a stack.
        felt: sums of squared gradients.
        gram: the second moment of what the layer reads, `[places, places]`, up to a factor.
    """
    rows = off.flatten(1).double()
    moment = gram.to(rows)
    lost = ((rows @ moment) * rows).sum(1)
    tiny = torch.finfo(torch.float32).tiny
    shares = felt.rows.double() / felt.rows.double().sum().clamp(min=tiny)
    return float(0.5 * (shares * lost).sum() * felt.columns.double().sum() / moment.trace().clamp(min=tiny))


def _steps(view: ModelView, w: WeightPlan, share: float, around: Sequence[float]) -> tuple[int, ...]:
    """Numbers of zeros that are tried, from no fewer than there are to no more than there may be."""
    elements = w.point.elements
    least = int((view.read(w.point) == 0).sum())
    most = max(least, int(max(CAP, share) * elements))
    return tuple(sorted({min(max(round((share + more) * elements), least), most) for more in around}))
