# SPDX-License-Identifier: Apache-2.0
"""A module in a deployment folder as `model.onnx` too, where that can be: checked, timed, and as an archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from fewbit.sparsity.deploying.exporting import reason_of
from fewbit.sparsity.deploying.onnx_latency import onnx_latency
from fewbit.sparsity.deploying.samples import Arrays, Sample, items_of, named
from fewbit.sparsity.deploying.to_onnx import unfit, write_onnx
from fewbit.sparsity.deploying.written import ONNX, Written, pack
from fewbit.sparsity.job import Job
from fewbit.sparsity.latency import verdict

_FEEDS = 64
"""Items of the data that the ranges of an ONNX file's activations are taken from, where training left them open."""


def write_network(model: nn.Module, folder: Path, samples: Sequence[Sample], job: Job, written: Written) -> None:
    """Write a module as ONNX, with the codes it has; or say why not.

    Args:
        model: not changed.
        folder: of the deployment.
        samples: by which it is traced and judged.
        job: of the call.
        written: takes what came of it.
    """
    reason = unfit(model, getattr(job.use_case, "kind", "arrays"), samples)
    if reason is None:
        feeds = _feeds(model, job, samples) if written.quantized else ()
        attempt = write_onnx(model, folder / ONNX, samples, feeds)
        if attempt.check is not None:
            written.checks[ONNX] = attempt.check
            written.onnx = attempt.facts
            written.notes += [("onnx-written", attempt.how), *attempt.notes]
            if written.quantized:
                _time_onnx(folder / ONNX, samples[0], job, written)
            pack(folder, written)
            return
        reason = attempt.how
    written.notes.append(("onnx-not-written", reason))


def _feeds(model: nn.Module, job: Job, samples: Sequence[Sample]) -> list[Arrays]:
    """Inputs of the calibration data by name, as the samples have them."""
    names = list(samples[0].inputs)
    return [named(item, names) for item in items_of(model, job, _FEEDS)]


def _time_onnx(path: Path, sample: Sample, job: Job, written: Written) -> None:
    """How fast the file is, beside the dense model as ONNX, if that can be written."""
    try:
        found = onnx_latency(job.dense, path, sample)
    except Exception as error:  # whatever the dense model makes the exporter raise
        written.notes.append(("onnx-not-timed", f"the dense model cannot be written as ONNX: {reason_of(error)}"))
        return
    written.onnx["latency"] = found
    written.speed.append(f"{path.name}: {verdict(found)}")
