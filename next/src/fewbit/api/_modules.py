# SPDX-License-Identifier: Apache-2.0
"""Quantizing a PyTorch module, for `ModelQuantizer`, `quantize` and `compress_weights`: the same steps, one record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.api.data import DataOptions, reading_options
from fewbit.api.options import refuse_later
from fewbit.backends import find_backend
from fewbit.config.config import Config, QuantizationConfig
from fewbit.config.preset_config import NARROW, preset_config
from fewbit.config.presets import Preset
from fewbit.data.dataset import LEAST_TO_HOLD_OUT, MOST_HELD_OUT, Dataset
from fewbit.data.inputs import InputAdapter
from fewbit.data.inputs.advisor import LEAST_SAMPLES
from fewbit.data.opening import open_source
from fewbit.data.types import Severity, spread
from fewbit.errors import DataError, UsageError, plural
from fewbit.evaluation.comparison import Comparison
from fewbit.evaluation.verdict import verdict
from fewbit.progress import Run
from fewbit.quantization.module_plan import ModulePlan, plan_module
from fewbit.quantization.modules import ModuleSettings, quantize_module
from fewbit.record.schema import Record, plain
from fewbit.record.screen import ratio

LEAST_HELD_OUT, HELD_OUT_SHARE = 32, 0.1


@dataclass(frozen=True)
class ModuleRequest:
    """What a caller asks for.

    Args:
        config: a `Config`, the `QuantizationConfig` of all layers, a preset, or a file.
        ignore: layers to leave in float, besides those that the configuration excludes.
        group_size: instead of the preset's.
        algorithm: for weights; `None` lets the run choose.
        backup_precision: of embeddings and the output layer, for presets.
        target: the runtime that a preset is resolved for.
        bias_correction: `None` for presets with data only.
        observer: for activations whose spec names none; `None` lets the run choose.
        samples: calibration samples; `None` for all.
        subset_size: items of the source instead: batches of a loader.
        batch_size: samples per forward pass, for sources of single samples.
        options: how data is read; see `DataOptions`.
        freeze: give the result its kernels.
        exact: of `freeze`.
    """

    config: Any
    ignore: Any = ()
    group_size: int | None = None
    algorithm: str | None = None
    backup_precision: str = "int8"
    target: str = "pytorch"
    bias_correction: bool | None = None
    observer: str | None = None
    samples: int | None = None
    subset_size: int | None = None
    batch_size: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    freeze: bool = False
    exact: bool = False


def quantize_pytorch(
    run: Run, module: Any, data: Any, preset: Any, config: Any, validation: Any, given: Mapping[str, Any]
) -> tuple[Any, Record]:
    """The verb `quantize` for a module: a frozen copy, and the record.

    Args:
        run: progress and warnings.
        module: never changed.
        data: to calibrate and measure with, or `None`.
        preset: its name.
        config: a `Config` instead, or `None`.
        validation: separate data to measure with.
        given: the other parameters of the verb, data options included.
    """
    for name in ("output", "format"):
        if given.get(name):
            raise refuse_later(name, given[name], "quantize", "modules are not written yet")
    if given.get("device", "auto") != "auto":
        raise refuse_later("device", given["device"], "quantize", "a module is quantized where it is; move it before")
    options = {
        name: value for name, value in given.items() if name in DataOptions.__annotations__ and value is not None
    }
    own = isinstance(config, Config | QuantizationConfig)
    request = ModuleRequest(
        config if own else preset,
        ignore=given.get("ignore") or (),
        group_size=given.get("group_size"),
        algorithm=None if given.get("algorithm") in (None, "auto") else given["algorithm"],
        target=given.get("target") or "pytorch",
        samples=given.get("samples") or 300,
        subset_size=given.get("subset_size"),
        batch_size=given.get("batch_size") or 1,
        options=options,
        freeze=True,
    )
    record = Record("quantize")
    return run_module(module, data, request, run, record, validation), record


def plan_request(layers: Any, request: ModuleRequest) -> tuple[ModulePlan, Config, Preset | None]:
    """What would become of each layer, the configuration behind it, and the preset if one was named."""
    config, preset = read_config(layers, request)
    chooses_group = preset is not None and preset.chooses_group and request.group_size is None
    return plan_module(layers, config, request.ignore, chooses_group=chooses_group), config, preset


def read_config(layers: Any, request: ModuleRequest) -> tuple[Config, Preset | None]:
    """The configuration that was asked for, complete with what a preset means for this model."""
    given = request.config
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith((".yaml", ".yml", ".json"))):
        given = Config.load(given)
    if isinstance(given, Mapping):
        given = Config.from_dict(given)
    if isinstance(given, QuantizationConfig):
        given = Config(global_quant_config=given)
    if isinstance(given, Config):
        return given, None
    if not isinstance(given, str | Preset) and not hasattr(given, "value"):
        raise UsageError(
            f"a configuration of type {type(given).__name__}", code="config-type", param="config",
            expected="a Config, a QuantizationConfig, the name of a preset, or a file",
            hint='ModelQuantizer("w8a8"), or {preset=w8a8}',
        )  # fmt: skip
    preset = given
    if not isinstance(given, Preset):
        preset = registry.get("targets", request.target, param="target").resolve(given)
    assert isinstance(preset, Preset)
    config = preset_config(
        preset, group_size=request.group_size, algorithm=request.algorithm,
        backup_precision=request.backup_precision, output_layer=_output_layer(layers),
    )  # fmt: skip
    return config, preset


def _output_layer(layers: Any) -> str | None:
    """The last linear layer, if it has as many outputs as an embedding has rows: it computes the logits of tokens."""
    tables = {layer.shape[0] for layer in layers if layer.op == "gather" and layer.shape}
    linear = [layer for layer in layers if layer.op == "matmul" and layer.shape]
    return linear[-1].name if linear and linear[-1].shape[0] in tables else None


def run_module(module: Any, data: Any, request: ModuleRequest, run: Run, record: Record, validation: Any = None) -> Any:
    """Quantize a copy of a module, and measure it on held-out samples.

    Args:
        module: never changed.
        data: to calibrate and measure with, or `None`.
        request: what to do.
        run: progress and warnings.
        record: filled.
        validation: separate data to measure with.

    Raises:
        UsageError: a configuration that does not suit the model, or static activations without data.
        ModelError: nothing would be quantized.
        DataError: samples that the model does not take.
    """
    import torch

    with torch.inference_mode(False):
        run.begin([("load", 1), ("check data", 1), ("calibrate", 10), ("quantize", 10), ("measure", 10)])
        with run.phase("load"):
            original: Any = find_backend(module).load(module)
            plan, config, preset = plan_request(original.layers(), request)
        _describe(record, original, plan, config, preset, request)
        if plan.needs_data and data is None:
            raise UsageError(
                "static activations need calibration data", code="data-required", param="data",
                expected="samples: a DataLoader, a list, a folder",
                hint="give {data}, or a dynamic or weight-only preset",
            )  # fmt: skip
        samples = _open_samples(original, data, validation, request, plan, run, record)
        settings = _settings(config, preset, request, has_data=samples.calibration is not None)
        result, record.layers = quantize_module(original, plan, samples.calibration, run, settings)
        if request.freeze:
            record.kernels = kernel_facts(result.freeze(exact=request.exact))
        if samples.held_out is not None:
            record.quality = _measure(original, result, samples.held_out, run)
        record.size = {"original": original.nbytes(), "result": result.nbytes()}
        _finish(run, record)
        quantized = result.for_user()
        quantized.fewbit_record = record
        return quantized


def kernel_facts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What runs each frozen layer, and one sentence."""
    counts: dict[str, int] = {}
    for row in rows:
        kernel = row["kernel"] or "dequantized in every call"
        counts[kernel] = counts.get(kernel, 0) + 1
    summary = ", ".join(f"{plural(count, 'layer')} {kernel}" for kernel, count in counts.items())
    return {"summary": summary, "layers": rows}


