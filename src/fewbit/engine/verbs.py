# SPDX-License-Identifier: Apache-2.0
"""The verbs people call: `quantize`, `compress_weights`, `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.checkpoint import compress_checkpoint, goes_file_to_file
from fewbit.engine.checkpoint_names import NeedsModel
from fewbit.engine.compression import compression
from fewbit.engine.delivery import Delivery
from fewbit.engine.fitting import fit
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.planning import make_plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.run import view_of
from fewbit.engine.scoping import ignored, without
from fewbit.engine.timing import seconds_to_solve
from fewbit.errors import UsageError
from fewbit.schemes.config import Config
from fewbit.schemes.modes import CompressWeightsMode
from fewbit.schemes.presets import preset as preset_config
from fewbit.schemes.scope import IgnoredScope


def quantize(
    model: Any,
    calibration_dataset: Any = None,
    *,
    preset: str | Config | None = None,
    mode: str | None = None,
    target: str | None = None,
    subset_size: int = 300,
    fast_bias_correction: bool = True,
    model_type: str | None = None,
    ignored_scope: IgnoredScope | None = None,
    advanced_parameters: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    format: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Any:
    """Quantize a model after training: weights, and activations with ranges from a few hundred samples.

    Args:
        model: an `nn.Module`, an ONNX `ModelProto`, or a path `fewbit quantize` takes. It is not changed.
        calibration_dataset: anything `Dataset` takes; may be left out where no activation is static.
        preset: a preset's name or a `Config`; `w8a8` by default.
        mode: a number format instead of a preset: `"fp8"`, `"mxfp4"` ….
        target: where it will run: `"onnxruntime"` (the default), `"openvino"` or `"generic"` for an ONNX model,
            `"torch"` for a module.
        subset_size: how many samples are read.
        fast_bias_correction: biases make up for what rounding a weight does to the mean of the layer's output; if not,
            layer after layer for what all rounding before it does, which takes longer.
        model_type: not needed: what a model is made of is found by looking.
        ignored_scope: layers that stay in float.
        advanced_parameters: see `fewbit.engine.options.Options`.
        output: a folder to export to, or the file of an ONNX model; the path is then returned.
        format: what is written there, of `fewbit list exporters`; fewbit's own if not said. With several each has a
            folder of its name in the output. What a format cannot hold is refused before any work.
        progress: shows how far it is.

    Returns:
        A frozen model of the kind that was given, with its `fewbit_record`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()
    >>> quantize(model, [torch.randn(2, 16) for _ in range(4)])(torch.zeros(1, 16)).shape
    torch.Size([1, 4])
    """
    _refuse_no_samples(subset_size)
    if preset is not None and mode is not None:
        raise UsageError(f"preset={preset!r} and mode={mode!r}", expected="one of the two")
    if model_type not in (None, "transformer"):
        raise UsageError(f"model_type={model_type!r}", expected="'transformer', or None: it is found by looking")
    correct = "fast_bias_correction" if fast_bias_correction else "bias_correction"
    options = Options.read(advanced_parameters, target=target, correct=correct)
    config = configuration(preset or mode or "w8a8")
    view = view_of(model)
    deliver = Delivery(view, output, options, formats=[format] if isinstance(format, str) else format)
    quantizer = ModelQuantizer(without(config, ignored_scope, view))
    deliver.refuse(view, make_plan(view, quantizer.config))
    result = quantizer.quantize_view(
        view,
        calibration_dataset,
        model=model,
        samples=subset_size,
        progress=progress,
        options=options,
        work=deliver.work,
    )
    return deliver(quantizer, result)


def compress_weights(
    model: Any,
    *,
    mode: str | CompressWeightsMode = "int8_asym",
    group_size: int | None = None,
    ratio: float | None = None,
    dataset: Any = None,
    algorithm: str | None = None,
    ignored_scope: IgnoredScope | None = None,
    all_layers: bool = False,
    subset_size: int = 128,
    target: str | None = None,
    statistics: str | Path | None = None,
    advanced_parameters: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    format: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Any:
    """Compress a model's weights and leave its activations alone.

    Args:
        model: an `nn.Module`, or a path. It is not changed. A Hugging Face folder that goes to a checkpoint format
            without data is not even opened: its files are read and written tensor by tensor.
        mode: what weights become: `int8_asym`, `int4_sym`, `nf4`, `mxfp4` ….
        group_size: elements that share a scale; the mode's own by default.
        ratio: the share of the weights that become `mode`, the least sensitive ones; the others become `int8_asym`.
        dataset: samples to weigh errors with; optional.
        algorithm: how codes are found: `gptq`, `scale_search`, or `rtn` for plain rounding. By default, and with
            `"auto"`, `gptq` for modules up to four bits if there is data, else `scale_search`; the record says which.
        ignored_scope: layers that stay in float.
        all_layers: embeddings and the last layer too; below eight bits they are `int8_asym` otherwise.
        subset_size: how many samples of `dataset` are read.
        target: where it will run; see `quantize`.
        statistics: a folder for the second moments of what layers read. With a dataset they are kept there, in a new
            folder; without one weights are settled from those that are there, in seconds, whatever the mode.
        advanced_parameters: `accuracy_level` of MatMulNBits in ONNX models.
        output: a folder to export to, or the file of an ONNX model; the path is then returned.
        format: what is written there, of `fewbit list exporters`; fewbit's own if not said. With several each has a
            folder of its name in the output. What a format cannot hold is refused before any work.
        progress: shows how far it is.

    Returns:
        A frozen model of the kind that was given, with its `fewbit_record`.
    """
    _refuse_no_samples(subset_size)
    options = Options.read(advanced_parameters, target=target)
    formats = [format] if isinstance(format, str) else list(format)
    data_free = dataset is None and statistics is None and ratio is None
    opened = None
    if output is not None and data_free and goes_file_to_file(model, formats, algorithm):
        try:
            return compress_checkpoint(
                model, output, mode=mode, group_size=group_size, algorithm=algorithm, format=formats[0],
                ignored_scope=ignored_scope, all_layers=all_layers, progress=progress,
            )  # fmt: skip
        except NeedsModel as why:
            opened = why.what
    view = view_of(model)
    deliver = Delivery(view, output, options, formats=formats)
    config = compression(
        view,
        mode,
        group_size=group_size,
        ratio=ratio,
        algorithm=algorithm,
        all_layers=all_layers,
        exclude=ignored(ignored_scope, view),
        data=dataset is not None or statistics is not None,
    )
    quantizer = ModelQuantizer(config)
    deliver.refuse(view, make_plan(view, config))
    result = quantizer.quantize_view(
        view,
        dataset,
        model=model,
        samples=subset_size,
        progress=progress,
        options=options,
        work=deliver.work,
        statistics=None if statistics is None else Path(statistics).expanduser(),
    )
    if opened is not None:
        quantizer.record.note("model-opened", f"not compressed file to file: {opened}")
    return deliver(quantizer, result)


def plan(
    model: Any,
    *,
    preset: str | Config | None = None,
    config: str | Config | None = None,
    target: str | None = None,
    time: bool = True,
) -> Plan:
    """What would happen to which layer, at what cost; nothing is read or changed.

    Args:
        model: an `nn.Module`, or a path.
        preset: a preset's name; `w8a8` by default.
        config: a configuration instead.
        target: where it will run; see `quantize`.
        time: solve a small piece of the largest weight to estimate the time.

    >>> import torch
    >>> plan(torch.nn.Sequential(torch.nn.Linear(64, 64)), preset="w4a16").bytes_before
    16640
    """
    if preset is not None and config is not None:
        raise UsageError("both preset and config were given", expected="one of the two")
    chosen = configuration(config if config is not None else preset or "w8a8")
    view = view_of(model)
    Delivery(view, None, Options(target=target))  # which refuses the target of another kind of model
    made = fit(make_plan(view, chosen), view, target)
    if time and (seconds := seconds_to_solve(view, made)) is not None:
        made.facts["solve_seconds"] = seconds
    return made


def configuration(chosen: str | Config) -> Config:
    """A configuration, or that of a preset's name."""
    return chosen if isinstance(chosen, Config) else preset_config(chosen)


def _refuse_no_samples(subset_size: int) -> None:
    if isinstance(subset_size, bool) or not isinstance(subset_size, int) or subset_size < 1:
        raise UsageError(f"subset_size={subset_size!r}", where="subset_size", expected="a whole number from 1 up")
