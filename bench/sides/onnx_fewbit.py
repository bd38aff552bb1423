# SPDX-License-Identifier: Apache-2.0
"""fewbit, through its public API, with nothing but defaults."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fewbit

VARIANTS = ("fewbit",)


def quantize(variant: str, path: Path, samples: list[dict[str, np.ndarray]], out: Path) -> None:
    """From a file to a file."""
    fewbit.quantize(str(path), samples, output=str(out))
