# SPDX-License-Identifier: Apache-2.0
"""How the learning rate goes: a function of the step alone, so that a resumed run needs no state for it."""

from __future__ import annotations

import math
from collections.abc import Callable

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""What of the highest rate is left when a share of the steps after the warm-up is done."""


def factor(schedule: str, step: int, total: int, warmup: float) -> float:
    """The share of the highest learning rate in one step.

    Args:
        schedule: one of `SCHEDULES`.
        step: from 0.
        total: how many steps there are.
        warmup: how many of them lead up to the highest rate; below 1 a share of all.

    >>> [round(factor("linear", step, 6, 2), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = math.ceil(warmup * total) if 0 < warmup < 1 else int(warmup)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule](min(1.0, (step - rising) / max(1, total - rising)))
