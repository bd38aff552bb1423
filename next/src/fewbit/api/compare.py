# SPDX-License-Identifier: Apache-2.0
"""The verb `compare`: the same samples through two models, then one record of what changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fewbit import registry
from fewbit.api._single_file import check_single_file, write_single_file
from fewbit.api.data import DataOptions, reading_options
from fewbit.api.options import checked, refuse_later
from fewbit.backends import find_backend
from fewbit.backends._base import Backend, Model, Session
from fewbit.data.dataset import Dataset
from fewbit.data.inputs import Batch, InputAdapter
from fewbit.data.opening import open_source
from fewbit.errors import DataError, FewbitError, UsageError, plural, require
from fewbit.evaluation.comparison import Comparison
from fewbit.evaluation.latency import measure_latency
from fewbit.evaluation.layer_error import LayerErrors, rank_layers, worst_layers
from fewbit.evaluation.metrics._base import Metric, find_metric
from fewbit.evaluation.tokens import TokenComparison, looks_ahead, next_token_logits
from fewbit.evaluation.verdict import verdict
from fewbit.model_info import ModelInfo
from fewbit.progress import Run, make_progress
from fewbit.record.schema import Record, plain
from fewbit.record.screen import megabytes, ratio

_TEXTS_AT_ONCE = 1
"""Sequences per forward pass: the logits of a large vocabulary take far more memory than the model's activations."""
_RANKED_BATCHES, _RANKED_TOKENS = 4, 64
"""What layers are compared on: all their inputs and outputs are in memory for one batch."""
_CLASS_TASKS = ("image-classification", "text-classification", "audio-classification")


class CompareData(DataOptions, total=False):
    """Data options, and how samples are fed."""

    batch_size: int


@checked("compare")
def compare(
    original: Any,
    compressed: Any,
    data: Any,
    *,
    target: str | None = None,
    metric: Any = None,
    runs: int = 50,
    device: str = "auto",
    threads: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Any = None,
    **options: Unpack[CompareData],
) -> Record:
    """Compare the outputs, size and latency of two models on the same samples; neither model is changed.

    Args:
        original: a path, or an object of a framework.
        compressed: another version of it, of the same kind or another.
        data: samples to measure with, with labels if there are any; anything `open_dataset` takes.
        target: runtime to measure with; each model's own by default.
        metric: a name of `fewbit list metrics`, `FILE.py:FN`, or a function of outputs and labels; by default what the
            labels suit.
        runs: timed runs per model.
        device: where to compute.
        threads: CPU threads for computing.
        output: a `.json` file for the record.
        overwrite: replace an earlier record.
        progress: None (automatic), True, False, or an object.
        options: see `DataOptions`.

    Returns:
        A record: `verdict`, `quality` with 95 % intervals, `size`, `speed`, and `layers`, the worst first if known.
    """
    path = None if output is None else Path(output)
    if path is not None:
        inputs = [Path(item) for item in (original, compressed, data) if isinstance(item, str | Path)]
        check_single_file(path, (".json",), b'{\n  "command": "compare"', overwrite=overwrite, inputs=inputs)
    chosen = None if metric is None else find_metric(metric)
    run = Run(make_progress(progress))
    try:
        sides = [_Side.inspect(source, target, device) for source in (original, compressed)]
        record = Record("compare")
        record.model = _describe(run, sides)
        dataset, adapters = _open_data(run, record, sides, data, options)
        run.begin([("load", 5), ("measure", 20)])
        with run.phase("load"):
            models = [side.load(device) for side in sides]
        record.size = _sizes(sides, models)
        record.quality, batches = _measure(run, models, sides, dataset, adapters, chosen, options, threads)
        record.speed = _latency(models, batches, sides, runs, threads)
        record.layers = _ranked_layers(models, batches, compressed)
        _finish(run, record, sides)
        if path is not None:
            record.output = path.name
            write_single_file(path, record.to_json())
    finally:
        run.close()
    return record


