# SPDX-License-Identifier: Apache-2.0
"""Torch's own short cuts through a transformer layer, closed where a quantized module lies on the way.

In evaluation `nn.TransformerEncoderLayer` hands the weights of its parts to one fused function and calls none of the
parts. That would pass by quantizers and kernels without a word, so the layer is made to take the long way.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fewbit.modules.coded import Quantized


def close_fast_paths(model: nn.Module) -> None:
    """Make every encoder layer that holds a quantized module call its parts; all others stay as they are."""
    for module in model.modules():
        if _has_fast_path(module) and any(isinstance(part, Quantized) for part in module.modules()):
            close_fast_path(module)


def fast_paths_around(model: nn.Module) -> dict[int, list[nn.Module]]:
    """For the `id` of each module that lies on short cuts, the modules that take them; one look for the whole model."""
    found: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        if _has_fast_path(module):
            for part in module.modules():
                found.setdefault(id(part), []).append(module)
    return found


def close_fast_path(module: nn.Module) -> None:
    """Make one encoder layer, or encoder, call its parts; a second call changes nothing."""
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False  # nested tensors exist on the short cut only
    elif _long_way not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_long_way)


def _has_fast_path(module: nn.Module) -> bool:
    return isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder)


def _long_way(module: nn.Module, args: Any) -> None:
    """Torch takes the long way when there are hooks to call."""
