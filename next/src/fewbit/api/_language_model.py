# SPDX-License-Identifier: Apache-2.0
"""`quantize` for language models in Hugging Face folders: block by block with data, tensor by tensor without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.algorithms._base import LayerProblem, WeightAlgorithm
from fewbit.backends._base import BlockBackend, Inputs
from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, NamedTensor
from fewbit.checkpoints._verification import Fingerprint, verify, write_noting
from fewbit.errors import UsageError, plural, require
from fewbit.evaluation.tokens import TokenComparison
from fewbit.numerics.qtensor import QTensor
from fewbit.output import Output
from fewbit.progress import Run
from fewbit.quantization.blockwise import quantize_blocks
from fewbit.quantization.journal import Journal
from fewbit.quantization.plan import Plan, make_plan
from fewbit.record.schema import Record

JOURNAL = "journal"
"""The folder of finished blocks in the working folder."""
_FEW_TOKENS, _FEW_SEQUENCES = 16_384, 8
"""Below these the user is warned: calibration is thin, or the verdict is."""
_BATCH = 8
"""Sequences per forward pass: a GPU sees large products, a CPU is half as fast with one."""


def runs_in_blocks(backend: Any, source: Any) -> bool:
    """Whether a source is a language model that its backend runs block by block."""
    return hasattr(backend, "block_stream") and backend.is_language_model(source)


def load_result(folder: Path) -> Any:
    """The written model as transformers loads it."""
    transformers = require("transformers", extra="hf", purpose="Hugging Face models")
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def quantize_language_model(
    run: Run,
    record: Record,
    backend: BlockBackend,
    source: Path,
    checkpoints: Sequence[CheckpointFormat],
    preset: Any,
    folder: Output,
    *,
    samples: Any,
    options: Mapping[str, Any],
) -> None:
    """Quantize, measure, write and read back; everything worth knowing goes into the record.

    Args:
        run: progress and warnings.
        record: of the run.
        backend: that reads the model block by block.
        source: its folder.
        checkpoints: the formats to write; several go into folders of their names.
        preset: resolved for the target.
        folder: to write into.
        samples: `calibration`, `held_out` and `adapter`, or `None`.
        options: `ignore`, `group_size`, `algorithm`, `device`, `batch_size`, `seed` of the verb.
    """
    weights = backend.weight_files(source)
    plan = make_plan(
        backend.linear_layers(source), preset, options["ignore"], group_size=options.get("group_size"),
        formats=checkpoints,
    )  # fmt: skip
    record.layers = [entry.row() for entry in plan.layers]
    job = CheckpointJob(source, {entry.layer.name: entry.format for entry in plan.layers})
    if preset.is_gguf or preset.name in ("fp16", "bf16"):
        keep = frozenset(entry.layer.weight for entry in plan.layers if not entry.quantized)
        job = CheckpointJob(source, {}, preset=preset.name, keep=keep)
    for checkpoint in checkpoints:
        checkpoint.check(job)
    if job.preset:
        if samples is not None:
            run.warn(
                "types of GGUF are chosen without data, and their result is not measured yet", code="gguf-data",
                hint="run it in llama.cpp; or {preset=w4a16} with {format=gguf}, which uses the data",
            )  # fmt: skip
        run.begin([("write", 60), ("verify", 5)])
        _write(run, record, weights, {}, {}, checkpoints, job, folder.work)
        stored = checkpoints[0].open(folder.work)
        for row in record.layers:  # the types by layer that the writer chose
            if stored is None:
                break
            row["weight"] = stored.headers[f"{row['name']}.weight"]["type"]
            row.pop("group_size", None)
        return
    has_data = samples is not None and bool(samples.calibration)
    algorithm = _algorithm(options.get("algorithm", "auto"), has_data=has_data)
    journal = Journal(folder.work / JOURNAL, _job(record, plan, algorithm, options))
    run.begin([("load", 1), ("quantize", 60), ("measure", 5), ("write", 5), ("verify", 5)])
    if not has_data:
        _quantize_tensors(run, weights, plan, algorithm, journal)
    else:
        _quantize_with_data(run, record, backend, source, plan, algorithm, journal, samples, options)
    layers = {entry.layer.weight: entry.layer.name for entry in plan.layers if entry.format is not None}
    _write(run, record, weights, layers, journal.tensors(), checkpoints, job, folder.work)
    journal.remove()


def _algorithm(name: str, *, has_data: bool) -> WeightAlgorithm:
    """The one that is asked for; by default GPTQ with data and a scale search without."""
    if name == "auto":
        name = "gptq" if has_data else "scale_search"
    algorithm: WeightAlgorithm = registry.get("algorithms", name, param="algorithm")
    if algorithm.stage != "weight":
        known = [other for other, member in registry.members("algorithms").items() if member.stage == "weight"]
        raise UsageError(
            f"{name} does not round the weights of language models", code="algorithm-stage", param="algorithm",
            expected=", ".join(known), hint="{algorithm=gptq}",
        )  # fmt: skip
    if algorithm.statistics and not has_data:
        raise UsageError(
            f"{name} needs calibration data", code="data-required", param="algorithm",
            expected="texts like those the model will see", hint="{data=DATA}, or {algorithm=scale_search}",
        )  # fmt: skip
    return algorithm


def _job(record: Record, plan: Plan, algorithm: WeightAlgorithm, options: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the bytes of the result."""
    return {
        "model": record.model, "preset": plan.preset.name, "algorithm": algorithm.name,
        "layers": [[entry.layer.name, entry.quantized] for entry in plan.layers], "data": record.data,
        "batch_size": options.get("batch_size") or _BATCH, "seed": options.get("seed", 0),
        "max_length": options.get("max_length"),
    }  # fmt: skip


