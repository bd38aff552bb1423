# SPDX-License-Identifier: Apache-2.0
"""The graphics processor of a Mac."""

from __future__ import annotations

import torch


def missing() -> str | None:
    """Why Metal cannot be used."""
    return None if torch.backends.mps.is_available() else "PyTorch finds no Metal device"


def count() -> int:
    """A Mac has one."""
    return 1


def device(index: int) -> torch.device:
    """The one there is."""
    return torch.device("mps")