@dataclass(frozen=True)
class _Side:
    """One of the two models."""

    source: Any
    backend: Backend
    info: ModelInfo
    runtime: str

    @classmethod
    def inspect(cls, source: Any, target: str | None, device: str) -> _Side:
        backend = find_backend(source)
        if target is not None and registry.get("targets", target, param="target").name != backend.target:
            raise refuse_later("target", target, "compare", f"{backend.name} models run on {backend.target}")
        name = backend.target if backend.target in registry.names("targets") else "pytorch"
        runtime = registry.get("targets", name).title
        side = cls(source, backend, backend.inspect(source), runtime)
        if device not in ("auto", "cpu") and not side.is_module:
            raise refuse_later("device", device, "compare", f"{backend.name} models run on the CPU")
        return side

    @property
    def is_module(self) -> bool:
        """Whether it becomes a module, which can be moved to a device."""
        return hasattr(self.backend, "block_stream")

    @property
    def name(self) -> str:
        return str(self.source) if isinstance(self.source, str | Path) else self.info.source

    def load(self, device: str) -> Model:
        model = self.backend.load(self.source)
        given = model.for_user() if self.is_module else None
        if given is not None and (device != "auto" or isinstance(self.source, str | Path)):
            from fewbit.data.loading.devices import choose_device

            given.to(choose_device(device, required=device != "auto").device)
        return model


def _describe(run: Run, sides: Sequence[_Side]) -> dict[str, Any]:
    """What is compared, on the screen and in the record."""
    for label, side in zip(("original", "result"), sides):
        size = "" if side.info.size is None else f", {megabytes(side.info.size)}"
        quantized = f", {side.info.quantized}" if side.info.quantized else ""
        run.line(f"  {label:<8} {side.name}: {side.info.kind}{size}{quantized}")
    info = sides[0].info
    return {
        "source": sides[0].name, "compressed": sides[1].name, "kind": info.kind,
        "inputs": [str(tensor) for tensor in info.inputs],
    }  # fmt: skip


def _open_data(
    run: Run, record: Record, sides: Sequence[_Side], data: Any, options: Mapping[str, Any]
) -> tuple[Dataset, list[InputAdapter]]:
    """The samples, and what makes them inputs of each model; the first are checked before anything heavy."""
    dataset = Dataset.of(*open_source(data, **reading_options(options)))
    adapters = _adapters(sides, options, dataset)
    for adapter in dict.fromkeys(adapters):
        adapter.first(dataset)
    seed, count = options.get("seed", 0), options.get("samples", 300)
    chosen = dataset.subset(count, seed)
    unit = plural(len(dataset), dataset.report.unit)
    run.line(f"  data     {dataset.report.source}: {len(chosen):,} of {unit}, seed {seed}")
    run.line(f"  inputs   {adapters[0].describe()}")
    earlier = _record_of(sides[1].source)
    if earlier is not None and earlier.data.get("source") == dataset.report.source:
        run.line("  note     the result was made with this data; other data is a better judge")
    record.data = dataset.record | {"used": len(chosen), "seed": seed}
    record.preprocessing = adapters[0].record()
    record.settings = plain({"samples": count, "seed": seed})
    return chosen, adapters


def _adapters(sides: Sequence[_Side], options: Mapping[str, Any], dataset: Dataset) -> list[InputAdapter]:
    """One adapter if both models take inputs of the same names: the one that knows shapes, or the original's."""
    adapters = [InputAdapter(side.info, options, report=dataset.report) for side in sides]
    names = [[tensor.name for tensor in side.info.inputs if tensor.required] for side in sides]
    if set(names[0]) == set(names[1]):
        known = [all(tensor.shape is not None for tensor in side.info.inputs) for side in sides]
        return [adapters[1 if known[1] and not known[0] else 0]] * 2
    return adapters


def _record_of(source: Any) -> Record | None:
    """The record that was written with a model, if there is one."""
    if not isinstance(source, str | Path):
        return None
    try:
        return Record.read(source)
    except (DataError, OSError):
        return None


def _sizes(sides: Sequence[_Side], models: Sequence[Model]) -> dict[str, Any]:
    """Bytes of the files; of objects, of every tensor they hold, packed weights included."""
    sizes = []
    for side, model in zip(sides, models):
        in_memory = getattr(model, "nbytes", None)
        from_files = isinstance(side.source, str | Path) and Path(side.source).exists() and side.info.size is not None
        sizes.append(side.info.size if from_files or in_memory is None else in_memory())
    return {"original": sizes[0], "result": sizes[1]} if all(sizes) else {}


Inputs = Mapping[str, Any]
_Batches = list[tuple[Inputs, Inputs]]


