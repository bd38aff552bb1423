# SPDX-License-Identifier: Apache-2.0
"""A run: plan, collect, solve, apply, with one record of everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fewbit import registry
from fewbit.data.dataset import Dataset
from fewbit.data.findings import Progress
from fewbit.engine.collect import Statistics, collect, weighed_layers
from fewbit.engine.plan import Plan
from fewbit.engine.solve import solve
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.record import Record


def view_of(model: Any) -> ModelView:
    """The view of the first backend that knows this kind of model."""
    for name in registry.names("backends"):
        backend = registry.get("backends", name)
        if backend.accepts(model):
            view: ModelView = backend.view(model)
            return view
    kinds = ", ".join(f"{name} ({registry.summary('backends', name)})" for name in registry.names("backends"))
    raise UsageError(f"no backend takes a {type(model).__name__}", expected=kinds)


def execute(
    view: ModelView,
    plan: Plan,
    dataset: Dataset | None,
    *,
    record: Record,
    progress: Progress,
    samples: int | None = None,
    batch_size: int = 1,
) -> None:
    """Carry a plan out on the view's model.

    Raises:
        UsageError: static activations without data, every one of them named.
        DataError: an empty dataset, a value that is not finite.
    """
    require_data(plan, dataset)
    for kept in plan.kept:
        record.note("float", kept.reason, where=kept.name, bytes=kept.bytes)
    for where, what in plan.notes:
        record.note("note", what, where=where)
    statistics = Statistics()
    if dataset is not None and (plan.static or weighed_layers(plan)):
        taken = dataset if samples is None else dataset.subset(samples)
        items = progress.track(_items(taken, view, batch_size), total=None, label="calibration")
        statistics = collect(view, plan, items)
        if not statistics.held_out:
            record.note("no-held-out", f"{statistics.items} items are too few to keep one in five aside as a judge")
        record.lines += taken.record.lines
        for line in view.notes:
            where, _, what = line.partition(": ")
            record.note("run", what, where=where)
    solve(view, plan, statistics, record, progress)
    record.facts |= {
        "items": statistics.items,
        "bytes_before": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "config": plan.config.to_dict(),
        "fingerprint": plan.config.fingerprint,
        "layers": list(plan.layers()),
    }


def require_data(plan: Plan, dataset: Dataset | None) -> None:
    """Refuse a plan with static activations and no data, before anything is done."""
    if dataset is None and plan.static:
        names = [a.point.name for a in plan.static]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        raise UsageError(
            f"no calibration data for {len(names)} static activation{'s' if len(names) > 1 else ''}",
            where=", ".join(names[:4]) + more,
            expected="a loader, a dataset, a list of inputs or a path",
            try_="quantize_model(model, dataloader), or is_dynamic=True: scales are then found in each call",
        )


def _items(dataset: Dataset, view: ModelView, batch_size: int) -> Iterator[Any]:
    items: Iterable[Any] = dataset.inputs(view.native(), batch_size)
    yield from items
