# SPDX-License-Identifier: Apache-2.0
"""Weights that learn are kept in fp32, whatever the model computes in: a small step would be lost in fewer bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

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
        if isinstance(module, Quantized):  # whose scales are what they are; what their codes stand for is read in fp32
            found |= {
                f"{path}.{weight}".lstrip("."): c.dtype for weight, c in module.coded.items() if c.dtype in _NARROW
            }
            module.coded = {weight: replace(coded, dtype=torch.float32) for weight, coded in module.coded.items()}
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
        name = name.replace(".base_layer.", ".")  # where an adapter was, when it was widened
        if name in parameters:
            parameters[name].data = parameters[name].data.to(dtype)
        elif name in buffers:
            path, _, key = name.rpartition(".")
            model.get_submodule(path)._buffers[key] = buffers[name].to(dtype)
        elif name in coded:
            module, weight = coded[name]
            module.coded = {**module.coded, weight: replace(module.coded[weight], dtype=dtype)}
