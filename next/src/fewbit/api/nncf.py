# SPDX-License-Identifier: Apache-2.0
"""Verbs under the names and signatures of NNCF, translated to `quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from fewbit.api._modules import ModuleRequest, run_module
from fewbit.api.options import refuse_later
from fewbit.api.quantize import quantize
from fewbit.config.presets import CompressWeightsMode, preset_for_mode
from fewbit.data.inputs.modules import is_module
from fewbit.errors import UsageError
from fewbit.progress import Run, make_progress
from fewbit.record.schema import Record

_BACKUPS = {"none": "none", "int8_sym": "int8", "int8_asym": "int8", "int8": "int8"}


def compress_weights(
    model: Any,
    mode: Any = CompressWeightsMode.INT8_ASYM,
    ratio: float | None = None,
    group_size: int | None = None,
    ignored_scope: Any = None,
    all_layers: bool | None = None,
    dataset: Any = None,
    sensitivity_metric: Any = None,
    *,
    subset_size: int = 128,
    awq: bool | None = None,
    scale_estimation: bool | None = None,
    gptq: bool | None = None,
    lora_correction: bool | None = None,
    backup_mode: Any = None,
    advanced_parameters: Any = None,
    progress: Any = None,
    return_record: bool = False,
    **options: Any,
) -> Any:
    """Store the weights in fewer bits; a copy comes back, the model given is never changed.

    Args:
        model: a PyTorch module, or whatever `quantize` takes.
        mode: `CompressWeightsMode`, or its text.
        ratio: share of layers in the narrow type; not built yet.
        group_size: weights that share a scale; -1 for a complete channel.
        ignored_scope: layers to leave in float.
        all_layers: quantize embeddings and the output layer to the same type.
        dataset: samples that scales are fitted to and the result is measured with.
        sensitivity_metric: of `ratio`.
        subset_size: items of the dataset to use: batches of a loader.
        awq: rescale activations first; not built yet.
        scale_estimation: search for scales of least error, which is always done.
        gptq: round with error feedback; needs a dataset.
        lora_correction: not supported.
        backup_mode: of embeddings and the output layer: `none`, `int8_sym` or `int8_asym`.
        advanced_parameters: not supported.
        progress: None (automatic), True, False, or an object.
        return_record: return `(result, Record)`.
        options: of `quantize`, for models other than modules.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64))
    >>> compress_weights(net, "int4_sym", group_size=32)[0].weight_scale.shape
    torch.Size([64, 2])
    """
    later: Mapping[str, Any] = {
        "ratio": None if ratio in (None, 1, 1.0) else ratio, "awq": awq, "lora_correction": lora_correction,
        "advanced_parameters": advanced_parameters,
    }  # fmt: skip
    for name, value in later.items():
        if value:
            raise refuse_later(name, value, "compress_weights", "it has no effect on this version's result")
    preset = preset_for_mode(mode)
    algorithm = "gptq" if gptq else None
    backup = "same" if all_layers else _backup(backup_mode)
    if not is_module(model):
        given = {"group_size": group_size, "algorithm": algorithm, "backup_precision": _given(backup, backup_mode)}
        more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return quantize(
            model, dataset, preset=preset, ignore=ignored_scope or (), progress=progress, return_record=return_record,
            **more, **options,
        )  # fmt: skip
    if options:
        raise TypeError(f"compress_weights() got an unexpected keyword argument {next(iter(options))!r}")
    request = ModuleRequest(
        preset, ignore=ignored_scope or (), group_size=group_size, algorithm=algorithm, backup_precision=backup,
        subset_size=subset_size, freeze=True,
    )  # fmt: skip
    run, record = Run(make_progress(progress)), Record("quantize")
    try:
        module = run_module(model, dataset, request, run, record)
    finally:
        run.close()
    return (module, record) if return_record else module


def _backup(mode: Any) -> str:
    if mode is None:
        return "int8"
    name = str(mode.value if isinstance(mode, Enum) else mode).lower()
    if name not in _BACKUPS:
        raise UsageError(
            f"no backup mode is called {name!r}", code="backup-mode", where="backup_mode=",
            expected=", ".join(_BACKUPS), hint="int8_asym",
        )  # fmt: skip
    return _BACKUPS[name]


def _given(backup: str, mode: Any) -> str | None:
    """The default of the verb holds unless something was named."""
    return None if mode is None and backup == "int8" else backup
