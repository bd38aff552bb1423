# SPDX-License-Identifier: Apache-2.0
"""The verb `quantize`: inspect, plan, open data, quantize, measure, save, read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Unpack, cast

import orjson
import yaml

from fewbit import registry
from fewbit.api._language_model import JOURNAL, load_result, quantize_language_model, runs_in_blocks
from fewbit.api._model_card import write_model_card
from fewbit.api.data import DataOptions, reading_options
from fewbit.api.options import checked, refuse_later
from fewbit.backends import find_backend
from fewbit.backends._base import Backend, BlockBackend, Model
from fewbit.backends._headers import not_built
from fewbit.backends._hub import local_model
from fewbit.config.presets import GGUF_PRESETS, Preset, canonical_name
from fewbit.data.dataset import FEW_CLASSES, LEAST_TO_HOLD_OUT, MOST_HELD_OUT, Dataset
from fewbit.data.inputs import InputAdapter
from fewbit.data.inputs.advisor import LEAST_SAMPLES
from fewbit.data.inputs.modules import is_module
from fewbit.data.opening import open_source
from fewbit.data.types import Severity
from fewbit.errors import UsageError, plural
from fewbit.evaluation.comparison import Comparison
from fewbit.evaluation.verdict import verdict
from fewbit.model_info import ModelInfo
from fewbit.output import Output, check_output, open_output
from fewbit.progress import Run, make_progress
from fewbit.quantization.plan import make_plan
from fewbit.quantization.weight_only import quantize_weights
from fewbit.record.schema import Record, plain
from fewbit.record.screen import megabytes, ratio
from fewbit.targets._base import Target


class QuantizeData(DataOptions, total=False):
    """Data options, and how samples are fed."""

    batch_size: int


@checked("quantize")
def quantize(
    model: Any,
    data: Any = None,
    *,
    preset: str = "int8",
    group_size: int | None = None,
    algorithm: str = "auto",
    ignore: Sequence[str] = (),
    target: str | None = None,
    validation: Any = None,
    config: str | Path | Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    output: str | Path | None = None,
    format: str | Sequence[str] | None = None,
    overwrite: bool = False,
    resume: bool = True,
    progress: Any = None,
    return_record: bool = False,
    **options: Unpack[QuantizeData],
) -> Any:
    """Store weights, or weights and activations, in fewer bits; a new model comes back, the one given is never changed.

    Args:
        model: a path, or an object of a framework.
        data: samples to calibrate and measure with; anything `open_dataset` takes.
        preset: number format.
        group_size: weights that share a scale; -1 for a complete channel.
        algorithm: how weights are rounded; by default what suits model and data.
        ignore: layers to leave in float: name, glob, `re:REGEX` or `type:OP`.
        target: runtime that will run the result.
        validation: separate data to measure with; a held-out part of `data` by default.
        config: settings by parameter name, from a file or a mapping; arguments of this call win.
        device: where to compute.
        threads: CPU threads for computing.
        output: file or folder to write; the path is then returned.
        format: of the files, one or several; follows the target by default.
        overwrite: replace an earlier result.
        resume: continue an interrupted run with the same output.
        progress: None (automatic), True, False, or an object.
        return_record: return `(result, Record)`.
        options: see `DataOptions`.
    """
    run = Run(make_progress(progress))
    formats = [format] if isinstance(format, str) else list(format or ())
    given = {
        "group_size": group_size,
        "algorithm": None if algorithm == "auto" else algorithm,
        "format": formats or None,
    }
    try:
        if is_module(model):
            from fewbit.api._modules import quantize_pytorch

            more: dict[str, Any] = {**options, **given, "ignore": ignore, "target": target}
            more |= {"device": device, "output": output}
            module, record = quantize_pytorch(run, model, data, preset, config, validation, more)
            return (module, record) if return_record else module
        model = local_model(model)
        backend = find_backend(model)
        in_blocks = runs_in_blocks(backend, model)
        if not in_blocks:
            _refuse_for_graphs(backend, model, given, device)
        if in_blocks and target is None and not formats and canonical_name(preset) in GGUF_PRESETS:
            formats = ["gguf"]  # nothing else holds such types
        runtime = _target(backend, target, formats, in_blocks=in_blocks)
        chosen = runtime.resolve(preset)
        path = None if output is None else Path(output)
        inputs = [Path(item) for item in (model, data, validation) if isinstance(item, str | Path)]
        if path is not None:
            check_output(path, overwrite=overwrite, inputs=inputs, is_file=not in_blocks)
        info = backend.inspect(model)
        record = Record("quantize")
        record.preset = {"given": preset, "resolved": chosen.name, "target": runtime.name}
        settings = {"preset": chosen.name, "ignore": list(ignore), "target": runtime.name, **given}
        record.settings = plain(
            {name: value for name, value in settings.items() if value is not None} | _plain(options)
        )
        _describe_model(run, record, info)
        name = chosen.name if preset == chosen.name else f"{preset} = {chosen.name}"
        run.line(f"  preset   {name}: {chosen.meaning}, for {runtime.title}")
        calibrates = chosen.needs_data or in_blocks
        samples = _open_data(run, record, info, data, validation, options, calibrates=calibrates)
        if in_blocks:
            checkpoints = [registry.get("checkpoints", name, param="format") for name in formats or [runtime.format]]
            details = {**options, "ignore": ignore, "group_size": group_size, "algorithm": algorithm, "device": device}
            with _open_folder(run, path, overwrite, inputs, resume) as folder:
                quantize_language_model(
                    run, record, cast(BlockBackend, backend), Path(model), checkpoints, chosen, folder,
                    samples=samples, options=details,
                )  # fmt: skip
                record.output = folder.path.name
                _finish(run, record, samples)
                _write_sidecar_files(folder, record)
                write_model_card(folder, record, [checkpoint.name for checkpoint in checkpoints])
                answer = load_result(folder.work) if path is None else path
        else:
            result, original = _quantize_graph(run, record, backend, model, chosen, ignore)
            if samples is not None and samples.held_out:
                record.quality = _measure(run, original, result, samples, options.get("batch_size", 1), threads)
            if path is None:
                _finish(run, record, samples)
                answer = result.for_user()
            else:
                with open_output(path, overwrite=overwrite, inputs=inputs, is_file=True) as folder:
                    if folder.clear() and resume:
                        run.line("  resume   an interrupted run left nothing that can be used; it starts again")
                    _write(run, backend, result, folder, record)
                    _finish(run, record, samples)
                    _write_sidecar_files(folder, record)
                answer = path
    finally:
        run.close()
    return (answer, record) if return_record else answer


def _refuse_for_graphs(backend: Backend, model: Any, given: Mapping[str, Any], device: str) -> None:
    """What only language models have today."""
    if not backend.edits:
        raise not_built(backend.name, model)
    for name, value in given.items():
        if value is not None:
            raise refuse_later(name, value, "quantize", f"{backend.name} models have one way so far")
    if device not in ("auto", "cpu"):
        raise refuse_later("device", device, "quantize", f"{backend.name} models run on the CPU")


def _target(backend: Backend, target: str | None, formats: Sequence[str], *, in_blocks: bool) -> Target:
    """The runtime that is asked for, that a file format is for, or that the model is for."""
    if target is None and formats:
        target = registry.get("checkpoints", formats[0], param="format").target
    runtime: Target = registry.get("targets", target or ("vllm" if in_blocks else backend.target), param="target")
    if in_blocks != bool(runtime.format):
        kind, fitting = ("Hugging Face folders", "vllm") if in_blocks else (f"{backend.name} models", backend.target)
        raise UsageError(
            f"{runtime.title} does not run {kind}", code="target-model", param="target", expected=fitting,
            hint=f"{{target={fitting}}}",
        )  # fmt: skip
    return runtime


@contextmanager
def _open_folder(
    run: Run, path: Path | None, overwrite: bool, inputs: Sequence[Path], resume: bool
) -> Iterator[Output]:
    """The folder a language model is written to; a temporary one if the caller wants the model itself."""
    with ExitStack() as stack:
        if path is None:
            path = Path(stack.enter_context(TemporaryDirectory())) / "result"
        folder = stack.enter_context(open_output(path, overwrite=overwrite, inputs=inputs, is_file=False))
        if not resume:
            folder.clear()
        elif (folder.work / JOURNAL).exists():
            run.line("  resume   continues an interrupted run")
        else:
            folder.clear()
        yield folder


def _quantize_graph(
    run: Run, record: Record, backend: Backend, model: Any, preset: Preset, ignore: Sequence[str]
) -> tuple[Model, Model]:
    """The quantized model and the original."""
    run.begin([("load", 1), ("quantize", 2), ("measure", 5), ("write", 1), ("verify", 1)])
    with run.phase("load"):
        original = backend.load(model)
        plan = make_plan(original.graph().layers, preset, ignore)
        result = original.fork()
    record.layers = [entry.row() for entry in plan.layers]
    with run.phase("quantize", len(plan.layers), "layer") as bar:
        quantize_weights(result, plan, bar)
    return result, original


class Samples(NamedTuple):
    """What is calibrated and measured with, and what makes it model inputs."""

    calibration: Dataset | None
    held_out: Dataset
    adapter: InputAdapter


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a file can hold them; functions and objects are left out."""
    kinds = (str, int, float, tuple, list, dict)
    return {name: value for name, value in options.items() if isinstance(value, kinds)}