def _measure(
    run: Run,
    models: Sequence[Model],
    sides: Sequence[_Side],
    dataset: Dataset,
    adapters: Sequence[InputAdapter],
    metric: Metric | None,
    options: Mapping[str, Any],
    threads: int | None,
) -> tuple[dict[str, Any], _Batches]:
    """Every sample through both models; also returns the first batches."""
    size = options.get("batch_size") or (_TEXTS_AT_ONCE if sides[0].info.task == "text-generation" else 1)
    comparison: Comparison | TokenComparison | None = None
    first: _Batches = []
    sessions = [model.session(threads=threads) for model in models]
    labels = _label_map(run, sides[0].info, dataset)
    try:
        with run.phase("measure", len(dataset), "sample") as bar:
            for batch, inputs in _batches(dataset, adapters, size):
                outputs = [_run(session, part, batch) for session, part in zip(sessions, inputs)]
                if comparison is None:
                    comparison = _comparison(run, sides[0].info, metric, outputs[0], inputs[0], sessions[0], batch)
                if isinstance(comparison, TokenComparison):
                    _add_tokens(comparison, outputs, inputs[0])
                else:
                    targets = [labels(label, inputs[0]) for label in batch.labels]
                    comparison.add(outputs[0], outputs[1], targets, samples=len(batch))
                if len(first) < _RANKED_BATCHES:
                    first.append(inputs)
                bar.advance(len(batch))
    finally:
        for session in reversed(sessions):  # each puts back the state it came into
            session.close()
    if comparison is None:
        raise DataError("no sample could be used", code="data-empty", where=dataset.report.source, hint="other {data}")
    return comparison.facts() | {"unit": "sample"}, first


def _batches(
    dataset: Dataset, adapters: Sequence[InputAdapter], size: int
) -> Iterator[tuple[Batch, tuple[Inputs, Inputs]]]:
    """Batches of the original, with the inputs of both models."""
    if adapters[0] is adapters[1]:
        for batch in adapters[0].batches(dataset, size):
            yield batch, (batch.inputs, batch.inputs)
        return
    for batch, other in zip(*(adapter.batches(dataset, size) for adapter in adapters)):
        yield batch, (batch.inputs, other.inputs)


def _run(session: Session, inputs: Inputs, batch: Batch) -> Mapping[str, np.ndarray]:
    try:
        return session.run(inputs).outputs
    except FewbitError:
        raise
    except Exception as error:  # runtimes have no common class of errors
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(
            f"a model cannot run the sample: {text[:300]}", code="model-run", where=str(batch.locations[0]),
            expected="inputs that both models take",
            hint="{image_size}, {mean} and {std} for images, or {transform=FILE.py:FN}",
        ) from error  # fmt: skip


def _comparison(
    run: Run,
    info: ModelInfo,
    metric: Metric | None,
    outputs: Mapping[str, np.ndarray],
    inputs: Inputs,
    session: Session,
    batch: Batch,
) -> Comparison | TokenComparison:
    """For language models token by token, for others decision by decision."""
    name = next_token_logits(outputs, inputs)
    has_labels = any(label is not None for label in batch.labels)
    if name is None or (metric is not None and metric.name not in ("perplexity", "token_accuracy")) or has_labels:
        known = info.task in _CLASS_TASKS or (info.labels is not None and info.task is None)
        if metric is not None and not has_labels:
            raise UsageError(
                f"the metric {metric.name} needs labels", code="metric-labels", param="metric",
                where=str(batch.locations[0]), expected="samples with a label, boxes, a mask or tags",
                hint="data with labels, or remove {metric}",
            )  # fmt: skip
        return Comparison(metric, classes=known)
    ahead = looks_ahead(lambda changed: session.run(changed).outputs[name], inputs)
    if ahead:
        run.line("  note     the model sees later tokens: no perplexity, only agreement and divergence")
    return TokenComparison(looks_ahead=ahead)


def _add_tokens(comparison: TokenComparison, outputs: Sequence[Mapping[str, np.ndarray]], inputs: Inputs) -> None:
    torch = require("torch", extra="torch", purpose="language models")
    name = next_token_logits(outputs[0], inputs)
    other = next_token_logits(outputs[1], inputs)
    assert name is not None
    if other is None:
        raise UsageError(
            "the second model gives no scores for the next token", code="outputs-differ",
            expected="two versions of the same model", hint="compare a language model with another version of it",
        )  # fmt: skip
    mask = inputs.get("attention_mask")
    comparison.add(
        torch.as_tensor(outputs[0][name]), torch.as_tensor(outputs[1][other]), torch.as_tensor(inputs["input_ids"]),
        None if mask is None else torch.as_tensor(mask),
    )  # fmt: skip


