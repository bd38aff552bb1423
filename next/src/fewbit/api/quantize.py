# SPDX-License-Identifier: Apache-2.0
"""The verb `quantize`: inspect, plan, open data, quantize, measure, save, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from fewbit import registry
from fewbit.api.data import DataOptions, reading_options
from fewbit.api.options import checked
from fewbit.backends import find_backend
from fewbit.backends._base import Backend, Model
from fewbit.backends._headers import not_built
from fewbit.data.dataset import LEAST_TO_HOLD_OUT, Dataset
from fewbit.data.inputs import InputAdapter
from fewbit.data.opening import open_source
from fewbit.errors import plural
from fewbit.evaluation.quality import Comparison
from fewbit.evaluation.verdict import verdict
from fewbit.model_info import ModelInfo
from fewbit.output import Output, check_output, open_output
from fewbit.progress import Run, make_progress
from fewbit.quantization.plan import make_plan
from fewbit.quantization.weight_only import quantize_weights
from fewbit.record.schema import Record
from fewbit.record.screen import megabytes, ratio


class QuantizeData(DataOptions, total=False):
    """Data options, and how samples are fed."""

    batch_size: int


@checked("quantize")
def quantize(
    model: Any,
    data: Any = None,
    *,
    preset: str = "int8",
    ignore: Sequence[str] = (),
    target: str | None = None,
    threads: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Any = None,
    return_record: bool = False,
    **options: Unpack[QuantizeData],
) -> Any:
    """Store weights, or weights and activations, in fewer bits; a new model comes back, the one given is never changed.

    Args:
        model: a path, or an object of a framework.
        data: samples to measure with; anything `open_dataset` takes.
        preset: number format.
        ignore: layers to leave in float: name, glob, `re:REGEX` or `type:OP`.
        target: runtime that will run the result.
        threads: CPU threads for computing.
        output: file to write; the path is then returned.
        overwrite: replace an earlier result.
        progress: None (automatic), True, False, or an object.
        return_record: return `(result, Record)`.
        options: see `DataOptions`.
    """
    run = Run(make_progress(progress))
    try:
        backend = find_backend(model)
        if not backend.edits:
            raise not_built(backend.name, model)
        runtime = registry.get("targets", target or backend.target, param="target")
        chosen = runtime.resolve(preset)
        path = None if output is None else Path(output)
        inputs = [Path(item) for item in (model, data) if isinstance(item, str | Path)]
        if path is not None:
            check_output(path, overwrite=overwrite, inputs=inputs, is_file=True)
        info = backend.inspect(model)
        record = Record("quantize")
        record.preset = {"given": preset, "resolved": chosen.name, "target": runtime.name}
        _describe_model(run, record, info)
        name = chosen.name if preset == chosen.name else f"{preset} = {chosen.name}"
        run.line(f"  preset   {name}: {chosen.meaning}, for {runtime.title}")
        adapter, held_out = _open_data(run, record, info, data, options)

        run.begin([("load", 1), ("quantize", 2), ("measure", 5), ("write", 1), ("verify", 1)])
        with run.phase("load"):
            original = backend.load(model)
            plan = make_plan(original.graph(), chosen, ignore)
            result = original.fork()
        record.layers = [entry.row() for entry in plan.layers]
        with run.phase("quantize", len(plan.layers), "layer") as bar:
            quantize_weights(result, plan, bar)
        if adapter is not None and held_out is not None:
            batch_size = options.get("batch_size", 1)
            record.quality = _measure(run, original, result, adapter, held_out, batch_size, threads)
        if path is None:
            _finish(run, record)
            answer = result.for_user()
        else:
            with open_output(path, overwrite=overwrite, inputs=inputs, is_file=True) as folder:
                _write(run, backend, result, folder, record)
                _finish(run, record)
                (folder.work / folder.companion("record.json")).write_bytes(record.to_json())
            answer = path
    finally:
        run.close()
    return (answer, record) if return_record else answer


def _describe_model(run: Run, record: Record, info: ModelInfo) -> None:
    record.model = {"source": info.source, "kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    size = "" if info.size is None else f", {megabytes(info.size)}"
    run.line(f"  model    {info.kind}{size}; input {', '.join(map(str, info.inputs))}")


def _open_data(
    run: Run, record: Record, info: ModelInfo, data: Any, options: Mapping[str, Any]
) -> tuple[InputAdapter | None, Dataset | None]:
    """The held-out samples, and what makes them model inputs; the first sample is checked before anything heavy."""
    if data is None:
        return None, None
    dataset = Dataset.of(*open_source(data, **reading_options(options)))
    adapter = InputAdapter(info, options, report=dataset.report)
    adapter.first(dataset)
    seed = options.get("seed", 0)
    _, held_out = dataset.hold_out(options.get("samples", 300), seed)
    shown = "none held out" if held_out is None else f"{len(held_out)} held out"
    run.line(f"  data     {dataset.report.source}: {plural(len(dataset), 'sample')}; {shown}, seed {seed}")
    run.line(f"  inputs   {adapter.describe()}")
    record.data = dataset.record | {"held_out": 0 if held_out is None else len(held_out), "seed": seed}
    record.preprocessing = adapter.record()
    return adapter, held_out


def _measure(
    run: Run,
    original: Model,
    result: Model,
    adapter: InputAdapter,
    held_out: Dataset,
    batch_size: int,
    threads: int | None,
) -> dict[str, Any]:
    """Held-out samples through both models."""
    comparison = Comparison()
    before, after = original.session(threads=threads), result.session(threads=threads)
    with run.phase("measure", len(held_out), "sample") as bar:
        for batch in adapter.batches(held_out, batch_size):
            comparison.add(before.run(batch.inputs).outputs, after.run(batch.inputs).outputs)
            bar.advance(len(batch))
    before.close()
    after.close()
    return comparison.facts()


def _write(run: Run, backend: Backend, result: Model, folder: Output, record: Record) -> None:
    """Write the model, read it back, and let the runtime load it."""
    with run.phase("write"):
        file = result.save(folder.work / folder.path.name)
    with run.phase("verify") as bar:
        backend.load(file).session().close()
        bar.detail = "read back"
        record.verification = {"read_back": True, "files": [folder.path.name]}
    source = Path(record.model["source"])
    if source.is_file():
        record.size = {"original": source.stat().st_size, "result": file.stat().st_size}
    record.output = folder.path.name


def _finish(run: Run, record: Record) -> None:
    """The verdict and what goes with it."""
    record.verdict, sentence = verdict(record.quality)
    if record.data and record.verdict == "not-measured":
        count = plural(record.data["samples"], "sample")
        sentence = f"{count} are too few to hold some out; it takes {LEAST_TO_HOLD_OUT}"
    if record.verdict == "not-measured":
        command = f"fewbit quantize {record.model['source']} --data DATA"
        record.next = [{"command": command, "gives": "measures the result"}]
    if record.verdict in ("degraded", "broken"):
        command = f"fewbit quantize {record.model['source']} --ignore LAYER ..."
        record.next = [{"command": command, "gives": "leaves sensitive layers in float"}]
    if record.size:
        sentence = f"{ratio(record.size['original'], record.size['result'], 'smaller', 'larger')}, {sentence}"
    record.summary = sentence
    record.warnings = [warning.to_dict() for warning in run.warnings]
    record.phases = run.phases
