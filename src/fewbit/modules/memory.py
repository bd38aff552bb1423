# SPDX-License-Identifier: Apache-2.0
"""How much memory is free, and memory given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

_STATE = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")  # what a container may have, which is not what the machine has
_UNKNOWN = 16 << 30  # where nobody says how much is free


def free_memory(device: torch.device | None = None) -> int:
    """Bytes of memory that are free on a device, or on this machine."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not _STATE.is_file():
        return _UNKNOWN
    lines = (line.split() for line in _STATE.read_text().splitlines())
    found = next((int(line[1]) * 1024 for line in lines if line and line[0] == "MemAvailable:"), _UNKNOWN)
    return min(found, _free_in_group(found))


def _free_in_group(otherwise: int) -> int:
    """Bytes that the limit of a container leaves; what it has of files in memory can be had back."""
    try:
        limit, used = int((_GROUP / "memory.max").read_text()), int((_GROUP / "memory.current").read_text())
        lines = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        files = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):  # no such files, or "max"
        return otherwise
    return max(limit - used + files, 0)


def give_back() -> None:
    """Let the system have memory that is free but that the allocator of C keeps for later, where it can be asked."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