def _label_map(run: Run, info: ModelInfo, dataset: Dataset) -> Callable[[Any, Inputs], Any]:
    """From a label of the dataset to the class of the model: by name if both know names, else by number."""
    order: dict[int, int] | None = None
    classes = dataset.classes
    if info.labels and classes and [*map(_plain_name, classes)] != [*map(_plain_name, info.labels)]:
        numbers = {_plain_name(name): number for number, name in enumerate(info.labels)}
        names = [_plain_name(name) for name in classes]
        known = {index: numbers[name] for index, name in enumerate(names) if name in numbers}
        if len(known) == len(classes):
            order = known
        elif len(classes) > len(info.labels) or known:
            run.line("  note     classes of data and model differ: labels are not used")
            return lambda label, inputs: None

    def mapped(label: Any, inputs: Inputs) -> Any:
        if order is not None and isinstance(label, int | np.integer):
            return order.get(int(label))
        if isinstance(label, dict) and "boxes" in label:
            image = next((np.shape(value) for value in inputs.values() if np.ndim(value) == 4), None)
            if image is not None:
                size = image[2:] if image[1] <= 4 else image[1:3]
                return {**label, "input_size": size}
        return label

    return mapped


def _plain_name(name: Any) -> str:
    return str(name).casefold().replace("_", " ").replace("-", " ").strip()


def _latency(
    models: Sequence[Model], batches: _Batches, sides: Sequence[_Side], runs: int, threads: int | None
) -> dict[str, Any]:
    """Of the first batch, in turns."""
    sessions = [model.session(threads=threads) for model in models]
    count = threads or os.cpu_count() or 1
    runtimes = " and ".join(dict.fromkeys(side.runtime for side in sides))
    tokens = np.size(batches[0][0].get("input_ids", ()))
    runtimes += f", {plural(tokens, 'token')}" if tokens else ""
    try:
        calls = [lambda s=session, part=part: s.run(part) for session, part in zip(sessions, batches[0])]
        return measure_latency(*calls, runs=runs, how=f"{plural(count, 'thread')}, {runtimes}") | {"threads": count}
    finally:
        for session in reversed(sessions):  # each puts back the state it came into
            session.close()


def _ranked_layers(models: Sequence[Model], batches: _Batches, compressed: Any) -> list[dict[str, Any]]:
    """Layers by their own error: observed if PyTorch runs both models, else from the result's own record."""
    if not all(hasattr(model, "layers") for model in models):
        earlier = _record_of(compressed)
        return [] if earlier is None else rank_layers(earlier.layers)
    module: Any = models[1].for_user()
    parts = dict(module.named_modules())
    listed: Any = models[0]
    paths = {layer.name: layer.module for layer in listed.layers() if layer.observable and layer.module in parts}
    errors = LayerErrors(list(paths), lambda layer, x: parts[paths[layer]](x))
    result = models[1].session()
    session: Any = models[0].session(observe=errors.observers())  # type: ignore[arg-type]
    try:
        for inputs, _ in batches:
            session.run(_shortened(inputs))
    finally:
        session.close()
        result.close()
    return errors.rows()


def _shortened(inputs: Inputs) -> Inputs:
    """Token sequences cut to what layers need to be compared."""
    if np.ndim(inputs.get("input_ids", ())) != 2:
        return inputs
    length = np.shape(inputs["input_ids"])[1]
    return {
        name: value[:, :_RANKED_TOKENS] if np.ndim(value) == 2 and np.shape(value)[1] == length else value
        for name, value in inputs.items()
    }


def _finish(run: Run, record: Record, sides: Sequence[_Side]) -> None:
    """The verdict and what goes with it."""
    if record.quality.get("metric") == "map50" and record.preprocessing.get("resize") in ("crop", "pad"):
        record.quality["metric_note"] = "images are cropped or padded, boxes of labels are not: not judged by it"
        record.quality.pop("metric_loss", None)
    record.verdict, sentence = verdict(record.quality)
    if worst := worst_layers(record.layers):
        record.quality["worst"] = worst
    speed = record.speed
    parts = [
        ratio(record.size["original"], record.size["result"], "smaller", "larger") if record.size else "",
        ratio(speed["original_ms"], speed["result_ms"], "faster", "slower") if speed else "",
    ]
    record.summary = ", ".join([*(part for part in parts if part not in ("", "about the same")), sentence])
    if record.verdict in ("degraded", "broken"):
        record.next = _next_steps(record, sides)
    record.warnings = [warning.to_dict() for warning in run.warnings]
    record.phases = run.phases


def _next_steps(record: Record, sides: Sequence[_Side]) -> list[dict[str, str]]:
    """What to try with a result that lost something."""
    command = f"fewbit quantize {sides[0].name} --data DATA"
    steps = []
    if record.layers and record.layers[0].get("share", 0) > 0:
        worst = record.layers[0]
        gives = f"leaves the layer with {worst['share']:.0%} of the error in float"
        steps.append({"command": f"{command} --ignore {worst['name']}", "gives": gives})
    return [*steps, {"command": f"{command} --preset w8a16", "gives": "8-bit weights, float activations"}]
