# SPDX-License-Identifier: Apache-2.0
"""The cache of a language model, in float while it is trained: codes have no gradient, and nothing is generated."""

from __future__ import annotations

from typing import Any

from torch import nn

from fewbit.modules.kv_cache import attach_cache, detach_cache


def pause_cache(model: nn.Module) -> None:
    """Take the codecs of every quantized cache off, in place; they stay with the module."""
    for module in list(model.modules()):
        own: Any = module
        if "fewbit_cache" in module._modules:
            codecs = {int(index): pair for index, pair in own.fewbit_cache.items()}
            detach_cache(module)
            vars(own)["paused_cache"] = codecs  # not registered: nothing of it learns


def resume_cache(model: nn.Module) -> None:
    """Undo `pause_cache`, in place."""
    for module in list(model.modules()):
        codecs = vars(module).pop("paused_cache", None)
        if codecs is not None:
            place = next(module.parameters(), None)
            for pair in codecs.values():
                pair.to(None if place is None else place.device)
            attach_cache(module, codecs)
