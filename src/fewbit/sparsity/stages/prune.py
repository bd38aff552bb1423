# SPDX-License-Identifier: Apache-2.0
"""Zeros in the weights of a model, in one go: magnitude, Wanda, SparseGPT, ALPS; free, N:M or in blocks.

plan      which weights, how many zeros in each, found how; what stays dense, with the reason
budget    if asked: zeros go where answers feel them least
execute   decoders block by block, each layer for the inputs it will have; networks of convolutions and graphs from one
          pass, after which biases make up for the shift of means, and batch norms for that and the loss of spread
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from fewbit.algorithms._members import algorithm
from fewbit.data.dataset import Dataset
from fewbit.data.text import as_inputs
from fewbit.engine.evidence import Evidence
from fewbit.engine.joining import by_the_first
from fewbit.engine.options import Options
from fewbit.engine.run import calibration_subset, execute, probe, view_of
from fewbit.engine.walked import wants_walk
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.record import Record
from fewbit.schemes.faults import Fault
from fewbit.schemes.faults import refuse as refuse_all
from fewbit.sparsity.calibration import batch_of
from fewbit.sparsity.job import Job
from fewbit.sparsity.layers import choose_layers
from fewbit.sparsity.pruning.batch_norms import correct_norms
from fewbit.sparsity.pruning.planning import Pruning, misfits, pruning_plan
from fewbit.sparsity.pruning.settings import Settings
from fewbit.sparsity.pruning.sharing import shared_out

__all__ = ["Settings", "refuse", "run"]

_TEXT = ("seqlen", "pack")


def refuse(settings: Settings, model: Any, job: Job) -> None:
    """Names that match nothing, inputs that N:M does not divide, what needs data where there is none; all at once.

    Raises:
        UsageError: with everything that was found.
    """
    view, faults = view_of(model), list[Fault]()
    try:
        chosen = choose_layers(view, settings.targets, settings.ignore)
        faults += misfits(chosen.points, settings.pattern)
        if not faults:
            pruning_plan(view, settings, data=job.calibration is not None)
    except UsageError as error:
        faults.append(Fault(error.where or "prune", error.what, error.expected or "", error.try_))
    if job.calibration is None:
        needs = settings.algorithm is not None and bool(algorithm(settings.algorithm).needs)
        given = {"algorithm": settings.algorithm if needs else None, "budget": settings.budget}
        asks = [name for name, value in given.items() if value not in (None, "uniform")]
        faults += [Fault(name, f"{given[name]} without data", "calibration samples", "magnitude") for name in asks]
    refuse_all(faults, "the stage prune")


@torch.inference_mode(False)  # sensitivity is found by gradients, and what is made is to be used outside of that mode
def run(model: Any, settings: Settings, job: Job) -> Any:
    """The model with zeros in it, as a new one; a line of the record for each layer, totals under `prune`."""
    view = view_of(model).copy()
    said = {name: value for name in _TEXT if (value := job.options.get(name)) is not None}
    options = Options(**said, batch_size=batch_of(view.signature(), job))
    dataset: Dataset | None = None
    if job.calibration is not None:
        dataset = as_inputs(job.calibration, model, view.signature(), seqlen=options.seqlen, pack=options.pack)
        probe(view, dataset, options.batch_size)
        dataset = calibration_subset(view, dataset, job.samples)
    record = Record("prune")
    found = pruning_plan(view, settings, data=dataset is not None)
    _tell(found, record)
    if settings.budget == "sensitivity" and dataset is not None:
        evidence = Evidence(dataset, job.samples, options.batch_size, progress=job.progress)
        found = _budgeted(view, found, settings, evidence, record)
    if dataset is not None and settings.correct and not wants_walk(view, found.plan):
        options = replace(options, correct="fast_bias_correction")
    result = execute(
        view, found.plan, dataset, record=record, progress=job.progress, samples=job.samples, options=options,
        work=None if job.work is None else job.work / "prune",
    )  # fmt: skip
    if settings.quantize is not None:
        result.sign(found.plan.config, record)
    layers = _layers(result, found)
    for line in record.lines:
        if line["what"] == "pruned":
            line |= layers[line["where"]]
    made = result.native()
    if dataset is not None and settings.correct and isinstance(made, nn.Module):
        _correct_norms(made, model, dataset, options.batch_size, job.samples, record)
    job.record.lines += record.lines
    job.record.facts["prune"] = _totals(layers) | {"items": record.facts["items"], "layers": layers} | {
        name: record.facts[name] for name in ("budget", "correction", "batch_norms", "subset") if name in record.facts
    }  # fmt: skip
    return made


def _tell(found: Pruning, record: Record) -> None:
    """Say what was decided before anything is done."""
    name, why = found.algorithm
    record.note("algorithm", why, algorithm=name)
    for where, other, reason in found.others:
        record.note("algorithm", reason, where=where, algorithm=other)
    for where, reason in found.dense:
        record.note("dense", reason, where=where)


def _correct_norms(
    made: nn.Module, dense: nn.Module, dataset: Dataset, batch_size: int, samples: int | None, record: Record
) -> None:
    found = correct_norms(made, dense, lambda: islice(dataset.inputs(dense, batch_size), samples))
    if found is None:
        return
    record.facts["batch_norms"] = found
    if not found["kept"]:
        record.note("norms-not-corrected", "answers came no nearer to the float model's by it", **found)


def _budgeted(view: ModelView, found: Pruning, settings: Settings, evidence: Evidence, record: Record) -> Pruning:
    # Of several workers one decides: sums of gradients may differ in the last bit, and all must plan the same.
    shares = by_the_first(shared_out)(view, found, settings.pattern.share, evidence)
    record.facts["budget"] = {**shares.facts, "used": shares.zeros is not None}
    if shares.zeros is None:
        record.note("budget", f"{shares.why_not}: all layers have the same share of zeros", **shares.facts)
        return found
    record.note("budget", "layers that answers depend on less have more of the zeros", **shares.facts)
    return found.with_zeros(shares.zeros)


def _layers(view: ModelView, found: Pruning) -> dict[str, dict[str, Any]]:
    """What became of each weight."""
    made = {}
    for w in found.plan.weights:
        zeros = int((view.read(w.point) == 0).sum())
        share = zeros / max(1, w.point.elements)
        made[w.point.name] = {
            "zeros": zeros, "elements": w.point.elements, "share": share, "algorithm": w.algorithm.name
        }  # fmt: skip
    return made


def _totals(layers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    zeros, elements = (sum(each[name] for each in layers.values()) for name in ("zeros", "elements"))
    return {"zeros": zeros, "elements": elements, "share": zeros / max(1, elements)}
