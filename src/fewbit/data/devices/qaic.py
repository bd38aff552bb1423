# SPDX-License-Identifier: Apache-2.0
"""Cloud AI 100 accelerators of Qualcomm, through the package `torch_qaic` of their SDK."""

from __future__ import annotations

import importlib

import torch


def missing() -> str | None:
    """Why it cannot be used; importing the package is what makes PyTorch know the device."""
    try:
        importlib.import_module("torch_qaic")
    except ImportError as error:
        return f"the package torch_qaic cannot be imported ({error}); it comes with Qualcomm's Cloud AI SDK"
    backend = getattr(torch, "qaic", None)
    return "torch_qaic finds no device" if backend is not None and not backend.is_available() else None


def count() -> int:
    """Those the driver shows; one if it does not say."""
    ask = getattr(getattr(torch, "qaic", None), "device_count", None)
    return 1 if ask is None else int(ask())


def device(index: int) -> torch.device:
    """One of them."""
    return torch.device("qaic", index)