def _describe_model(run: Run, record: Record, info: ModelInfo) -> None:
    record.model = {"source": info.source, "kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    size = "" if info.size is None else f", {megabytes(info.size)}"
    run.line(f"  model    {info.kind}{size}; input {', '.join(map(str, info.inputs))}")


def _open_data(
    run: Run,
    record: Record,
    info: ModelInfo,
    data: Any,
    validation: Any,
    options: Mapping[str, Any],
    *,
    calibrates: bool,
) -> Samples | None:
    """The samples to measure with; the first of each dataset is checked before anything heavy."""
    if data is None and validation is None:
        return None
    seed = options.get("seed", 0)
    parts = []
    calibration = None
    if data is not None:
        dataset, adapter = _open(data, info, options)
        calibration, held_out = dataset.hold_out(options.get("samples", 300), seed)
        parts.append(f"{dataset.report.source}: {plural(len(dataset), dataset.report.unit)}")
        parts += [f"{len(calibration)} to calibrate"] if calibrates else []
        parts += [f"{len(held_out) or 'none'} held out"] if validation is None else []
        _warn(run, dataset, len(calibration), calibrates)
        record.data, record.preprocessing = dataset.record, adapter.record()
    if validation is not None:
        separate, adapter = _open(validation, info, options)
        held_out = separate.subset(MOST_HELD_OUT, seed)
        unit = plural(len(separate), separate.report.unit)
        parts.append(f"{separate.report.source}: {len(held_out):,} of {unit} to measure")
        record.data = (record.data or separate.record) | {"validation": separate.record}
        record.preprocessing = record.preprocessing or adapter.record()
    run.line(f"  data     {'; '.join(parts)}, seed {seed}")
    run.line(f"  inputs   {adapter.describe()}")
    record.data |= {"held_out": len(held_out), "seed": seed}
    return Samples(calibration, held_out, adapter)


def _warn(run: Run, dataset: Dataset, samples: int, calibrates: bool) -> None:
    """What is doubtful about the data: each warning of the reader once, and few samples to calibrate with."""
    report = dataset.report
    for code, kind in report.types.items():
        if kind.severity is Severity.WARNING and (calibrates or kind is not FEW_CLASSES):
            first = next(issue for issue in report.issues if issue.code == code)
            more = f", and {report.counts[code] - 1:,} more" if report.counts[code] > 1 else ""
            run.warn(f"{kind.meaning}: {first}{more}", code=code, hint=kind.hint)
    if calibrates and samples < LEAST_SAMPLES:
        run.warn(
            f"{plural(samples, 'sample')} are few to calibrate with: ranges of activations are missed",
            code="calibration-few-samples", hint="add samples, or raise {samples}; 300 are the default",
        )  # fmt: skip


def _open(data: Any, info: ModelInfo, options: Mapping[str, Any]) -> tuple[Dataset, InputAdapter]:
    dataset = Dataset.of(*open_source(data, **reading_options(options)))
    adapter = InputAdapter(info, options, report=dataset.report)
    adapter.first(dataset)
    return dataset, adapter


def _measure(
    run: Run, original: Model, result: Model, samples: Samples, batch_size: int, threads: int | None
) -> dict[str, Any]:
    """Held-out samples through both models."""
    comparison = Comparison()
    before, after = original.session(threads=threads), result.session(threads=threads)
    with run.phase("measure", len(samples.held_out), "sample") as bar:
        for batch in samples.adapter.batches(samples.held_out, batch_size):
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


def _write_sidecar_files(folder: Output, record: Record) -> None:
    """The record, the settings that repeat the run, and the preprocessing that later commands read."""
    (folder.work / folder.companion("record.json")).write_bytes(record.to_json())
    settings = yaml.safe_dump(record.settings, sort_keys=False, allow_unicode=True)
    (folder.work / folder.companion("config.yaml")).write_text(settings, encoding="utf-8")
    if record.preprocessing:
        content = orjson.dumps(plain(record.preprocessing), option=orjson.OPT_INDENT_2)
        (folder.work / folder.companion("preprocessing.json")).write_bytes(content)


def _finish(run: Run, record: Record, samples: Samples | None) -> None:
    """The verdict and what goes with it; samples that were left out while they were read are named."""
    parts = [] if samples is None else [part for part in (samples.calibration, samples.held_out) if part is not None]
    named = [location for part in parts for location in part.record["dropped"]]
    named += [str(location) for location in samples.adapter.dropped] if samples is not None else []
    if locations := list(dict.fromkeys(named)):
        record.data["dropped"] = locations
        run.warn(
            f"{plural(len(locations), 'damaged sample')} left out: {', '.join(locations[:3])}"
            f"{' …' if len(locations) > 3 else ''}", code="samples-dropped",
            hint="`fewbit check DATA` lists every problem",
        )  # fmt: skip
    record.verdict, sentence = verdict(record.quality)
    if record.data and record.verdict == "not-measured":
        count = plural(record.data["samples"], "sample")
        sentence = f"{count} are too few to hold some out; it takes {LEAST_TO_HOLD_OUT}"
    command = f"fewbit quantize {record.model['source']} --preset {record.preset['resolved']}"
    if record.verdict == "not-measured":
        record.next = [{"command": f"{command} --data DATA", "gives": "measures the result"}]
    if record.verdict in ("degraded", "broken"):
        record.next = [{"command": f"{command} --ignore LAYER ...", "gives": "leaves sensitive layers in float"}]
    if record.size:
        sentence = f"{ratio(record.size['original'], record.size['result'], 'smaller', 'larger')}, {sentence}"
    record.summary = sentence
    record.warnings = [warning.to_dict() for warning in run.warnings]
    record.phases = run.phases
