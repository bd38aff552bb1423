# SPDX-License-Identifier: Apache-2.0
"""What few bits cost a network and what learning brings back, and how sure that is with so many pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

TOO_LITTLE = 0.003
"""Accuracy that has to be lost for a share of it to mean anything."""
DRAWN = 4000


def shares(plain: np.ndarray, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """What was lost and what of it came back, each with the interval that holds it in 95 % of draws of the pictures.

    Args:
        plain: which pictures the float network named right.
        before: which the network in few bits did.
        after: which it did when it had learned.
    """
    kinds = np.bincount(4 * plain + 2 * before + after, minlength=8)  # pictures draw together what became of them
    drawn = np.random.default_rng(0).multinomial(len(plain), kinds / len(plain), DRAWN)
    right = {name: np.array([bool(kind & bit) for kind in range(8)]) for name, bit in (("f", 4), ("b", 2), ("a", 1))}

    def numbers(counts: np.ndarray) -> tuple[Any, Any]:
        f, b, a = (counts @ right[name] for name in "fba")
        with np.errstate(divide="ignore", invalid="ignore"):
            return (f - b) / len(plain), (a - b) / (f - b)

    loss, recovered = numbers(kinds)
    losses, recoveries = numbers(drawn)
    sure = _ends(losses)[0] > 0  # else the share is one of something that may be nothing
    return {
        "before": float(before.mean()),
        "loss": float(loss),
        "loss_95": _ends(losses),
        "recovered": float(recovered) if loss > 0 else None,
        "recovered_95": _ends(recoveries) if sure else None,
    }


def _ends(values: np.ndarray) -> list[float]:
    return [float(end) for end in np.quantile(values, [0.025, 0.975])]