def _describe(
    record: Record, original: Any, plan: ModulePlan, config: Config, preset: Preset | None, request: ModuleRequest
) -> None:
    info = original.info
    record.model = {"source": info.source, "kind": info.kind, "inputs": [str(tensor) for tensor in info.inputs]}
    name = preset.name if preset is not None else config.fingerprint()
    record.preset = {
        "given": request.config if preset is not None else "config",
        "resolved": name,
        "target": request.target,
    }
    record.settings = plain({"config": config.to_dict(), "plan": repr(plan)})


def _settings(config: Config, preset: Preset | None, request: ModuleRequest, *, has_data: bool) -> ModuleSettings:
    entries = {entry["name"]: {k: v for k, v in entry.items() if k != "name"} for entry in config.algo_config}
    default = request.algorithm or next(iter(entries), None)
    # On a small CNN with 300 samples: output error of w4a16 .069 by scale search, .031 by GPTQ, .030 with corrected
    # biases; of w2a16 .57, .34 and .30 (71, 95 and 98 % agreement).
    automatic = default is None and preset is not None and has_data and preset.weight_bits <= NARROW
    correct = request.bias_correction
    if correct is None:  # a configuration means what it says
        correct = preset is not None and has_data and (automatic or not preset.weights_only)
    observer = {} if request.observer is None else {"observer": request.observer}
    chosen = "gptq" if automatic else default
    return ModuleSettings(
        algorithm=chosen, automatic=automatic, parameters=entries, bias_correction=correct, **observer
    )


