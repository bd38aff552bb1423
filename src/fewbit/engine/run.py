# SPDX-License-Identifier: Apache-2.0
"""A run: plan, collect, solve, apply, with one record of everything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fewbit import registry
from fewbit.data.arrays.leading_axis import fixed_batch
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw, items_in_order, report_subset
from fewbit.data.findings import Progress
from fewbit.data.signature import read_signature
from fewbit.data.source import known_length
from fewbit.engine.block_tuning import refuse_untunable
from fewbit.engine.by_layer import execute_by_layer
from fewbit.engine.collect import needed
from fewbit.engine.item_places import ItemPlaces
from fewbit.engine.joining import is_first, joined
from fewbit.engine.measuring import Reference, measure, reference_outputs
from fewbit.engine.nothing_quantized import require_something_planned, require_something_quantized
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.rotating import JUDGES, rotate, rotations
from fewbit.engine.runtime_check import check_runtime
from fewbit.engine.static import execute_static
from fewbit.engine.walked import execute_stored, execute_walked, wants_walk
from fewbit.errors import DataError, UsageError
from fewbit.model.view import ModelView
from fewbit.modules.opening import open_model, refuse_missing
from fewbit.record import Record


def view_of(model: Any) -> ModelView:
    """The view of the first backend that knows this kind of model; a path that none knows is opened as a module.

    Raises:
        UsageError: no such file, or nothing that any backend knows.
    """
    if isinstance(model, str | Path) and not registry.is_reference(model):
        refuse_missing(model)
    for name in registry.names("backends"):
        backend = registry.get("backends", name)
        if backend.accepts(model):
            view: ModelView = backend.view(model)
            return view
    if isinstance(model, str | Path):
        return view_of(open_model(model))
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
    by_item: bool = False,
    options: Options | None = None,
    work: Path | None = None,
    statistics: Path | None = None,
    checked: bool = False,
) -> ModelView:
    """Carry a plan out on the view's model.

    Args:
        view: of the model.
        plan: what becomes of it.
        dataset: the data, if there is any.
        record: takes a line about each layer.
        progress: shows how far it is.
        samples: how many are read at most: a random sample of the dataset by a fixed seed, if that can be indexed.
        by_item: whether `samples` counts the items of a loader, and not the samples in them.
        options: of the run.
        work: a folder for what is finished, from which the same run goes on if it is stopped.
        statistics: a folder for second moments: with data they are kept there, without they are taken from there.
        checked: raise an error if every layer stays in float, and compare the result with the float model on held-out
            samples, if there is data. Graphs with static activations always are compared.

    Returns:
        A view of the result: the one given, whose model was changed, or another.

    Raises:
        UsageError: nothing to quantize, or nothing that was quantized; static activations without data, every one of
            them named; statistics for activations, or of a graph.
        DataError: an empty dataset, a value that is not finite.
    """
    options = options or Options()
    progress = progress if is_first() else Progress()
    require_something_planned(view, plan)
    require_data(plan, dataset)
    refuse_untunable(view, plan, data=dataset is not None)
    _refuse_statistics(view, plan, statistics)
    refuse_weights(view, plan)
    taken = (
        None
        if dataset is None
        else calibration_subset(view, dataset, samples, by_item=by_item, batch_size=options.batch_size)
    )
    in_order = None if taken is None else items_in_order(taken, options.batch_size)
    if taken is not None and (length := known_length(taken.source)) is not None:
        samples = length
    places = ItemPlaces()
    static = bool(plan.static) and "place" in view.can
    reference: Reference | None = None
    if checked and taken is not None and not static:
        with places.told():
            inputs = places.inputs(taken, view.signature(), options.batch_size)
            reference = reference_outputs(view, inputs, record, in_order=in_order)
    rotating, options = rotations(options)
    if rotating:
        with places.told():
            fed = iter(()) if taken is None else places.inputs(taken, view.signature(), options.batch_size)
            plan = rotate(view, plan, rotating, list(islice(fed, JUDGES)), record)
    for kept in plan.kept:
        record.note("float", kept.reason, where=kept.name, bytes=kept.bytes)
    for where, what in plan.notes:
        record.note("note", what, where=where)
    record.facts |= facts_of(plan)

    def items(label: str) -> Iterator[Any]:
        assert taken is not None
        fed = places.inputs(taken, view.signature(), options.batch_size)
        return progress.track(fed, total=samples, label=label)

    with places.told():
        if static:
            placing: Any = view
            view = execute_static(
                placing, plan, items, record=record, options=options, samples=samples, in_order=in_order
            )
            record.facts["bytes_after"] = view.size()
            if answers := record.facts.get("answers"):
                answers["worst_place"] = places.place(answers["worst_item"])
        elif taken is None and statistics is not None:
            workers = joined()
            with workers.together():
                execute_stored(view, plan, statistics, record=record, progress=progress, workers=workers)
        elif taken is not None and wants_walk(view, plan, keeps=statistics is not None):
            if options.correct is not None:
                reason = "weights are settled on a walk, and make up for what was rounded before them"
                record.note("bias-not-corrected", reason, algorithm=options.correct)
            workers = joined()
            with workers.together():
                execute_walked(
                    view, plan, items, record=record, progress=progress, work=work, statistics=statistics,
                    workers=workers, options=options,
                )  # fmt: skip
        else:
            passes = None if taken is None else items
            execute_by_layer(view, plan, passes, record=record, progress=progress, options=options)
    if taken is not None:
        record.lines += taken.record.lines
        report_subset(taken, record, calibrates=bool(plan.static or needed(plan)))
    for where, what in view.notes:
        record.note("run", what, where=where)
    if checked:
        require_something_quantized(record)
    if reference is not None:
        found = measure(view, reference, record)
        if found and "place" in view.can:
            check_runtime(view, reference, found, record)
    return view


def calibration_subset(
    view: ModelView, dataset: Dataset, samples: int | None, *, by_item: bool = False, batch_size: int = 1
) -> Dataset:
    """The calibration samples, drawn from the whole dataset; see `execute`."""
    if samples is not None and not (by_item and dataset.batched):
        batch = fixed_batch(read_signature(view.signature()))
        samples = max(samples // batch, 1) * batch  # such a model takes no smaller batch
    return draw(dataset, samples, by_item=by_item, batch_size=batch_size)


def probe(view: ModelView, dataset: Dataset, batch_size: int) -> None:
    """Show a view the first item, so that it knows the shapes of what flows through its model."""
    places = ItemPlaces()
    with places.told():
        view.probe(next(places.inputs(dataset, view.signature(), batch_size)))


def facts_of(plan: Plan) -> dict[str, Any]:
    """What a record says of a plan before it is carried out."""
    return {
        "items": 0,
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
            try_="fewbit.quantize(model, data); or, without data, scales that are found in each call: "
            "preset='w8a8_dynamic', or is_dynamic=True in a configuration",
        )


def _refuse_statistics(view: ModelView, plan: Plan, statistics: Path | None) -> None:
    """Refuse second moments where a model cannot be walked, and of inputs that are rounded: of no use for others."""
    if statistics is not None and "walk" not in view.can:
        raise UsageError("statistics of a graph", where="statistics", expected="a PyTorch module")
    if statistics is not None and plan.activations:
        raise UsageError(
            f"statistics for a plan with {len(plan.activations)} quantized activations",
            where="statistics",
            expected="a plan for weights alone",
        )


def refuse_weights(view: ModelView, plan: Plan) -> None:
    """Refuse weights that no scale can be found for, all at once and before the first one is changed."""
    faults = []
    for planned in plan.weights:
        weight = view.read(planned.point)
        if weight.is_meta:
            raise UsageError(
                "the model has no weights: it lies on the meta device",
                where=planned.point.name,
                expected="a model with its weights loaded",
            )
        if weight.numel() and not bool(torch.isfinite(torch.stack(weight.aminmax())).all()):
            faults.append(f"{planned.point.name} ({int((~torch.isfinite(weight)).sum())} of {weight.numel()} values)")
    if faults:
        raise DataError(
            f"{len(faults)} weight{'s are' if len(faults) > 1 else ' is'} not finite",
            code="not-finite",
            where=", ".join(faults),
            expected="numbers that are neither NaN nor infinite",
            try_="exclude these layers, or look at how the model was trained or saved",
        )
