# SPDX-License-Identifier: Apache-2.0
"""The verb `export`: write a model for a runtime, or convert a checkpoint to another format.

Values are never changed silently. A conversion is exact, or it is refused; `requantize` allows to round what the new
format cannot hold, and the error of every layer is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fewbit import registry
from fewbit.algorithms._base import LayerProblem
from fewbit.api.data import DataOptions
from fewbit.api.options import checked
from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor, StoredTensors
from fewbit.checkpoints._convert import convert
from fewbit.checkpoints._folder import quantization_of
from fewbit.checkpoints._open import open_weights
from fewbit.checkpoints._verification import write_verified
from fewbit.config.presets import parse_preset
from fewbit.errors import ModelError, UsageError, plural
from fewbit.numerics.qtensor import QTensor
from fewbit.output import Output, check_output, open_output
from fewbit.progress import Run, make_progress
from fewbit.quantization.plan import layer_format
from fewbit.record.schema import Record, plain

_TABLE = re.compile(r"(embed|wte|wpe|lm_head|output_layer)[^.]*\.weight$|^shared\.weight$")
"""Embeddings and output layers, which most formats hold in float."""
_REQUANTIZED = {4: "w4a16", 8: "w8a16g128"}
_GGUF_REQUANTIZED = {2: "q2_k", 3: "q3_k_m", 4: "q4_k_m", 5: "q5_k_m", 6: "q6_k", 8: "q8_0"}


class ExportData(DataOptions, total=False):
    """Data options, and how samples are fed."""

    batch_size: int


@checked("export")
def export(
    model: str | Path,
    output: str | Path | None = None,
    *,
    format: str | Sequence[str] = (),
    target: str | None = None,
    requantize: bool = False,
    input_shape: Mapping[str, Any] | None = None,
    data: Any = None,
    factory: Any = None,
    overwrite: bool = False,
    progress: Any = None,
    return_record: bool = False,
    **options: Unpack[ExportData],
) -> Any:
    """Write a model for a runtime or convert a checkpoint; values stay as they are unless `requantize` is given.

    Args:
        model: a Hugging Face folder, a quantized checkpoint, a folder that fewbit wrote, or a `.gguf` file.
        output: folder to write, or a `.gguf` file; `MODEL-FORMAT` in the current folder by default.
        format: of the files: compressed-tensors, gptq, awq, gguf or safetensors; several give one subfolder each.
        target: runtime that will load the result, instead of a format.
        requantize: round what the format cannot hold exactly; the error is measured.
        input_shape: for models with free dimensions.
        data: to measure with.
        factory: builds the model, for a file that holds only weights.
        overwrite: replace an earlier result.
        progress: None (automatic), True, False, or an object.
        return_record: return `(path, Record)`.
        options: see `DataOptions`.

    Returns:
        The path that was written.
    """
    run = Run(make_progress(progress))
    try:
        source = Path(model)
        formats = _formats(format, target, output)
        path = Path(output) if output is not None else Path(f"{source.stem}-{formats[0].name.replace('_', '-')}")
        is_file = path.suffix == ".gguf"
        if is_file and len(formats) > 1:
            raise UsageError(
                f"{path} is one file, and {len(formats)} formats are named", code="output-kind", param="output",
                expected="a folder", hint=f"{{output={path.stem}}}",
            )  # fmt: skip
        check_output(path, overwrite=overwrite, inputs=[source], is_file=is_file)
        weights = _open(source)
        record = Record("export")
        record.model = {"source": str(source), "kind": _stored_as(weights)}
        record.settings = plain({"format": [item.name for item in formats], "target": target, "requantize": requantize})
        run.line(f"  model    {source}: {_stored_as(weights)}, {plural(len(list(weights)), 'tensor')}")
        run.begin([("convert", 5), ("write", 5)] * len(formats))
        plans = [_plan_conversion(run, weights, item, requantize=requantize) for item in formats]
        with open_output(path, overwrite=overwrite, inputs=[source], is_file=is_file) as folder:
            folder.clear()
            for plan in plans:
                _write(run, record, weights, plan, folder, alone=len(plans) == 1)
            _finish(record, plans, source)
            (folder.work / folder.companion("record.json")).write_bytes(record.to_json())
    finally:
        run.close()
    return (path, record) if return_record else path


@dataclass
class _Conversion:
    """What becomes of each quantized tensor.

    Args:
        checkpoint: the format.
        layers: every linear layer with its format, `None` for float.
        exact: weights that keep their integers.
        floats: quantized tensors that are written as the floats they stand for.
        rounded: weights that are quantized anew, and why.
        errors: of the rounded ones, relative squared error; filled while writing.
        preset: of GGUF for the rounded ones.
        size: bytes of the weight files.
    """

    checkpoint: CheckpointFormat
    layers: dict[str, LayerFormat | None] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    floats: set[str] = field(default_factory=set)
    rounded: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    preset: str = ""
    size: int = 0


def _formats(format: str | Sequence[str], target: str | None, output: str | Path | None) -> list[CheckpointFormat]:
    """The formats that are named, or the one of the target or the output."""
    names = [format] if isinstance(format, str) else list(format)
    runtime = None if target is None else registry.get("targets", target, param="target")
    if not names:
        by_name = "gguf" if output is not None and str(output).endswith(".gguf") else "compressed_tensors"
        names = [next(iter(filter(None, (runtime.format, *runtime.reads))), "") if runtime is not None else by_name]
        if not names[0]:
            raise UsageError(
                f"{target} loads no checkpoint of a language model", code="target-format", param="target",
                expected="vllm, transformers, llama.cpp, pytorch or generic", hint="{format=compressed-tensors}",
            )  # fmt: skip
    checkpoints: list[CheckpointFormat] = [registry.get("checkpoints", name, param="format") for name in names]
    for checkpoint in checkpoints:
        if runtime is not None and checkpoint.name not in (runtime.format, *runtime.reads):
            raise UsageError(
                f"{runtime.title} does not load {checkpoint.name}", code="target-format", param="format",
                expected=", ".join(filter(None, (runtime.format, *runtime.reads))), hint=f"{{format={runtime.format}}}",
            )  # fmt: skip
    return checkpoints


def _open(source: Path) -> StoredTensors:
    if not source.exists():
        raise UsageError(
            f"there is no {source}", code="model-missing", expected="a folder or a .gguf file", hint="check the path"
        )
    if source.is_file() and source.suffix != ".gguf":
        raise UsageError(
            f"{source.suffix or source.name} models are written by {{fewbit.quantize}} in their own format",
            code="export-source", where=str(source), expected="a language model: a folder, or a .gguf file",
            hint="{fewbit.quantize}",
        )  # fmt: skip
    weights = open_weights(source)
    if not list(weights):
        raise ModelError(
            "there are no weights in it", code="weights-missing", where=str(source),
            expected=".safetensors files or one .gguf file", hint="model.save_pretrained(folder)",
        )  # fmt: skip
    return weights


def _stored_as(weights: StoredTensors) -> str:
    if weights.path.suffix == ".gguf":
        return "GGUF"
    method = quantization_of(weights.path).get("quant_method")
    return "float" if not method else str(method)


def _plan_conversion(
    run: Run, weights: StoredTensors, checkpoint: CheckpointFormat, *, requantize: bool
) -> _Conversion:
    """Try every quantized tensor; refuse before anything is written.

    Raises:
        UsageError: layers that the format cannot hold as they are, with reasons.
    """
    plan = _Conversion(checkpoint)
    names = [name for name in weights if name.endswith(".weight") and len(weights.shape(name)) == 2]
    holds_tables = not checkpoint.float_head
    with run.phase("convert", len(names), "weight") as bar:
        for name in bar.track(names):
            layer, table = name.removesuffix(".weight"), _TABLE.search(name) is not None
            if not table or (weights.quantized(name) and holds_tables):
                plan.layers[layer] = None
            if not weights.quantized(name):
                continue
            if table and not holds_tables:
                plan.floats.add(name)
                continue
            tensor, activation = weights.qtensor(name), weights.activation(name)
            result = convert(tensor, checkpoint, activation) if tensor is not None else "its groups have no such form"
            if isinstance(result, QTensor):
                plan.exact.add(name)
                plan.layers[layer] = LayerFormat(result.grid, activation)
            elif table or (tensor is None and checkpoint.name == "safetensors" and not requantize):
                plan.floats.add(name)  # as the floats it stands for
                plan.layers.pop(layer, None)
            else:
                plan.rounded[name] = result
    if plan.rounded and not requantize:
        reasons = sorted(set(plan.rounded.values()))
        raise UsageError(
            f"{checkpoint.name} cannot hold {plural(len(plan.rounded), 'layer')} as they are: {'; '.join(reasons[:3])}",
            code="export-lossy", param="requantize", where=", ".join(list(plan.rounded)[:3]),
            expected="a format that can: safetensors holds every one",
            hint="{requantize} rounds them anew; or {format=safetensors}",
        )  # fmt: skip
    if plan.rounded:
        _plan_rounding(plan, weights)
    if not plan.exact and not plan.rounded and checkpoint.name not in ("gguf", "safetensors"):
        raise UsageError(
            f"{checkpoint.name} holds quantized weights, and these are float", code="export-float", param="format",
            expected="gguf or safetensors, or a quantized model", hint="{fewbit.quantize} quantizes it",
        )  # fmt: skip
    return plan


def _plan_rounding(plan: _Conversion, weights: StoredTensors) -> None:
    """The number format of layers that are quantized anew: the width they have, as near as the new format comes."""
    widths = []
    for name in plan.rounded:
        tensor = weights.qtensor(name)
        stored = str(weights.headers[name].get("type", ""))
        widths.append(tensor.grid.dtype.bits if tensor is not None else int(stored[1]) if stored[1:2].isdigit() else 4)
    bits = max(widths, key=widths.count)
    if plan.checkpoint.name == "gguf":
        plan.preset = _GGUF_REQUANTIZED[min((key for key in _GGUF_REQUANTIZED if key >= bits), default=8)]
        return
    preset = parse_preset(_REQUANTIZED[4 if bits <= 4 or plan.checkpoint.name == "awq" else 8])
    if plan.checkpoint.name == "awq":
        preset = parse_preset("w4a16_asym")
    shapes = [weights.shape(name) for name in plan.rounded]
    size = next((size for size in (128, 64, 32) if all(shape[1] % size == 0 for shape in shapes)), 32)
    known = [layer.weight.group_size for layer in plan.layers.values() if layer is not None]
    kind = plan.checkpoint.adapt(layer_format(preset.with_group_size(known[0] if known and known[0] > 0 else size)))
    for name in plan.rounded:
        reason = plan.checkpoint.refusal(kind, weights.shape(name))
        plan.layers[name.removesuffix(".weight")] = None if reason else kind
        if reason:
            plan.floats.add(name)


def _write(run: Run, record: Record, weights: StoredTensors, plan: _Conversion, folder: Output, *, alone: bool) -> None:
    """Write one format and read it back."""
    place = folder.work if alone else folder.work / plan.checkpoint.name
    place.mkdir(exist_ok=True)
    facts = {"name": record.model["source"].rstrip("/").rpartition("/")[2]}
    keep = frozenset(name for name in weights if name not in plan.rounded)
    job = CheckpointJob(weights.path, plan.layers, facts=facts, preset=plan.preset, keep=keep)
    plan.checkpoint.check(job)
    with run.phase("write", len(list(weights)), "tensor") as bar:
        files, count = write_verified(plan.checkpoint, place, bar.track(_tensors(weights, plan, job)), job)
        bar.detail = f"read back: {count} of {count} tensors as they were written"
    if folder.is_file:
        (place / files[0]).rename(place / folder.path.name)
        files = [folder.path.name]
    plan.size = sum((place / file).stat().st_size for file in files if file.endswith((".safetensors", ".gguf")))
    names = files if alone else [f"{plan.checkpoint.name}/{name}" for name in files]
    done = record.verification
    done["files"] = [*done.get("files", []), *names]
    record.verification = done | {"read_back": True, "tensors": done.get("tensors", 0) + count}
    for name, layer in plan.layers.items():
        weight = f"{name}.weight"
        row: dict[str, Any] = {"name": name, "quantized": layer is not None, "exact": weight not in plan.rounded}
        row["reason"] = plan.rounded.get(weight, "")
        if weight in plan.errors:
            row["weight_error"] = plan.errors[weight]
        record.layers.append(row | ({} if alone else {"format": plan.checkpoint.name}))


def _tensors(weights: StoredTensors, plan: _Conversion, job: CheckpointJob) -> Iterator[NamedTensor]:
    """Every tensor of the source once."""
    search = registry.get("algorithms", "scale_search")
    for name in weights:
        layer = name.removesuffix(".weight")
        kind = plan.layers.get(layer)
        if name in plan.exact:
            tensor = weights.qtensor(name)
            assert tensor is not None and kind is not None
            converted = convert(tensor, plan.checkpoint, kind.activation)
            assert isinstance(converted, QTensor), name
            yield NamedTensor(name, converted, layer)
        elif name in plan.rounded and name not in plan.floats:
            values = weights.read(name)
            result = NamedTensor(name, values)
            if plan.preset:  # the writer searches for blocks
                stored = plan.checkpoint.stored(result, job)
                assert stored is not None
                result = stored
            else:
                assert kind is not None
                result = NamedTensor(name, search.quantize(LayerProblem(layer, values.float(), kind.weight)), layer)
            difference = (result.value.dequantize() - values).double()
            energy = values.double().square().sum().clamp(min=1e-30)
            plan.errors[name] = float(difference.square().sum() / energy)
            yield result
        else:
            yield NamedTensor(name, _smallest_float(weights, name))


def _smallest_float(weights: StoredTensors, name: str) -> Any:
    """A tensor as it is stored; a decoded one in the dtype of the model if that has its values."""
    import torch

    values = weights.read(name)
    if not weights.quantized(name):
        return values
    for dtype in ({"BF16": torch.bfloat16, "F16": torch.float16}.get(weights.headers[name]["dtype"]), torch.float16):
        if dtype is not None and torch.equal(values.to(dtype).float(), values):
            return values.to(dtype)
    return values


def _finish(record: Record, plans: Sequence[_Conversion], source: Path) -> None:
    exact, rounded = sum(len(plan.exact) for plan in plans), sum(len(plan.rounded) for plan in plans)
    files = [source] if source.is_file() else [*source.glob("*.safetensors"), *source.glob("*.gguf")]
    record.model["tensors"] = record.verification["tensors"]
    parts = [f"{plural(exact, 'quantized weight')} with the same integers"] if exact else []
    floats = sum(len(plan.floats) for plan in plans)
    parts += [f"{plural(floats, 'quantized tensor')} as float"] if floats else []
    if rounded:
        errors = [error for plan in plans for error in plan.errors.values()]
        worst = f", weight error {max(errors):.1e} at most (relative MSE)" if errors else ""
        parts.append(f"{plural(rounded, 'weight')} rounded anew{worst}")
        record.verdict = "not-measured"
        record.quality = {"weight_error": max(errors, default=None), "requantized": rounded}
    record.summary = "; ".join(parts) or f"{plural(record.verification['tensors'], 'tensor')} as they were"
    record.summary = ("exact: " if not rounded else "") + record.summary
    before = sum(file.stat().st_size for file in files)
    record.size = {"original": before, "result": sum(plan.size for plan in plans)}