def _quantize_with_data(
    run: Run,
    record: Record,
    backend: BlockBackend,
    source: Path,
    plan: Plan,
    algorithm: WeightAlgorithm,
    journal: Journal,
    samples: Any,
    options: Mapping[str, Any],
) -> None:
    """Block by block; held-out sequences travel along and are compared at the end."""
    size = options.get("batch_size") or _BATCH
    with run.phase("load") as bar:
        batches = [batch.inputs for batch in samples.adapter.batches(samples.calibration, size)]
        judged = samples.adapter.batches(samples.held_out, size) if samples.held_out else ()
        held_out = [batch.inputs for batch in judged]
        formats = {entry.layer.name: entry.format for entry in plan.layers if entry.format is not None}
        stream = backend.block_stream(source, batches, held_out, device=options.get("device", "auto"), formats=formats)
        bar.detail = plural(sum(len(batch["input_ids"]) for batch in batches), "sequence")
    _warn_of_little_data(run, batches, held_out)
    try:
        grids = {name: kind.weight for name, kind in formats.items()}
        with run.phase("quantize", len(stream), "block") as bar:
            facts = quantize_blocks(stream, grids, algorithm, journal, bar)
            bar.detail = f"{plural(len(stream), 'block')}, {plural(len(grids), 'layer')}"
        for row in record.layers:
            row |= facts.get(row["name"], {})
        if held_out:
            comparison = TokenComparison()
            with run.phase("measure", len(held_out), "batch") as bar:
                for original, result, batch in bar.track(stream.outputs()):
                    comparison.add(original, result, batch["input_ids"], batch.get("attention_mask"))
            record.quality = comparison.facts()
    finally:
        stream.close()


def _warn_of_little_data(run: Run, batches: Sequence[Inputs], held_out: Sequence[Inputs]) -> None:
    tokens = sum(batch["input_ids"].size for batch in batches)
    if tokens < _FEW_TOKENS:
        run.warn(
            f"{plural(tokens, 'calibration token')} are few for a language model", code="few-tokens",
            hint="more texts, {samples=300} and {max_length=512}",
        )  # fmt: skip
    sequences = sum(len(batch["input_ids"]) for batch in held_out)
    if 0 < sequences < _FEW_SEQUENCES:
        run.warn(
            f"{plural(sequences, 'held-out sequence')} say little: the interval of the perplexity is wide",
            code="few-held-out", hint="more texts, a smaller {max_length}, or {validation}",
        )  # fmt: skip


def _quantize_tensors(run: Run, weights: Any, plan: Plan, algorithm: WeightAlgorithm, journal: Journal) -> None:
    """Without data each weight stands alone; the model is not built."""
    finished = journal.blocks()
    planned = [entry for entry in plan.layers if entry.format is not None]
    with run.phase("quantize", len(planned), "layer") as bar:
        for index, entry in enumerate(bar.track(planned)):
            if index >= finished:
                assert entry.format is not None
                weight = weights.read(entry.layer.weight).float()
                problem = LayerProblem(entry.layer.name, weight, entry.format.weight)
                journal.write(index, {entry.layer.name: algorithm.quantize(problem)}, {})


def _write(
    run: Run,
    record: Record,
    weights: Any,
    layers: Mapping[str, str],
    quantized: Mapping[str, QTensor],
    checkpoints: Sequence[CheckpointFormat],
    job: CheckpointJob,
    work: Path,
) -> None:
    """Write each checkpoint and compare what its reader decodes with what was meant, tensor by tensor."""
    folders = {c.name: work / c.name.replace("_", "-") if len(checkpoints) > 1 else work for c in checkpoints}
    files: list[str] = []
    written: dict[str, dict[str, Fingerprint]] = {}
    with run.phase("write", len(checkpoints), "format") as bar:
        for checkpoint in bar.track(checkpoints):
            folder = folders[checkpoint.name]
            folder.mkdir(exist_ok=True)
            tensors = _tensors(weights, layers, quantized)
            names, written[checkpoint.name] = write_noting(checkpoint, folder, tensors, job)
            files += [str((folder / name).relative_to(work)) for name in names]
    with run.phase("verify", len(checkpoints), "format") as bar:
        for checkpoint in bar.track(checkpoints):
            checked = verify(checkpoint, folders[checkpoint.name], written[checkpoint.name])
        bar.detail = f"read back: {checked} of {checked} tensors as they were meant"
    record.verification = {"read_back": True, "tensors": checked, "files": files}
    omitted = sorted(set(weights) - set(written[checkpoints[-1].name]))
    if omitted:
        record.verification["omitted"] = omitted  # buffers that the runtime computes
    record.size = {
        "original": sum(file.stat().st_size for file in _weight_files(job.source)),
        "result": sum(file.stat().st_size for file in folders[checkpoints[0].name].iterdir() if _holds_weights(file)),
    }


def _weight_files(source: Path) -> list[Path]:
    return [source] if source.is_file() else list(source.glob("*.safetensors"))


def _holds_weights(file: Path) -> bool:
    return file.suffix in (".safetensors", ".gguf")


def _tensors(weights: Any, layers: Mapping[str, str], quantized: Mapping[str, QTensor]) -> Iterator[NamedTensor]:
    """Every tensor of the source once: quantized, or as it was."""
    for name in weights:
        if name in layers:
            yield NamedTensor(name, quantized[layers[name]], layers[name])
        else:
            yield NamedTensor(name, weights.read(name))
