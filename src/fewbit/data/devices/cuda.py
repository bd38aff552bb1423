# SPDX-License-Identifier: Apache-2.0
"""Graphics processors of NVIDIA, and of AMD under ROCm: copied from pinned memory beside the computation."""

from __future__ import annotations

import torch

STREAMS = True


def missing() -> str | None:
    """Why CUDA cannot be used."""
    if torch.cuda.is_available():
        return None
    built = torch.version.cuda or torch.version.hip
    return "this PyTorch is built without CUDA" if built is None else "PyTorch finds no CUDA device"


def count() -> int:
    """Those that are visible."""
    return torch.cuda.device_count()


def device(index: int) -> torch.device:
    """One of them."""
    return torch.device("cuda", index)
