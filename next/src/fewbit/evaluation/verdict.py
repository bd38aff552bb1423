# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run, from the best evidence there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AGREEMENT_OK, AGREEMENT_BROKEN = 0.98, 0.80
SQNR_OK, SQNR_BROKEN = 18.0, 6.0


def verdict(quality: Mapping[str, Any]) -> tuple[str, str]:
    """`ok`, `degraded`, `broken` or `not-measured`, with a sentence.

    >>> verdict({"samples": 32, "finite": True, "agreement": 1.0, "agreement_interval": (0.89, 1.0)})
    ('ok', 'no significant change in the outputs')
    """
    if not quality.get("samples"):
        return "not-measured", "no held-out samples"
    count = quality["samples"]
    if not quality["finite"]:
        return "broken", "the result does not work: its outputs are not finite"
    if "agreement" in quality:
        agreement, (_, high) = quality["agreement"], quality["agreement_interval"]
        if high < AGREEMENT_BROKEN:
            return (
                "broken",
                f"the result does not work: agreement with the original {agreement:.0%}, {count} held-out samples",
            )
        if high < AGREEMENT_OK:
            return "degraded", f"agreement with the original {agreement:.1%}"
        return "ok", "no significant change in the outputs"
    sqnr = quality.get("sqnr_db", 200.0)
    if sqnr < SQNR_BROKEN:
        return "broken", f"the result does not work: SQNR {sqnr:.1f} dB (outputs only, no decisions compared)"
    if sqnr < SQNR_OK:
        return "degraded", f"SQNR {sqnr:.1f} dB (outputs only, no decisions compared)"
    return "ok", f"SQNR {sqnr:.1f} dB (outputs only, no decisions compared)"
