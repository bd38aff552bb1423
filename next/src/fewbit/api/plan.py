# SPDX-License-Identifier: Apache-2.0
"""The verb `plan`: what `quantize` would do to each layer, what it would cost, and the settings that do it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, cast

import yaml

from fewbit import registry
from fewbit.api._single_file import check_single_file, write_single_file
from fewbit.api.options import checked, read_config, refuse_later
from fewbit.backends import find_backend
from fewbit.backends._base import Backend
from fewbit.backends._headers import not_built
from fewbit.config.presets import GGUF_PRESETS, Preset, canonical_name
from fewbit.data.dataset import HELD_OUT_SHARE, LEAST_HELD_OUT, MOST_HELD_OUT
from fewbit.errors import UsageError, plural
from fewbit.model_info import ModelInfo
from fewbit.options import option
from fewbit.quantization.plan import LayerPlan, Plan, make_plan
from fewbit.record.schema import plain
from fewbit.record.screen import megabytes
from fewbit.targets._base import Target

MARK = b"# fewbit plan"
_FORWARD_PASSES = 5
"""What calibrating and solving a block costs, in forward passes of the model."""
_CPU_RATE, _GPU_RATE = 4e10, 2e14
"""Operations per second: of a CPU core in float32, of a large GPU in bfloat16."""
_SCALE_BITS = 16
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@checked("plan")
def plan(
    model: Any,
    *,
    preset: str = "int8",
    group_size: int | None = None,
    algorithm: str = "auto",
    ignore: Sequence[str] = (),
    target: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Plan:
    """Show what `quantize` would do to each layer; no data is read and nothing is run.

    Args:
        model: a path, or an object of a framework.
        preset: number format.
        group_size: weights that share a scale; -1 for a complete channel.
        algorithm: how weights are rounded.
        ignore: layers to leave in float: name, glob, `re:REGEX` or `type:OP`.
        target: runtime that will run the result.
        config: more settings of `quantize` by parameter name, such as `samples` and `max_length` for the estimates.
        output: a `.yaml` file for the resolved settings; `quantize(config=...)` takes it.
        overwrite: replace an earlier plan.
    """
    path = None if output is None else Path(output)
    if path is not None:
        inputs = [Path(model)] if isinstance(model, str | Path) else []
        check_single_file(path, (".yaml", ".yml"), MARK, overwrite=overwrite, inputs=inputs)
    more = {} if config is None else read_config(config, "plan")
    backend = find_backend(model)
    info = backend.inspect(model)
    formats = [more["format"]] if isinstance(more.get("format"), str) else list(more.get("format") or ())
    blocks: Any = backend
    in_blocks = hasattr(backend, "block_stream") and blocks.is_language_model(model)
    if in_blocks and target is None and not formats and canonical_name(preset) in GGUF_PRESETS:
        formats = ["gguf"]  # nothing else holds such types
    runtime = _target(backend, target, formats, in_blocks=in_blocks)
    chosen = runtime.resolve(preset)
    if in_blocks:
        result = _plan_language_model(backend, model, chosen, formats or [runtime.format], ignore, group_size)
    else:
        if not backend.edits and not hasattr(backend, "block_stream"):
            raise not_built(backend.name, model)
        loaded: Any = backend.load(model)
        plan_loaded = _plan_module if hasattr(loaded, "layers") else _plan_graph
        result = plan_loaded(loaded, chosen, ignore, group_size, algorithm)
    settings = {name: value for name, value in more.items() if name != "output"} | _settings(
        result.preset, runtime, ignore, group_size, algorithm
    )
    facts = {"model": info.source, "kind": info.kind, "target": runtime.title, "size": _sizes(info, result)}
    if in_blocks:
        facts |= _estimates(info, result, more, algorithm)
    elif chosen.needs_data:
        facts["data"] = "calibration samples are needed: ranges of activations come from them"
    facts["next"] = f"fewbit quantize {info.source} --config {path or 'plan.yaml'} --data DATA" if path else None
    result = replace(result, settings=plain(settings), facts={key: value for key, value in facts.items() if value})
    if path is not None:
        content = yaml.safe_dump(result.settings, sort_keys=False, allow_unicode=True)
        write_single_file(path, MARK + f" of {info.source!r}\n".encode() + content.encode())
    return result


def _target(backend: Backend, target: str | None, formats: Sequence[str], *, in_blocks: bool) -> Target:
    """The runtime that is asked for, that a file format is for, or that the model is for."""
    if target is None and formats:
        target = registry.get("checkpoints", formats[0], param="format").target
    default = "vllm" if in_blocks else backend.target
    if target is None and default not in registry.names("targets"):
        default = {"torch": "pytorch"}.get(default, default)
    runtime: Target = registry.get("targets", target or default, param="target")
    if in_blocks and not runtime.format:
        raise UsageError(
            f"{runtime.title} does not run Hugging Face folders", code="target-model", param="target",
            expected="vllm, transformers or llama.cpp", hint="{target=vllm}",
        )  # fmt: skip
    return runtime


def _plan_language_model(
    backend: Any, model: Any, preset: Preset, formats: Sequence[str], ignore: Any, group_size: int | None
) -> Plan:
    checkpoints = [registry.get("checkpoints", name, param="format") for name in formats]
    return make_plan(
        backend.linear_layers(Path(model)), preset, ignore, group_size=group_size,
        formats=checkpoints,
    )  # fmt: skip


def _plan_module(model: Any, preset: Preset, ignore: Any, group_size: int | None, algorithm: str) -> Plan:
    from fewbit.api._modules import ModuleRequest, plan_request

    request = ModuleRequest(preset, ignore, group_size, None if algorithm == "auto" else algorithm)
    entries = plan_request(model.layers(), request)[0].layers
    return Plan(preset, cast(tuple[LayerPlan, ...], entries))


def _plan_graph(model: Any, preset: Preset, ignore: Any, group_size: int | None, algorithm: str) -> Plan:
    for name, value in (("group_size", group_size), ("algorithm", None if algorithm == "auto" else algorithm)):
        if value is not None:
            raise refuse_later(name, value, "plan", "models of this kind have one way so far")
    return make_plan(model.graph().layers, preset, ignore)


def _settings(
    preset: Preset, target: Target, ignore: Sequence[str], group_size: int | None, algorithm: str
) -> dict[str, Any]:
    """What `quantize` takes to do exactly this."""
    settings: dict[str, Any] = {"preset": preset.name, "target": target.name}
    if group_size is not None and not re.search(r"g(-1|\d+)", preset.name):
        settings["group_size"] = group_size
    settings |= {"algorithm": algorithm} if algorithm != "auto" else {}
    return settings | ({"ignore": list(ignore)} if ignore else {})


def _sizes(info: ModelInfo, result: Plan) -> dict[str, int] | None:
    """Bytes before and after, estimated from shapes."""
    if info.size is None:
        return None
    stored = _BYTES.get(str(info.facts.get("dtype")), 4)
    saved = 0.0
    for entry in result.layers:
        row, elements = entry.row(), prod(entry.layer.shape)
        if row["quantized"] and row.get("weight"):
            bits = int(re.findall(r"\d+", row["weight"])[0])
            channels = entry.layer.shape[entry.layer.channel_axis] if entry.layer.shape else 1
            scales = elements / row["group_size"] if row.get("group_size", 0) > 0 else channels
            saved += elements * stored - (elements * bits + scales * _SCALE_BITS) / 8
    return {"original": info.size, "result": max(int(info.size - saved), 0)}


def _estimates(info: ModelInfo, result: Plan, more: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Memory and time of calibrating a language model block by block."""
    samples = more.get("samples") or option("samples").default_for("quantize")
    length = min(more.get("max_length") or option("max_length").default, info.facts.get("max_positions") or 1 << 40)
    held_out = min(max(round(HELD_OUT_SHARE * samples), LEAST_HELD_OUT), MOST_HELD_OUT)
    gpu = _has_gpu()
    width, blocks = info.facts.get("hidden_size"), info.facts.get("num_hidden_layers") or 1
    elements = sum(prod(entry.layer.shape) for entry in result.layers)
    facts: dict[str, Any] = {"algorithm": "gptq with data, scale_search without" if algorithm == "auto" else algorithm}
    value_bytes = 2 if gpu else 4
    if isinstance(width, int):
        activations = 2 * (samples + held_out) * length * width * value_bytes  # of the quantized and the float model
        widest = max(entry.layer.shape[1 - entry.layer.channel_axis] for entry in result.layers)
        block = 3 * elements / blocks * value_bytes + 4 * 2 * widest**2
        facts["activations_bytes"] = activations
        sequences = f"{plural(samples + held_out, 'sequence')} of {plural(length, 'token')}"
        facts["memory"] = (
            f"about {megabytes(int(activations + block))}: activations {megabytes(activations)} ({sequences}),"
            f" one block {megabytes(int(block))}"
        )
    operations = 2.0 * elements * samples * length * _FORWARD_PASSES
    cores = os.cpu_count() or 1
    seconds = operations / (_GPU_RATE if gpu else _CPU_RATE * cores)
    facts["time"] = f"roughly {_duration(seconds)} on {'a GPU' if gpu else plural(cores, 'core')} with data"
    return facts


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
