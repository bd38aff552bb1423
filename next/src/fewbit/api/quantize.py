# SPDX-License-Identifier: Apache-2.0
"""The verb `quantize`: inspect, plan, open data, quantize, save, read back, measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.backends import find_backend
from fewbit.backends._base import Backend, Model
from fewbit.config.presets import Preset, resolve_preset
from fewbit.data.dataset import LEAST_TO_HOLD_OUT, Dataset
from fewbit.data.inputs import InputAdapter
from fewbit.data.opening import open_source
from fewbit.errors import plural
from fewbit.evaluation.quality import Comparison
from fewbit.evaluation.verdict import verdict
from fewbit.model_info import ModelInfo
from fewbit.output import check_output, open_output
from fewbit.progress import Run, make_progress
from fewbit.quantization.plan import make_plan
from fewbit.quantization.weight_only import quantize_weights
from fewbit.record.schema import Record
from fewbit.record.screen import megabytes, ratio


def quantize(
    model: Any,
    data: Any = None,
    *,
    preset: str = "int8",
    ignore: Sequence[str] = (),
    target: str | None = None,
    samples: int = 300,
    seed: int = 0,
    batch_size: int = 1,
    data_format: str | None = None,
    threads: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Any = None,
    return_record: bool = False,
) -> Any:
    """Store weights, or weights and activations, in fewer bits; a new model comes back, the one given is never changed.

    Args:
        model: a path, or an object of a framework.
        data: samples to measure with; anything `open_dataset` takes.
        preset: number format.
        ignore: layers to leave in float: name, glob, `re:REGEX` or `type:OP`.
        target: runtime that will run the result.
        samples: how many to draw, spread over the whole dataset.
        seed: of the draw.
        batch_size: samples per forward pass.
        data_format: of the dataset; detected by default.
        threads: CPU threads for computing.
        output: file to write; the path is then returned.
        overwrite: replace an earlier result.
        progress: None (automatic), True, False, or an object.
        return_record: return `(result, Record)`.
    """
    run = Run(make_progress(progress))
    try:
        result, record = _run(
            run, model, data, preset=preset, ignore=ignore, target=target, samples=samples, seed=seed,
            batch_size=batch_size, data_format=data_format, threads=threads, output=output, overwrite=overwrite,
        )  # fmt: skip
    finally:
        run.close()
    return (result, record) if return_record else result


def _run(
    run: Run,
    source: Any,
    data: Any,
    *,
    preset: str,
    ignore: Sequence[str],
    target: str | None,
    samples: int,
    seed: int,
    batch_size: int,
    data_format: str | None,
    threads: int | None,
    output: str | Path | None,
    overwrite: bool,
) -> tuple[Any, Record]:
    backend = find_backend(source)
    runtime = registry.get("targets", target or backend.target, param="target")
    chosen = resolve_preset(preset, runtime)
    path = None if output is None else Path(output)
    inputs = [Path(item) for item in (source, data) if isinstance(item, str | Path)]
    if path is not None:
        check_output(path, overwrite=overwrite, inputs=inputs, is_file=True)
    info = backend.inspect(source)
    dataset = None if data is None else Dataset.of(*open_source(data, data_format=data_format))
    held_out = None if dataset is None else dataset.hold_out(samples, seed)[1]
    _print_start(run, info, chosen, runtime.title, preset, dataset, held_out, seed)
    if dataset is not None:  # before the expensive part
        InputAdapter(info)([dataset[0]], [dataset.location(0)])

    run.begin([("load", 1), ("quantize", 2), ("measure", 5), ("write", 1), ("verify", 1)])
    with run.phase("load"):
        original = backend.load(source)
        plan = make_plan(original.graph(), chosen, ignore)
        result = original.fork()
    with run.phase("quantize", len(plan.layers), "layer") as bar:
        quantize_weights(result, plan, bar)

    record = Record("quantize", layers=[entry.row() for entry in plan.layers])
    record.model = {"source": info.source, "kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    record.preset = {"given": preset, "resolved": chosen.name, "target": runtime.name}
    record.data = {} if dataset is None else dataset.record | {"held_out": 0 if held_out is None else len(held_out), "seed": seed}
    if held_out is not None:
        record.quality = _measure(run, original, result, info, held_out, batch_size, threads)
    if path is not None:
        _write(run, backend, result, path, record, inputs, overwrite)
    _judge(record, dataset)
    record.warnings = [warning.to_dict() for warning in run.warnings]
    record.phases = run.phases
    return (path if path is not None else result.for_user()), record


def _print_start(
    run: Run, info: ModelInfo, preset: Preset, runtime: str, given: str, dataset: Any, held_out: Any, seed: int
) -> None:
    size = "" if info.size is None else f", {megabytes(info.size)}"
    run.line(f"  model    {info.kind}{size}; input {', '.join(map(str, info.inputs))}")
    name = preset.name if given == preset.name else f"{given} = {preset.name}"
    run.line(f"  preset   {name}: {preset.meaning}, for {runtime}")
    if dataset is None:
        return
    held = f"{len(held_out)} held out" if held_out is not None else "none held out"
    run.line(f"  data     {dataset.report.source}: {plural(len(dataset), 'sample')}; {held}, seed {seed}")


def _measure(
    run: Run, original: Model, result: Model, info: ModelInfo, held_out: Dataset, batch_size: int, threads: int | None
) -> dict[str, Any]:
    """Held-out samples through both models."""
    comparison = Comparison()
    before, after = original.session(threads=threads), result.session(threads=threads)
    adapter = InputAdapter(info)
    with run.phase("measure", len(held_out), "sample") as bar:
        for start in range(0, len(held_out), batch_size):
            indices = range(start, min(start + batch_size, len(held_out)))
            batch = adapter([held_out[i] for i in indices], [held_out.location(i) for i in indices])
            comparison.add(before.run(batch).outputs, after.run(batch).outputs)
            bar.advance(len(indices))
    before.close()
    after.close()
    return comparison.facts()


def _write(
    run: Run, backend: Backend, result: Model, path: Path, record: Record, inputs: Sequence[Path], overwrite: bool
) -> None:
    """Write the model atomically, read it back, and compare every weight."""
    with open_output(path, overwrite=overwrite, inputs=inputs, is_file=True) as output:
        with run.phase("write"):
            file = result.save(output.work / path.name)
        with run.phase("verify") as bar:
            names = {layer["name"] for layer in record.layers}
            again = {layer.name for layer in backend.load(file).graph().layers} - names
            bar.detail = "read back"
            record.verification = {"read_back": True, "unexpected_layers": sorted(again), "files": [path.name]}
            backend.load(file).session().close()
        if backend_size := record.model.get("source"):
            source = Path(backend_size)
            if source.exists():
                record.size = {"original": source.stat().st_size, "result": file.stat().st_size}
        record.output = path.name
        (output.work / output.companion("record.json")).write_bytes(record.to_json())


def _judge(record: Record, dataset: Dataset | None) -> None:
    record.verdict, sentence = verdict(record.quality)
    if dataset is not None and record.verdict == "not-measured":
        sentence = f"{plural(len(dataset), 'sample')} are too few to hold some out; it takes {LEAST_TO_HOLD_OUT}"
    if record.verdict == "not-measured":
        record.next = [{"command": f"fewbit quantize {record.model['source']} --data DATA", "gives": "measures the result"}]
    if record.size:
        sentence = f"{ratio(record.size['original'], record.size['result'], 'smaller', 'larger')}, {sentence}"
    record.summary = sentence
