# SPDX-License-Identifier: Apache-2.0
"""Channels and heads taken out of an ONNX graph: a smaller graph, with shapes that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fewbit.backends.graph.opening import quantized_nodes
from fewbit.backends.graph.saving import to_proto
from fewbit.backends.graph.shaping import value_forms
from fewbit.backends.graph.view import GraphView
from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.graph_choice import candidates, chosen, scores
from fewbit.sparsity.shrinking.graph_compensation import apply, changes
from fewbit.sparsity.shrinking.graph_cutting import cut, masked
from fewbit.sparsity.shrinking.graph_groups import Group, best_walk, groups_of
from fewbit.sparsity.shrinking.graph_items import Items
from fewbit.sparsity.shrinking.graph_judging import nearest
from fewbit.sparsity.shrinking.graph_naming import Wish, refuse_names
from fewbit.sparsity.shrinking.graph_proof import differs, inner_values, probes
from fewbit.sparsity.shrinking.graph_report import facts, refuse_nothing, tell
from fewbit.sparsity.shrinking.graph_statistics import Seen, look
from fewbit.sparsity.shrinking.graph_walk import Walk


def shrink_graph(model: Any, settings: Wish, job: Job) -> Any:
    """A graph without the channels and heads that matter least.

    What goes is taken out of every weight, bias and shape that it reaches, and proved: the smaller graph answers as the
    whole one does with these channels at zero where they are read. Then, with data, readers make up for what went, as
    far as that brings the answers on items kept aside nearer.

    Args:
        model: an `onnx.ModelProto`; it is not changed.
        settings: `channels` and `heads` (shares to take out), `targets` and `ignore` (names, globs, `re:` patterns or
            operators of the layers that make the channels), `multiple` (the number of channels left is one of it),
            `score` (`error` or `magnitude`) and `compensate`.
        job: with `calibration` (none: the sizes of weights decide), `samples`, and the record.

    Returns:
        A new `onnx.ModelProto`.

    Raises:
        UsageError: a quantized graph, names of layers that are not there, nothing that can go, or a smaller graph that
            does not answer as it should.
    """
    view = GraphView.of(model)
    refuse_graph(view, settings)
    items = Items(view, job)
    view.probe(items.first)
    done = _shrunk(view, items, settings, job)
    tell(job.record, done.groups, done.gone, settings)
    for where, what in view.notes:
        job.record.note("run", what, where=where)
    small, how = done.small, dict[str, Any]()
    if items and settings.compensate:
        small, how = _made_up(view, done, items, job.record)
    proto = to_proto(small.model)
    _check(proto)
    sizes = {"before": view.size(), "after": small.size()}
    job.record.facts["shrink"] = {**sizes, **facts(done.groups, done.gone), **how}
    return proto


@dataclass
class _Done:
    small: GraphView
    walk: Walk
    groups: list[Group]
    gone: set[int]
    seen: Mapping[str, Seen]


def _shrunk(view: GraphView, items: Items, settings: Wish, job: Job) -> _Done:
    """The smaller graph, proved; where the graph computes with numbers of channels, in a second try without these."""
    forms, tests, why = value_forms(view.model, items.first), probes(view.model, items.first), None
    seen: Mapping[str, Seen] | None = None
    for strict in (False, True):
        small = view.model.clone(deep_copy=False)
        walk = best_walk(small, forms, strict=strict)
        groups = groups_of(walk)
        refuse_nothing(groups, settings)
        if seen is None:
            names = walk.readers(candidates(groups, settings))
            with items.places.told():
                seen = look(view, items.looked_at(), names) if items else {}
        gone = chosen(walk, groups, scores(walk, seen if settings.score == "error" else {}), settings)
        inner = inner_values(walk, gone)
        cut(small, walk, gone)
        reference = view.model.clone(deep_copy=False)
        masked(reference, walk, gone)
        why = differs(small, reference, tests, inner)
        if why is None:
            return _Done(GraphView(small, view.source), walk, groups, gone, seen)
        if not strict:
            job.record.note("shrink-again", f"{why}; channels whose number the graph computes with stay")
    raise UsageError(
        f"the smaller graph does not answer as the whole one does without these channels: {why}",
        where=view.model.graph.name or "ModelProto",
        expected="the same answers, to float rounding",
        try_="name layers to leave alone under `ignore`",
    )


def _made_up(view: GraphView, done: _Done, items: Items, record: Record) -> tuple[GraphView, dict[str, Any]]:
    """The smaller graph with readers that make up for what went, in the way that serves best on items kept aside."""
    views, found = {"nothing": done.small}, {}
    for name in ("means", "refit"):
        views[name] = done.small.copy()
        found[name] = changes(view, done.walk, done.gone, done.seen, refit=name == "refit")
        apply(views[name], found[name])
    best, off = nearest(views, view, items.judges)
    for layer, change in found["refit"].items():
        if change.reason and best != "nothing":
            record.note("bias-only", change.reason, where=layer)
    return views[best], {"made_up_by": best, "off": off}


def _check(proto: Any) -> None:
    """Hold a graph against the rules of ONNX."""
    import onnx

    if proto.ByteSize() < 2**31:
        onnx.checker.check_model(proto, full_check=False)


def refuse_graph(view: GraphView, settings: Wish) -> None:
    """Refuse a graph of codes, and names of layers that are not there.

    Raises:
        UsageError: one of these.
    """
    names = quantized_nodes(view.model)
    if names:
        raise UsageError(
            f"{len(names)} nodes compute with codes",
            where=", ".join(names[:4]),
            expected="a float model",
            try_="shrink first, then quantize",
        )
    refuse_names(view.model, settings)
