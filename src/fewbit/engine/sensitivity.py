# SPDX-License-Identifier: Apache-2.0
"""How much harm a format does to each weight: to the model's answers with data, else to what the layer gives.

answers   with data, for models that have gradients: the KL divergence that rounding adds, in nats a position
outputs   from second moments of what layers read (a store's; or with data, for a graph): the share of the energy of a
          layer's output that is off
weights   without both: the share of the energy of the weight itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem
from fewbit.algorithms._members import algorithm
from fewbit.engine.collect import collect
from fewbit.engine.evidence import ITEMS, Evidence
from fewbit.engine.fisher import Curvatures
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.questions import questions
from fewbit.engine.second_moments import Gathered
from fewbit.engine.solve import settle
from fewbit.engine.store import Store
from fewbit.errors import DataError
from fewbit.model.view import ModelView
from fewbit.numerics.quantize import fake_quantize
from fewbit.schemes.config import Config

T = TypeVar("T")


@dataclass
class Sensitivity:
    """What was found.

    Args:
        how: `answers`, `outputs` or `weights`.
        harms: of each weight, by format.
        items: how many it rests on.
        notes: of what was not as usual, as `(where, what)`.
    """

    how: str
    harms: list[list[float]]
    items: int = 0
    notes: list[tuple[str, str]] = field(default_factory=list)


def sensitivity(view: Any, weights: Sequence[Sequence[WeightPlan]], evidence: Evidence) -> Sensitivity:
    """The harm of every format to every weight.

    Args:
        view: of the float model, which is not changed.
        weights: each in every format.
        evidence: what there is to judge by.

    Raises:
        DataError: the model fails on an item, or gives what is not finite.
    """
    notes = []
    if evidence.dataset is not None and "gradients" in view.can:
        try:
            return _by_answers(view, weights, evidence)
        except DataError as error:
            if error.code != "no-gradients":
                raise
            notes = [("", f"{error.what}: layers are judged by their outputs")]
    if evidence.dataset is not None:
        harms, items = _by_moments(view, weights, evidence)
        return Sensitivity("outputs", harms, items, notes)
    if evidence.statistics is not None:
        store = Store.open(evidence.statistics)
        return Sensitivity("outputs", _by_store(view, weights, store), store.items)
    return Sensitivity("weights", [[_share(view, w) for w in each] for each in weights])


def _by_answers(view: Any, weights: Sequence[Sequence[WeightPlan]], evidence: Evidence) -> Sensitivity:
    few = evidence.few
    assert few is not None
    asked = questions(few, view.signature(), evidence.batch_size)
    seen = Curvatures()
    seen.collect(view, [each[0].point for each in weights], _shown(evidence, asked))
    harms, notes = [], []
    for each in weights:
        found = seen.found.get(each[0].point.name)
        if found is None:
            notes.append((each[0].point.name, "no answer depends on it: it gets the narrowest format"))
            harms.append([0.0] * len(each))
        else:
            harms.append([found.harm(_off(view, w), w.point.stack) / max(seen.positions, 1) for w in each])
    return Sensitivity("answers", harms, seen.items, notes)


def _shown(evidence: Evidence, items: Iterable[T]) -> Iterator[T]:
    return evidence.progress.track(items, total=min(ITEMS, evidence.samples or ITEMS), label="sensitivity")


def _by_moments(
    view: ModelView, weights: Sequence[Sequence[WeightPlan]], evidence: Evidence
) -> tuple[list[list[float]], int]:
    """From E[x²] of what each layer reads."""
    few, search, plain = evidence.few, algorithm("scale_search"), algorithm("rtn")
    assert few is not None
    asking = tuple(replace(each[0], algorithm=search, parameters={}) for each in weights)
    items = _shown(evidence, few.inputs(view.signature(), evidence.batch_size))
    seen = collect(view, Plan(Config(), asking, (), ()), items)

    def error(w: WeightPlan) -> float:
        return float(settle(view.read(w.point), replace(w, algorithm=plain, parameters={}), seen).facts["error"])

    return [[error(w) for w in each] for each in weights], seen.items


def _by_store(view: ModelView, weights: Sequence[Sequence[WeightPlan]], store: Store) -> list[list[float]]:
    """From the second moments of what each layer reads."""
    stages = {name: layers for layers in store for name in layers}
    harms = []
    for each in weights:
        point = each[0].point
        layers = stages.get(point.layer, stages.get(point.name))  # stacks of experts go by their own names
        seen = Gathered() if layers is None else store.get(layers)
        grams = [side.second_moment() for side in (seen.pooled() if seen.experts else seen).sides.values()]
        gram = torch.stack(grams).sum(0) if grams else None
        harms.append([_share(view, w, gram) for w in each])
    return harms


def _share(view: ModelView, w: WeightPlan, gram: Tensor | None = None) -> float:
    """tr(Δw H Δwᵀ) over tr(w H wᵀ); without H, or where a weight is no matrix that it fits, plain squares."""
    weight, off = view.read(w.point).float(), _off(view, w)
    fits = gram is not None and weight.ndim == w.point.stack + 2 and weight.shape[-1] == len(gram)
    lost, whole = (_energy(x, gram if fits else None) for x in (off, weight))
    return lost / max(whole, torch.finfo(torch.float64).tiny)


def _energy(x: Tensor, gram: Tensor | None) -> float:
    seen = x if gram is None else x @ gram.to(x)
    return float((seen * x).sum(dtype=torch.float64))


def _off(view: ModelView, w: WeightPlan) -> Tensor:
    """What plain rounding changes of a weight."""
    weight = view.read(w.point).float()
    return fake_quantize(weight, rtn.qparams(Problem(weight, w.grid, w.block, name=w.point.name))) - weight
