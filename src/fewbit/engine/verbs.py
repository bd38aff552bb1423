# SPDX-License-Identifier: Apache-2.0
"""The verbs people call: `quantize`, `compress_weights`, `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.engine.checkpoint import compress_checkpoint, goes_file_to_file
from fewbit.engine.checkpoint_names import NeedsModel
from fewbit.engine.delivery import Delivery
from fewbit.engine.fitting import fit
from fewbit.engine.measuring import warn_of_result
from fewbit.engine.mixture import mixture, one_mode
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.planning import make_plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.reporting import warn_of_calibration
from fewbit.engine.run import view_of
from fewbit.engine.scoping import ignored, without
from fewbit.engine.stages import split_stages
from fewbit.engine.timing import seconds_to_solve
from fewbit.engine.usual import usual, with_cache
from fewbit.errors import UsageError
from fewbit.schemes.config import Config
from fewbit.schemes.modes import CompressWeightsMode
from fewbit.schemes.presets import preset as preset_config
from fewbit.schemes.scope import IgnoredScope
from fewbit.schemes.spec import QuantizationSpec


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
    kv_cache: str | Mapping[str, Any] | QuantizationSpec | None = None,
    advanced_parameters: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    format: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Any:
    """Quantize a model after training: weights, and activations with ranges from a few hundred samples.

    Of a language model, weights of up to four bits and of fp8 are settled by `gptq` where there is data, for inputs as
    they will be rounded; a configuration's `algo_config` names another algorithm. Where its layers are to read
    integers, `smooth_quant` evens out channels first, if the answers on samples kept aside come nearer.

    Args:
        model: an `nn.Module`, an ONNX `ModelProto`, or a path `fewbit quantize` takes. It is not changed.
        calibration_dataset: anything `Dataset` takes; may be left out where no activation is static.
        preset: a preset's name or a `Config`; `w8a8` by default. Up to four bits a preset's name leaves the head of a
            language model in float, and with it the table it shares its weight with; a `Config` means what it says.
        mode: a number format instead of a preset: `"fp8"`, `"mxfp4"` ….
        target: where it will run: `"onnxruntime"` (the default), `"openvino"` or `"generic"` for an ONNX model,
            `"torch"` for a module.
        subset_size: how much of the data is read, as in NNCF: of a loader, a list or anything else that yields model
            inputs, so many items, each with all the samples in its batch; of files, tensors and datasets without a
            batch axis, so many samples. What can be indexed is sampled at random by a fixed seed, over all of it and
            each class in proportion where labels are known; of a stream the first ones are read, with a warning.
        fast_bias_correction: biases make up for what rounding a weight does to the mean of the layer's output; if not,
            layer after layer for what all rounding before it does, which takes longer.
        model_type: not needed: what a model is made of is found by looking.
        ignored_scope: layers that stay in float.
        kv_cache: what keys and values of a language model's cache become: `"fp8"` or `"int8"` with one fixed scale a
            layer, as runtimes read them, `"int8_dynamic"` with a scale a token, or a spec.
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
    options = Options.read(advanced_parameters, target=target, correct=correct, prepare=None)
    config = with_cache(configuration(preset or mode or "w8a8"), kv_cache)
    view = view_of(model)
    deliver = Delivery(view, output, options, formats=[format] if isinstance(format, str) else format)
    data = calibration_dataset is not None
    config = usual(config, view, named=not isinstance(preset, Config), data=data)
    quantizer = ModelQuantizer(without(config, ignored_scope, view))
    deliver.refuse(view, make_plan(view, quantizer.config))
    result = quantizer.quantize_view(
        view,
        calibration_dataset,
        model=model,
        samples=subset_size,
        by_item=True,
        progress=progress,
        options=options,
        work=deliver.work,
        checked=True,
    )
    warn_of_calibration(quantizer.record)
    made = deliver(quantizer, result)
    warn_of_result(quantizer.record)
    return made


def compress_weights(
    model: Any,
    *,
    mode: str | CompressWeightsMode | Sequence[str | CompressWeightsMode] | None = None,
    bits: float | None = None,
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
        mode: what weights become: `int8_asym` (if nothing is said), `int4_sym`, `nf4`, `mxfp4` ….
        bits: instead of a mode, 2, 3, 4 or 8. A fraction, such as 4.5, is what a weight has at most on average, scales
            included: each layer gets the one of several modes with which the model's answers suffer least. Those are
            int4 and int8 of the kind of `mode` (narrower ones for fewer bits), or the modes that `mode` lists.
            Embeddings and the last layer are not counted in unless `all_layers`.
        group_size: elements that share a scale; the mode's own by default.
        ratio: the share of the weights that become `mode`, those that suffer least; the others become `int8_asym`.
        dataset: samples to weigh errors with, and to see what the answers suffer from; optional.
        algorithm: how codes are found: `gptq`, `scale_search`, or `rtn` for plain rounding. By default, and with
            `"auto"`, `gptq` up to four bits if there is data, else `scale_search`; the record says which.
            `"awq"` scales channels that carry much before weights are rounded by `scale_search`, `"awq+gptq"` before
            they are settled by `gptq`; both only if the answers on samples kept aside come nearer.
        ignored_scope: layers that stay in float.
        all_layers: embeddings and the last layer too; below eight bits they are `int8_asym` otherwise.
        subset_size: how much of `dataset` is read, items of a loader or else samples; see `quantize`.
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
    algorithm, options = split_stages(algorithm, options, data=dataset is not None, statistics=statistics is not None)
    formats = [format] if isinstance(format, str) else list(format)
    single = one_mode(mode, bits, ratio)
    data_free = dataset is None and statistics is None and single is not None
    opened = None
    if output is not None and data_free and goes_file_to_file(model, formats, algorithm):
        try:
            return compress_checkpoint(
                model, output, mode=str(single), group_size=group_size, algorithm=algorithm, format=formats[0],
                ignored_scope=ignored_scope, all_layers=all_layers, progress=progress,
            )  # fmt: skip
        except NeedsModel as why:
            opened = why.what
    view = view_of(model)
    deliver = Delivery(view, output, options, formats=formats)
    config = mixture(
        view,
        mode,
        bits=bits,
        ratio=ratio,
        group_size=group_size,
        algorithm=algorithm,
        all_layers=all_layers,
        exclude=ignored(ignored_scope, view),
        data=dataset is not None or statistics is not None,
    )
    quantizer = ModelQuantizer(config)
    deliver.refuse(view, make_plan(view, quantizer.config))
    result = quantizer.quantize_view(
        view,
        dataset,
        model=model,
        samples=subset_size,
        by_item=True,
        progress=progress,
        options=options,
        work=deliver.work,
        checked=True,
        statistics=None if statistics is None else Path(statistics).expanduser(),
        refuse=partial(deliver.refuse, view),
    )
    warn_of_calibration(quantizer.record)
    if opened is not None:
        quantizer.record.note("model-opened", f"not compressed file to file: {opened}")
    made = deliver(quantizer, result)
    warn_of_result(quantizer.record)
    return made


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
    chosen = usual(chosen, view, named=config is None and not isinstance(preset, Config), data=False)
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
