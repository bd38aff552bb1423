# SPDX-License-Identifier: Apache-2.0
"""How far the answers of what was written are from those of the model in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fewbit.errors import DataError
from fewbit.sparsity.deploying.samples import Arrays, Sample

TOLERANCE = 1e-3
"""Of the largest answer: runtimes add in other orders, and nothing else may differ."""

CODES_TOLERANCE = 0.05
"""The same for activations of 8 bits in another runtime. A sum next to a half is rounded to the next code where it is
added in another order, a step of 0.4 % of what an activation reaches, and later layers round on from there. A dozen
such steps in the largest answer are no matter of rounding any more."""


def largest_difference(answer: Callable[[Any], Arrays], samples: Sequence[Sample]) -> dict[str, float]:
    """The largest difference of any answer, as it is (`largest`) and as a share of that output's largest answer.

    Args:
        answer: of what was written, to a sample.
        samples: with the answers of the model in memory.

    Raises:
        DataError: an output that is missing, or of another shape.
    """
    largest = relative = 0.0
    for number, sample in enumerate(samples):
        found = answer(sample)
        for name, wanted in sample.outputs.items():
            if name not in found or found[name].shape != wanted.shape:
                shape = None if name not in found else list(found[name].shape)
                raise DataError(
                    f"the output {name!r} of sample {number} is {shape}", code="deployment", expected=list(wanted.shape)
                )
            if not wanted.size:
                continue
            there = np.isfinite(wanted)
            apart = np.abs(found[name].astype(np.float64) - wanted.astype(np.float64))
            off = float(apart[there].max(initial=0.0))
            if not np.isfinite(off) or (np.isfinite(found[name]) != there).any():
                off = float("inf")
            largest = max(largest, off)
            relative = max(relative, off / max(float(np.abs(wanted[there]).max(initial=0.0)), 1e-30) if off else 0.0)
    return {"samples": len(samples), "largest": largest, "relative": relative}


def refuse_difference(found: dict[str, float], what: str) -> None:
    """Refuse what answers otherwise than the model in memory.

    Raises:
        DataError: it does.
    """
    if not found["relative"] <= TOLERANCE:
        raise DataError(
            f"{what} answers otherwise than the model: by up to {found['largest']:.3g}, {found['relative']:.2%}",
            code="deployment",
            expected=f"at most {TOLERANCE:.1%} of the largest answer",
            try_="report it, with the model and the recipe",
        )
