# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module made smaller: channels and heads taken out of every tensor they run through.

```
trace ─▶ groups ─▶ fit (does it run without some of each?) ─▶ moments ─▶ choose ─▶ cut ─▶ prove ─▶ make up for them
```
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import nn

from fewbit.backends.eager.calling import Item
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.engine.item_places import ItemPlaces
from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.modules.huggingface import is_pretrained
from fewbit.record import Record
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.choosing import how_many
from fewbit.sparsity.shrinking.compensating import Costs, nearest_to, refitted
from fewbit.sparsity.shrinking.groups import CHANNELS, HEADS, Group, find_groups
from fewbit.sparsity.shrinking.naming import is_named
from fewbit.sparsity.shrinking.proving import fault, probes
from fewbit.sparsity.shrinking.structure import Adapt, alike, fit, silenced, smaller
from fewbit.sparsity.shrinking.tracing import trace


def shrink_module(model: nn.Module, settings: Any, job: Job) -> nn.Module:
    """A module without a share of its channels and heads; the one given stays as it was.

    Args:
        model: the module.
        settings: of the stage `shrink`.
        job: with calibration samples, the first of which shows what hangs together.

    Raises:
        UsageError: nothing of what was asked for can be taken out; each reason is said.
        DataError: the model does not run on the first sample.
    """
    places = ItemPlaces()
    with places.told():
        view = view_of(model)
        data = job.calibration if isinstance(job.calibration, Dataset) else Dataset(job.calibration)
        taken = draw(data, job.samples)
        item = next(iter(places.inputs(taken, view.signature(), 2 if _may_stack(taken) else 1)))
        items = probes(model, item)
        groups = find_groups(trace(model, items[0]))
        counts = _counts(groups, model, settings, job.record)
        counts, adapt = _that_fit(model, groups, counts, items, settings, job.record)
        costs = Costs(view, places, taken, job)
        chosen = costs.choose([groups[number] for number in counts], list(counts.values()), settings.score)
        gone = {each for classes in chosen for each in classes}
        made = smaller(model, groups, gone)
        adapt(made)
        wrong = fault(made, silenced(model, groups, gone), items)
        if wrong is not None:
            raise UsageError(
                f"the smaller module does not answer as the larger one with these channels silent: {wrong}",
                where=type(model).__name__,
                expected="the same answers, to rounding",
                try_="ignore: layers whose shapes the model's own code writes down",
            )
        if settings.compensate and costs.refits:
            made_up = smaller(refitted(model, costs), groups, gone)
            adapt(made_up)
            made = nearest_to(model, made, made_up, costs, job.record)
        made = deepcopy(made)  # what was not cut is still shared with the user's model
    _tell(model, made, groups, dict(zip(counts, chosen, strict=True)), job.record)
    return made


def _may_stack(data: Dataset) -> bool:
    return data.batched is False and data.facts.get("alike") is not False


def _counts(groups: Sequence[Group], model: nn.Module, settings: Any, record: Record) -> dict[int, int]:
    """How many classes of which group are to go."""
    found = {}
    for number, group in enumerate(groups):
        share = {CHANNELS: settings.channels, HEADS: settings.heads}[group.kind]
        if not share or not is_named(group, model, settings.targets, settings.ignore):
            continue
        count = how_many(group, share, settings.multiple)
        if count:
            found[number] = count
        if not count or count < int(share * len(group.classes)):
            few = f"{share:.0%} of {len(group.classes):,} {group.kind} are less than what may go"
            record.note("dense", group.why or few, where=group.name, kind=group.kind)
    return found


def _that_fit(
    model: nn.Module,
    groups: Sequence[Group],
    counts: dict[int, int],
    items: Sequence[Item],
    settings: Any,
    record: Record,
) -> tuple[dict[int, int], Adapt]:
    """The groups without which the module runs, and how its modules change then; the others are told."""

    def attempt(numbers: Sequence[int]) -> tuple[Adapt | None, str]:
        gone = {each for number in numbers for each in groups[number].free[: counts[number]]}
        return fit(model, groups, gone, items, reloadable=settings.reloadable)

    adapt, wrong = attempt(list(counts)) if counts else (None, "there are none that can go")
    if adapt is None and counts:
        fitting = []
        for part in _parts([groups[number] for number in counts], is_pretrained(model) and settings.reloadable):
            numbers = [number for number in counts if groups[number] in part and number not in fitting]
            found, why = attempt(numbers) if numbers else (None, "")
            if found is not None:
                fitting += numbers
            elif len(part) == 1 or part in alike(groups):
                for number in numbers:
                    record.note("dense", why, where=groups[number].name, kind=groups[number].kind)
            wrong = why or wrong
        counts = {number: counts[number] for number in sorted(fitting)}
        adapt, wrong = attempt(list(counts)) if counts else (None, wrong)
    kinds = {groups[number].kind for number in counts}
    absent = [kind for kind in (CHANNELS, HEADS) if getattr(settings, kind) and kind not in kinds]
    if adapt is None or absent:
        _refuse(absent or [CHANNELS, HEADS], model, record, wrong)
    assert adapt is not None
    return counts, adapt


def _parts(groups: Sequence[Group], uniform: bool) -> list[list[Group]]:
    """What may fit where all do not, to be tried one after the other.

    Args:
        groups: those that do not fit together.
        uniform: whether layers have to be alike, since a configuration says one size for all of them.
    """
    if not uniform:
        return [[group] for group in groups]
    by_kind = [[group for group in groups if group.kind == kind] for kind in (CHANNELS, HEADS)]
    return [*(part for part in by_kind if part), *alike(groups)]


def _refuse(kinds: Sequence[str], model: nn.Module, record: Record, wrong: str) -> None:
    reasons = [f"{line['where']}: {line['reason']}" for line in record.lines if line["what"] == "dense"]
    folder = "reloadable: false, if it is not to be saved as a Hugging Face folder; " if is_pretrained(model) else ""
    raise UsageError(
        f"no {' and no '.join(kinds)} can be taken out of this model: {wrong}",
        where="; ".join(list(dict.fromkeys(reasons))[:6]) or type(model).__name__,
        expected="layers whose channels a later layer reads, and nothing else needs as they are",
        try_=f"{folder}other targets; or the stage prune",
    )


def _tell(
    model: nn.Module, made: nn.Module, groups: Sequence[Group], chosen: dict[int, list[int]], record: Record
) -> None:
    before, after = (sum(p.numel() * p.element_size() for p in each.parameters()) for each in (model, made))
    told = []
    for number, classes in chosen.items():
        group = groups[number]
        left = len(group.classes) - len(classes)
        told.append({"group": group.name, "kind": group.kind, "before": len(group.classes), "after": left})
        record.note(
            "shrunk", f"{left:,} of {len(group.classes):,} {group.kind} are left", where=group.name, gone=len(classes)
        )
    record.facts["shrink"] = {"before": before, "after": after, "groups": told}
