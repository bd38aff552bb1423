# SPDX-License-Identifier: Apache-2.0
"""A module with trained codes as an ONNX file with the same codes, which ONNX Runtime multiplies as integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fewbit.errors import FewbitError
from fewbit.sparsity.deploying.difference import CODES_TOLERANCE, largest_difference
from fewbit.sparsity.deploying.exporting import batches, export, in_runtime, listed, reason_of
from fewbit.sparsity.deploying.how_far import LADDER
from fewbit.sparsity.deploying.marking import dynamic_layers, marked, trained_layers, unfit_layers
from fewbit.sparsity.deploying.samples import Arrays, Sample

if TYPE_CHECKING:
    from fewbit.sparsity.deploying.codes_in_graph import CodedGraph


@dataclass
class Attempt:
    """What came of writing a module.

    Args:
        check: how far its answers in ONNX Runtime are from the module's; none if it was not written.
        how: it was written; or why not.
        facts: what runs in it, for the record.
        notes: what is not as in the module.
    """

    check: dict[str, float] | None
    how: str
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


def write_codes_onnx(model: nn.Module, path: Path, samples: Sequence[Sample], feeds: Sequence[Arrays]) -> Attempt:
    """Write a module with codes as ONNX, with a batch axis of any length if that works.

    Integers all through come first. If that fails or the answers differ too much, floats are multiplied wherever
    something would be rounded that was not in training; if that does not do either, everywhere.

    Args:
        model: with quantized layers; not changed.
        path: a new file.
        samples: by which it is traced and judged.
        feeds: inputs by name, for the ranges of what no trained quantizer reads.
    """
    unfit = unfit_layers(model)
    if unfit:
        return Attempt(None, "; ".join(f"{name}: {reason}" for name, reason in unfit[:5]))
    reason = ""
    for free in (True, False):
        try:
            how = export(marked(model), path, samples[0], free=free, traced=True)
        except Exception as error:  # whatever a model makes the exporter raise
            reason = _said(error)
        else:
            attempt = _climbed(model, path, samples, feeds, free=free)
            if attempt.check is not None:
                attempt.how = f"{how}, {batches(samples[0], free)}: {attempt.how}"
                return attempt
            reason = attempt.how
        path.unlink(missing_ok=True)
    return Attempt(None, reason)


def _climbed(
    model: nn.Module, path: Path, samples: Sequence[Sample], feeds: Sequence[Arrays], *, free: bool
) -> Attempt:
    """The first attempt that works; what kept the others from it is among its notes, or is why there is none."""
    reasons: dict[str, str] = {}
    for far in LADDER:
        try:
            attempt = _attempt(model, path, samples, feeds, free=free, far=far)
        except Exception as error:  # whatever a model makes the runtime raise
            reasons[far] = _said(error)
            continue
        if attempt.check is not None:
            attempt.notes += [("onnx-less-integer", f"{each}: {reason}") for each, reason in reasons.items()]
            return attempt
        reasons[far] = attempt.how
    alike = dict.fromkeys(reasons.values())
    return Attempt(None, "; ".join(alike if len(alike) == 1 else (f"{far}: {why}" for far, why in reasons.items())))


def _said(error: Exception) -> str:
    if not isinstance(error, FewbitError):
        return reason_of(error)
    return f"{error.where}: {error.what}" if error.where else error.what


def _attempt(
    model: nn.Module, path: Path, samples: Sequence[Sample], feeds: Sequence[Arrays], *, free: bool, far: str
) -> Attempt:
    """Put codes into the graph that was exported to a path, and write it there if its answers are near."""
    from fewbit.backends.graph.opening import open_graph
    from fewbit.backends.graph.saving import save
    from fewbit.sparsity.deploying.codes_in_graph import put_codes

    graph = open_graph(path)
    found = put_codes(graph, trained_layers(model), _like(samples, feeds), how=far)
    coded = path.with_suffix(".codes.onnx")
    try:
        save(graph, coded)
        check = largest_difference(in_runtime(coded, free=free), samples)
        if check["relative"] > CODES_TOLERANCE:
            return Attempt(None, f"in ONNX Runtime its answers differ by {check['relative']:.2%}")
        coded.replace(path)
    finally:
        coded.unlink(missing_ok=True)
    return Attempt(check, found.words(), vars(found), list(_notes(model, found)))


def _notes(model: nn.Module, found: CodedGraph) -> Iterator[tuple[str, str]]:
    if found.untrained:
        what = "is rounded to 8 bits between its range on the data, as it was not in training"
        yield "onnx-rounds-more", f"what {listed(found.untrained)} gives {what}: integer kernels give codes"
    for reason in dict.fromkeys(found.floats.values()):
        names = [name for name, why in found.floats.items() if why == reason]
        yield "onnx-in-floats", f"{listed(names)}: multiplied as floats; {reason}"
    dynamic = dynamic_layers(model)
    if dynamic:
        yield "onnx-rounds-less", f"what {listed(dynamic)} reads is not rounded: its scale would be that of each call"


def _like(samples: Sequence[Sample], feeds: Sequence[Arrays]) -> list[Arrays]:
    """The inputs of samples and all others, of those that have the shapes of the first."""
    shapes = {name: value.shape for name, value in samples[0].inputs.items()}
    found = [*(sample.inputs for sample in samples), *feeds]
    return [feed for feed in found if {name: value.shape for name, value in feed.items()} == shapes]
