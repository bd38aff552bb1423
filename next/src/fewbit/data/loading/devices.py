# SPDX-License-Identifier: Apache-2.0
"""Which device batches are put on: auto, cpu, gpu, cuda:N, mps, qaic:N."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fewbit.errors import FewbitWarning, UsageError, nearest, require

WORDS = ("auto", "cpu", "gpu", "cuda", "mps", "qaic")


@dataclass(frozen=True)
class ComputeDevice:
    """A device.

    Args:
        name: such as `cuda:0`.
        device: what `tensor.to` takes.
        reason: why it is this one.
    """

    name: str
    device: Any
    reason: str

    @property
    def pins_memory(self) -> bool:
        """Whether copies from pinned memory run next to the computation."""
        return self.name.startswith("cuda")


def choose_device(name: Any = "auto", *, required: bool = False) -> ComputeDevice:
    """Resolve a device name to a device.

    Args:
        name: a word of `WORDS`, with `:N` for one of several, or a `torch.device`.
        required: raise an error if the device is unavailable, instead of a warning and the CPU.

    Raises:
        UsageError: unknown name; or the device is unavailable and required.
    """
    torch = require("torch", extra="torch", purpose="batches on a device")
    text = str(name).strip().lower()
    word, _, number = text.partition(":")
    if word not in WORDS:
        raise UsageError(
            f"there is no device {text!r}", code="device-unknown", param="target_device",
            expected=", ".join(nearest(word, WORDS) or WORDS), hint="{target_device=auto}",
        )  # fmt: skip
    if word == "cpu":
        return ComputeDevice("cpu", torch.device("cpu"), "as requested")
    reasons = []
    for kind in ("cuda", "mps") if word in ("gpu", "auto") else (word,):
        count, reason = _DEVICES[kind](torch)
        if count and (not number or (number.isdigit() and int(number) < count)):
            # Processes of torchrun on one machine take one device each.
            index = int(number) if number else int(os.environ.get("LOCAL_RANK", "0")) % count
            device_name = "mps" if kind == "mps" else f"{kind}:{index}"
            return ComputeDevice(device_name, torch.device(device_name), f"target_device={text!r}")
        reasons.append(reason if not count else f"{kind} has {count} devices, from {kind}:0 to {kind}:{count - 1}")
    missing = f"target_device={text!r} is not available: {'; '.join(reasons)}"
    if required:
        raise UsageError(
            missing, code="device-missing", param="target_device", expected="a device of this machine",
            hint="{target_device=auto}, or custom_config={'require_device': False}",
        )  # fmt: skip
    if word != "auto":
        hint = "custom_config={'require_device': True} makes this an error"
        warning = FewbitWarning(f"{missing}; batches stay on the CPU", code="device-missing", hint=hint)
        warnings.warn(warning, stacklevel=3)
    return ComputeDevice("cpu", torch.device("cpu"), "; ".join(reasons) if word == "auto" else missing)


def _cuda(torch: Any) -> tuple[int, str]:
    return (torch.cuda.device_count() if torch.cuda.is_available() else 0), "PyTorch finds no CUDA GPU"


def _mps(torch: Any) -> tuple[int, str]:
    return int(torch.backends.mps.is_available()), "PyTorch finds no Metal GPU"


def _qaic(torch: Any) -> tuple[int, str]:
    try:
        importlib.import_module("torch_qaic")
    except ImportError as error:
        return 0, f"torch_qaic cannot be imported ({error}); it comes with the Qualcomm Cloud AI SDK"
    backend: Any = getattr(torch, "qaic", None)
    count = int(backend.device_count()) if backend is not None and backend.is_available() else 0
    return count, "torch_qaic finds no Cloud AI card"


_DEVICES: dict[str, Callable[[Any], tuple[int, str]]] = {"cuda": _cuda, "mps": _mps, "qaic": _qaic}
