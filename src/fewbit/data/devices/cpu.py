# SPDX-License-Identifier: Apache-2.0
"""The processor: batches stay where they are made."""

from __future__ import annotations

import torch


def missing() -> str | None:
    """Never."""
    return None


def count() -> int:
    """All cores are one device."""
    return 1


def device(index: int) -> torch.device:
    """The one there is."""
    return torch.device("cpu")
