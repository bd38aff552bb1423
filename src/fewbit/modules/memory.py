# SPDX-License-Identifier: Apache-2.0
"""How much memory is free, and memory given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

_STATE = Path("/proc/meminfo")
_UNKNOWN = 16 << 30  # where nobody says how much is free


def free_memory(device: torch.device | None = None) -> int:
    """Bytes of memory that are free on a device, or on this machine."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if _STATE.is_file():
        lines = (line.split() for line in _STATE.read_text().splitlines())
        return next((int(line[1]) * 1024 for line in lines if line and line[0] == "MemAvailable:"), _UNKNOWN)
    return _UNKNOWN


def give_back() -> None:
    """Let the system have memory that is free but that the allocator of C keeps for later, where it can be asked."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
