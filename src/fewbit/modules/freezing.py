# SPDX-License-Identifier: Apache-2.0
"""Freezing a model: the fastest kernel for each quantized layer, weights in that kernel's own packing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.modules.frozen import Terms, device_of, freeze_layer, thaw_layer


def freeze(model: nn.Module, *, exact: bool = False) -> list[dict[str, Any]]:
    """Give every quantized layer its fastest kernel, in place. A second call changes nothing.

    Args:
        model: with quantized layers, where it shall run: kernels belong to a device.
        exact: let no kernel compute less precisely than the layer's own forward. Without it int4 layers of float32
            models compute in bfloat16, which is several times faster and adds about a thirtieth of the error that int4
            has.

    Returns:
        A line a layer: `layer`, `kernel` (none where its own forward stays, on weights dequantized whole in each call),
        `why` (what is worth knowing of the choice), and the weights' `bytes_before` (as floats) and `bytes_after`
        (everything that is kept for them now).

    >>> freeze(nn.Linear(2, 2))
    []
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"{type(model).__name__} cannot be frozen", expected="an nn.Module with quantized layers")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Quantized)}
    users = Counter(_address(part) for module in layers.values() for part in _codes(module))
    report = []
    for name, layer in layers.items():
        if layer.coded:
            terms = Terms(device_of(layer), exact, shared=any(users[_address(part)] > 1 for part in _codes(layer)))
            report.append(_frozen(name, layer, terms))
    return report


def unfreeze(model: nn.Module) -> None:
    """Put every layer's codes back where they were before `freeze`, in place."""
    for module in model.modules():
        if isinstance(module, Quantized):
            thaw_layer(module)


def held_bytes(layer: Quantized) -> int:
    """Bytes of everything a layer keeps for its weights: codes and scales, in whatever form."""
    kept = [buffer for name in layer.kept_buffers() if (buffer := layer._buffers.get(name)) is not None]
    kept += [] if layer.kernel is None else layer.kernel.tensors()
    return sum({_address(tensor): _nbytes(tensor) for tensor in kept}.values())


def _frozen(name: str, layer: Quantized, terms: Terms) -> dict[str, Any]:
    if layer.kernel is not None and layer.kernel.terms != terms:
        thaw_layer(layer)
    refused = {} if layer.kernel is not None else freeze_layer(layer, terms)
    kernel = layer.kernel
    why = [] if kernel is None or not kernel.note else [kernel.note]
    why += _reasons(kernel.refused if kernel is not None else refused)
    if kernel is None:
        why = [*(why or ["no kernel for this kind of layer"]), "its weights are dequantized whole in each call"]
    return {
        "layer": name,
        "kernel": None if kernel is None else kernel.name,
        "why": "; ".join(why),
        "bytes_before": sum(prod(coded.shape) * coded.dtype.itemsize for coded in layer.coded.values()),
        "bytes_after": held_bytes(layer),
    }


def _reasons(refused: Mapping[str, str]) -> list[str]:
    """Why not each kernel; what holds for several is said once."""
    names: dict[str, list[str]] = {}
    for name, reason in refused.items():
        names.setdefault(reason, []).append(name)
    return [f"not {', '.join(several)}: {reason}" for reason, several in names.items()]


def _codes(layer: Quantized) -> Iterator[Tensor]:
    for name in layer.coded:
        packed = layer._buffers.get(f"{name}_packed")
        if packed is not None:
            yield packed


def _address(tensor: Tensor) -> tuple[str, int]:
    """The same for tensors that lie in the same memory; a layout of oneDNN's own has memory of its own."""
    if tensor.is_mkldnn:
        return "mkldnn", id(tensor)
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _nbytes(tensor: Tensor) -> int:
    if tensor.is_mkldnn:
        return int(torch.ops.mkldnn._nbytes(tensor))
    return tensor.untyped_storage().nbytes()
