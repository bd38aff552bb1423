# SPDX-License-Identifier: Apache-2.0
"""The model itself in a deployment folder: a graph as `model.onnx`, a module in fewbit's format, or as Hugging Face's.

Weights with zeros take less room in fewbit's files and in the archive beside an ONNX file; ONNX Runtime and
transformers read dense weights, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.engine.companions import copy_companions
from fewbit.engine.delivering import load
from fewbit.engine.unknown_tensors import copy_unknown
from fewbit.errors import DataError
from fewbit.exporters._unknown_tensors import unknown_tensors
from fewbit.modules import manifest
from fewbit.modules.freezing import freeze
from fewbit.modules.huggingface import is_pretrained, quiet
from fewbit.modules.opening import open_model
from fewbit.modules.quantized import is_quantized
from fewbit.sparsity.deploying.difference import largest_difference, refuse_difference
from fewbit.sparsity.deploying.exporting import in_runtime
from fewbit.sparsity.deploying.network_onnx import write_network
from fewbit.sparsity.deploying.samples import Sample, answering, place_of
from fewbit.sparsity.deploying.to_program import write_program
from fewbit.sparsity.deploying.written import ONNX, PROGRAM, Written, pack
from fewbit.sparsity.job import Job

FROZEN = "PyTorch, freeze=True"


def write_graph(model: Any, folder: Path, samples: Sequence[Sample]) -> Written:
    """A graph as `model.onnx` and as an archive without zeros; both are read back."""
    import onnx_ir as ir

    from fewbit.backends.graph.saving import save

    found: Any = ir.from_proto(model)
    save(found, folder / ONNX)
    written = Written("onnx")
    exact = largest_difference(in_runtime(folder / ONNX, free=False), samples)
    refuse_difference(exact, f"{ONNX} in ONNX Runtime")
    written.checks[ONNX] = exact
    pack(folder, written)
    return written


def write_module(model: nn.Module, folder: Path, samples: Sequence[Sample], job: Job) -> Written:
    """A module in fewbit's format, without zeros, or as Hugging Face's where that is asked for; as ONNX too."""
    small = bool(job.options.get("compact", True))
    codes = any(map(is_quantized, model.modules()))
    written = Written("fewbit", quantized=codes)
    if is_pretrained(model) and not codes and not small:
        written = Written("huggingface")
        saved: Any = model
        with quiet(sys.modules["transformers"]):
            saved.save_pretrained(folder)
        copy_companions(model, folder)
        copy_unknown(folder, unknown_tensors(model), "huggingface", job.record)
    else:
        _export(model, folder, job, small)
    written.bfloat16 = any(sample.is_bfloat16 for sample in samples)
    loaded = _loaded(folder, model, job, written)
    if loaded is None:  # no code builds it
        written.checks[PROGRAM], how = write_program(model, folder / PROGRAM, samples)
        written.notes.append(("program-written", f"the model has other shapes than its code builds: {PROGRAM}, {how}"))
    else:
        again = answering(loaded)
        exact = largest_difference(lambda sample: again(sample.item), samples)
        refuse_difference(exact, "what was written, read back,")
        written.checks["PyTorch"] = exact
        if codes:  # what the README runs: kernels may compute less precisely, and how much is told
            freeze(loaded)
            written.checks[FROZEN] = largest_difference(lambda sample: again(sample.item), samples)
    write_network(model, folder, samples, job, written)
    return written


def _export(model: nn.Module, folder: Path, job: Job, small: bool) -> None:
    exporter = registry.get("exporters", "safetensors")
    factory = job.factory if job.factory is not None and registry.is_reference(job.factory) else None
    content = exporter.write(model, folder, compact=small, factory=factory)
    copy_companions(model, folder)
    content |= copy_unknown(folder, unknown_tensors(model), "safetensors", job.record)
    manifest.write(folder, "safetensors", content)
    exporter.check(model, folder, manifest.read(folder))


def _loaded(folder: Path, model: nn.Module, job: Job, written: Written) -> nn.Module | None:
    """The model from its files, built like the dense one where it is no Hugging Face model; none if that has other
    shapes."""
    if written.kind == "huggingface":
        return open_model(folder).to(place_of(model))
    written.code = not is_pretrained(model)
    try:
        loaded: nn.Module = load(folder, job.dense if written.code else None)
    except DataError:
        if not written.code:
            raise
        return None
    if any(getattr(each, "kernel", None) is not None for each in model.modules()):
        freeze(loaded)
    return loaded.to(place_of(model))
