# SPDX-License-Identifier: Apache-2.0
"""A mix settled: which layer gets which format, so that the model's answers suffer least and the budget holds.

open        the weights there is a choice for
tied        layers that runtimes make one of get the same format
refuse      what the output cannot hold is told here, before the model is run
sensitivity the harm of each format to each weight
choose      the least harm in all, exactly
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from fewbit.algorithms._knapsack import least_harm
from fewbit.engine.evidence import Evidence
from fewbit.engine.mix import Mix, average_bits
from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.planning import make_plan
from fewbit.engine.sensitivity import Sensitivity, sensitivity
from fewbit.engine.tied_groups import Group, experts_together, tied_groups
from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.schemes.config import Config

_HOW = {
    "answers": "the KL divergence from the float model's answers that each format adds, in nats a position",
    "outputs": "the share of each layer's output that each format loses",
    "weights": "the share of each weight that each format loses: there is neither data nor a store of statistics",
}

Line = tuple[str, str, str | None, dict[str, Any]]


@dataclass(frozen=True)
class Choice:
    """What was chosen for a group.

    Args:
        weights: each in every format.
        option: the number of the format.
        harms: of every format.
    """

    weights: list[list[WeightPlan]]
    option: int
    harms: list[float]

    @property
    def best(self) -> list[WeightPlan]:
        """The weights in the format."""
        return [each[self.option] for each in self.weights]

    @property
    def elements(self) -> int:
        """How many there are."""
        return sum(w.point.elements for w in self.best)

    @property
    def where(self) -> str:
        """The layers."""
        return ", ".join(dict.fromkeys(w.point.layer for w in self.best))


@dataclass(frozen=True)
class Settled:
    """A mix with all choices made.

    Args:
        config: the configuration.
        facts: what the record says of it.
        lines: a line of the record for each group, and for what was not as usual: `(what, reason, where, facts)`.
    """

    config: Config
    facts: dict[str, Any]
    lines: list[Line]

    def tell(self, record: Record) -> None:
        """Put it into a record."""
        record.facts["mix"] = self.facts
        for what, reason, where, facts in self.lines:
            record.note(what, reason, where=where, **facts)


def settle_mix(view: Any, mix: Mix, evidence: Evidence, refuse: Callable[[Plan], None]) -> Settled:
    """Choose a format for every layer of a model.

    Args:
        view: of the float model, which is not changed.
        mix: what there is to choose from.
        evidence: what there is to judge by.
        refuse: raises where the output cannot hold a plan.

    Raises:
        UsageError: what `refuse` has against a format, or against two beside each other.
        DataError: the model fails on an item, or gives what is not finite.
    """
    names, narrow = list(mix.formats), mix.open(view)
    columns = {names[0]: narrow} | {name: mix.plan(view, name, narrow) for name in names[1:]}
    rows = [[columns[name][i] for name in names] for i in range(len(narrow))]
    groups, notes = tied_groups(view, narrow, evidence)

    def asked(groups: Sequence[Group], chosen: Sequence[int]) -> Config:
        config = _config(mix, narrow, groups, chosen)
        refuse(make_plan(view, config))
        return config

    for option in range(len(names)):
        asked(groups, [option] * len(groups))
    try:
        asked(groups, _side_by_side(groups, len(names)))
    except UsageError:
        groups = experts_together(groups, narrow)
        asked(groups, _side_by_side(groups, len(names)))
        notes.append("the output holds experts of one format only: those of all layers get the same")
    found = sensitivity(view, rows, evidence)
    costs = [[sum(mix.cost(columns[name][i], name) for i in group) for name in names] for group in groups]
    harms = [[sum(found.harms[i][option] for i in group) for option in range(len(names))] for group in groups]
    chosen = least_harm(costs, harms, mix.budget(narrow)) or [0] * len(groups)  # which `mixture` made sure of
    told = [Choice([rows[i] for i in group], option, hurts) for group, option, hurts in zip(groups, chosen, harms)]
    return _settled(mix, asked(groups, chosen), told, found, notes)


def _side_by_side(groups: Sequence[Group], options: int) -> list[int]:
    """Every format beside every other, as far as there are groups."""
    return [option for option, _ in zip(cycle(range(options)), groups)]


def _config(mix: Mix, weights: Sequence[WeightPlan], groups: Sequence[Group], chosen: Sequence[int]) -> Config:
    names = list(mix.formats)
    points: dict[str, list[Any]] = {name: [] for name in names}
    for group, option in zip(groups, chosen):
        points[names[option]] += [weights[i].point for i in group]
    return mix.settled(points)


def _settled(mix: Mix, config: Config, told: Sequence[Choice], found: Sensitivity, notes: Sequence[str]) -> Settled:
    names = list(mix.formats)
    whole = sum(each.elements for each in told)
    narrow = {name: sum(each.elements for each in told if each.option == n) for n, name in enumerate(names)}
    facts = {
        **({"bits_asked": mix.bits} if mix.bits is not None else {"ratio_asked": mix.ratio}),
        "bits": average_bits(w for each in told for w in each.best),
        "shares": {name: elements / max(whole, 1) for name, elements in narrow.items()},
        "sensitivity": found.how,
        "items": found.items,
        "harm": sum(each.harms[each.option] for each in told),
        "harm_alone": {name: sum(each.harms[n] for each in told) for n, name in enumerate(names)},
    }
    lines: list[Line] = [("mixed", _HOW[found.how], None, {})]
    lines += [("mixed", reason, None, {}) for reason in notes]
    lines += [("mixed", reason, where or None, {}) for where, reason in found.notes]
    for each in told:
        mine = {"format": names[each.option], "bits": average_bits(each.best), "harm": dict(zip(names, each.harms))}
        lines.append(("format", "chosen for all of these together", each.where, mine))
    return Settled(config, facts, lines)