# Data.


@dataclass(frozen=True)
class _Samples:
    """Functions that read the batches once more; `None` if there are none."""

    calibration: Callable[[], Iterable[Any]] | None = None
    held_out: Callable[[], Iterable[Any]] | None = None


def _open_samples(
    original: Any, data: Any, validation: Any, request: ModuleRequest, plan: ModulePlan, run: Run, record: Record
) -> _Samples:
    """Calibration and held-out samples; the first is run through the model before anything heavy."""
    if data is None and validation is None:
        return _Samples()
    calibration = held_out = None
    with run.phase("check data"):
        if data is not None:
            dataset, adapter, rows = _open(original, data, request)
            first, second = _split(dataset, rows, request)
            calibration = lambda: adapter.batches(first, request.batch_size)  # noqa: E731
            held_out = (lambda: adapter.batches(second, request.batch_size)) if len(second) else None
            record.data, record.preprocessing = dataset.record, adapter.record()
            record.data |= {
                "items": len(first), "samples": len(first) * rows, "held_out": len(second) * rows,
                "seed": request.options.get("seed", 0),
            }  # fmt: skip
            _warn(run, dataset, len(first) * rows, calibrates=plan.needs_data)
        if validation is not None:
            separate, its_adapter, rows = _open(original, validation, request)
            part = separate.subset(max(MOST_HELD_OUT // rows, 1), request.options.get("seed", 0))
            held_out = lambda: its_adapter.batches(part, request.batch_size)  # noqa: E731
            record.data |= {"validation": separate.record, "held_out": len(part) * rows}
    return _Samples(calibration, held_out)


def _open(original: Any, data: Any, request: ModuleRequest) -> tuple[Dataset, InputAdapter, int]:
    """A dataset, what makes it inputs, and samples per item; whether items have a batch axis is tried if unknown."""
    dataset = data if isinstance(data, Dataset) else Dataset.of(*open_source(data, **reading_options(request.options)))
    adapter = InputAdapter(original.info, request.options, report=dataset.report)
    adapter.first(dataset)
    if "batched" in dataset.facts or dataset.transform is not None:
        return dataset, adapter, _try_first(original, dataset, adapter)
    forms = [dataset, _with_batch_axis(dataset)]
    if _are_token_batches(dataset[0]):
        forms.reverse()
    errors: list[DataError] = []
    for form in forms:
        adapter = InputAdapter(original.info, request.options, report=dataset.report)
        try:
            return form, adapter, _try_first(original, form, adapter)
        except DataError as error:
            if error.code != "model-run":
                raise
            errors.append(error)
    raise errors[0]


def _are_token_batches(item: Any) -> bool:
    """Integers of two axes are token ids of several texts; many models would take a third axis without a word."""
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else [item]
    dtypes = [str(value.dtype) for value in values if hasattr(value, "dtype") and len(value.shape) == 2]
    return bool(dtypes) and all("int" in dtype for dtype in dtypes)


def _try_first(original: Any, dataset: Dataset, adapter: InputAdapter) -> int:
    """Run the first item; returns how many samples it holds."""
    first = dataset.select([0])
    with original.session() as session:
        batch = next(iter(adapter.batches(first)), None)
        if batch is None:
            return 1
        session.call(batch.inputs, str(batch.locations[0]) if batch.locations else "")
        return len(batch)


def _with_batch_axis(dataset: Dataset) -> Dataset:
    """The same items as complete inputs of the model."""
    source: Any = copy.copy(dataset.source)
    source.facts = {**dataset.facts, "batched": True}
    return Dataset.of(source, dataset.report)


def _split(dataset: Dataset, rows: int, request: ModuleRequest) -> tuple[Dataset, Dataset]:
    """Items to calibrate with and items to measure with, drawn apart, both spread over the source."""
    length, seed = len(dataset), request.options.get("seed", 0)
    items = length
    if request.subset_size is not None:
        items = request.subset_size
    elif request.samples is not None:
        items = ceil(request.samples / rows)
    wanted = min(max(HELD_OUT_SHARE * items * rows, LEAST_HELD_OUT), MOST_HELD_OUT)
    held_out = min(ceil(wanted / rows), length // 3) if length * rows >= LEAST_TO_HOLD_OUT else 0
    order = spread(dataset.strata(), length, length, seed)
    return dataset.select(sorted(order[held_out : held_out + items])), dataset.select(sorted(order[:held_out]))


def _warn(run: Run, dataset: Dataset, samples: int, *, calibrates: bool) -> None:
    report = dataset.report
    for code, kind in report.types.items():
        if kind.severity is Severity.WARNING:
            first = next(issue for issue in report.issues if issue.code == code)
            run.warn(f"{kind.meaning}: {first}", code=code, hint=kind.hint)
    if calibrates and samples < LEAST_SAMPLES:
        run.warn(
            f"{plural(samples, 'sample')} {'is' if samples == 1 else 'are'} few to calibrate with: the ranges of "
            "activations will be too narrow for other samples",
            code="calibration-few-samples", hint="give at least 32 samples, better 300",
        )  # fmt: skip


def _measure(original: Any, result: Any, batches: Callable[[], Iterable[Any]], run: Run) -> dict[str, Any]:
    """Held-out samples through both."""
    comparison = Comparison()
    with run.phase("measure", None, "sample") as bar, original.session() as before, result.session() as after:
        for batch in batches():
            comparison.add(before.run(batch.inputs).outputs, after.run(batch.inputs).outputs)
            bar.advance(len(batch))
    return comparison.facts()


def _finish(run: Run, record: Record) -> None:
    record.verdict, sentence = verdict(record.quality)
    if record.verdict == "not-measured" and record.data:
        count = record.data["samples"]
        verb = "is" if count == 1 else "are"
        sentence = f"{plural(count, 'sample')} {verb} too few to hold some out; it takes {LEAST_TO_HOLD_OUT}"
    smaller = ratio(record.size["original"], record.size["result"], "smaller", "larger")
    record.summary = f"{smaller}, {sentence}"
    record.warnings = [warning.to_dict() for warning in run.warnings]
    record.phases = run.phases
