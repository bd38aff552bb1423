# SPDX-License-Identifier: Apache-2.0
"""Weights that learn are kept in fp32, whatever the model computes in: a small step would be lost in fewer bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fewbit.modules.frozen import thawed
from fewbit.modules.quantized import Quantized

_NARROW = (torch.float16, torch.bfloat16)


def widen(model: nn.Module, precision: str) -> dict[str, torch.dtype]:
    """Give parameters that learn fp32 values, in place; in a run that computes in fp32, all others of few bits too.

    Returns:
        The dtypes of what was changed, for `narrow`.
    """
    found: dict[str, torch.dtype] = {}
    for name, parameter in model.named_parameters():
        if parameter.dtype in _NARROW and (parameter.requires_grad or precision == "fp32"):
            found[name] = parameter.dtype
            parameter.data = parameter.data.float()
    if precision != "fp32":
        return found
    for path, module in model.named_modules():
        if isinstance(module, Quantized):  # whose scales are what they are
            for weight, coded in module.coded.items():
                if coded.dtype in _NARROW:
                    found[f"{path}.{weight}".lstrip(".")] = coded.dtype
                    _read_as(module, weight, torch.float32)
            continue
        for key, buffer in module.named_buffers(recurse=False):
            if buffer.dtype in _NARROW:
                found[f"{path}.{key}".lstrip(".")] = buffer.dtype
                module._buffers[key] = buffer.float()
    return found


def narrow(model: nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    """Give back the dtypes that `widen` changed, in place; what the model has no more is passed over."""
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    coded = {
        f"{path}.{weight}".lstrip("."): (module, weight)
        for path, module in model.named_modules()
        if isinstance(module, Quantized)
        for weight in module.coded
    }
    for name, dtype in dtypes.items():
        if name not in parameters and name not in coded:
            name = name.replace(".base_layer.", ".")  # where an adapter was, when it was widened
        if name in parameters:
            parameters[name].data = parameters[name].data.to(dtype)
        elif name in buffers:
            path, _, key = name.rpartition(".")
            model.get_submodule(path)._buffers[key] = buffers[name].to(dtype)
        elif name in coded:
            _read_as(*coded[name], dtype)


def _read_as(layer: Quantized, weight: str, dtype: torch.dtype) -> None:
    """Let the values of codes be read in another dtype, in place; a kernel is chosen anew."""
    with thawed(layer):
        layer.coded = {**layer.coded, weight: replace(layer.coded[weight], dtype=dtype)}
