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
        if isinstance(module, nn.TransformerEncoderLayer) and _holds_quantized(module):
            if _long_way not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_long_way)
        elif isinstance(module, nn.TransformerEncoder) and _holds_quantized(module):
            module.use_nested_tensor = False  # nested tensors exist on the short cut only


def _holds_quantized(module: nn.Module) -> bool:
    return any(isinstance(part, Quantized) for part in module.modules())


def _long_way(module: nn.Module, args: Any) -> None:
    """Torch takes the long way when there are hooks to call."""
