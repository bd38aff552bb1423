# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run, from the best evidence there is: the task's metric, else decisions, else outputs.

A limit is passed only if the whole 95 % interval lies beyond it: few samples cannot condemn a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRIC_OK, METRIC_BROKEN = 0.01, 0.10
"""Relative loss of the task's metric."""
PERPLEXITY_OK, PERPLEXITY_BROKEN = 1.03, 1.5
"""Ratio of perplexities."""
AGREEMENT_OK, AGREEMENT_BROKEN = 0.98, 0.80
"""Share of equal decisions."""
SQNR_OK, SQNR_BROKEN = 18.0, 6.0
"""Decibels; the last resort, since outputs may differ where no decision does."""


def verdict(quality: Mapping[str, Any]) -> tuple[str, str]:
    """`ok`, `degraded`, `broken` or `not-measured`, with a sentence.

    Args:
        quality: what a comparison found; see `Comparison.facts` and `TokenComparison.facts`.

    >>> verdict({"samples": 32, "finite": True, "agreement": 1.0, "agreement_interval": (0.89, 1.0)})
    ('ok', 'no significant change in the outputs')
    >>> verdict({"samples": 32, "finite": True, "perplexity_ratio": 1.1, "perplexity_ratio_interval": (1.05, 1.15)})
    ('degraded', 'perplexity 10.0% higher (5.0 to 15.0)')
    """
    if not quality.get("samples"):
        return "not-measured", "no held-out samples"
    if not quality["finite"]:
        return "broken", "the result does not work: its outputs are not finite"
    if quality.get("constant"):
        return "broken", "the result does not work: its outputs are all the same"
    if "metric_loss" in quality:
        return _by_metric(quality)
    if "perplexity_ratio" in quality:
        return _by_perplexity(quality)
    if "agreement" in quality:
        return _by_agreement(quality)
    return _by_sqnr(quality)


def _by_metric(quality: Mapping[str, Any]) -> tuple[str, str]:
    name, loss, (low, _) = quality["metric"], quality["metric_loss"], quality["metric_loss_interval"]
    text = f"{name} {loss:.1%} lower than the original's"
    if low > METRIC_BROKEN:
        return "broken", f"the result does not work: {text}"
    return ("degraded", text) if low > 0 and loss > METRIC_OK else ("ok", f"no significant change in {name}")


def _by_perplexity(quality: Mapping[str, Any]) -> tuple[str, str]:
    ratio, (low, high) = quality["perplexity_ratio"], quality["perplexity_ratio_interval"]
    interval = f"({100 * (low - 1):.1f} to {100 * (high - 1):.1f})"
    if low > PERPLEXITY_BROKEN:
        times = f"{ratio:.1f} times the original's" if ratio < 1e4 else "beyond all bounds"
        return "broken", f"the result does not work: perplexity {times}"
    if low > 1 and ratio > PERPLEXITY_OK:
        return "degraded", f"perplexity {ratio - 1:.1%} higher {interval}"
    if low > 1:
        return "ok", f"perplexity {ratio - 1:.1%} higher {interval}, within {PERPLEXITY_OK - 1:.0%}"
    return "ok", "no significant change of perplexity"


def _by_agreement(quality: Mapping[str, Any]) -> tuple[str, str]:
    agreement, (_, high) = quality["agreement"], quality["agreement_interval"]
    if high < AGREEMENT_BROKEN:
        count = quality["samples"]
        return "broken", f"the result does not work: agreement with the original {agreement:.0%}, {count} held-out samples"
    if high < AGREEMENT_OK:
        return "degraded", f"agreement with the original {agreement:.1%}"
    return "ok", "no significant change in the outputs"


def _by_sqnr(quality: Mapping[str, Any]) -> tuple[str, str]:
    sqnr = quality.get("sqnr_db", 200.0)
    text = f"SQNR {sqnr:.1f} dB (outputs only, no decisions compared)"
    if sqnr < SQNR_BROKEN:
        return "broken", f"the result does not work: {text}"
    return ("degraded" if sqnr < SQNR_OK else "ok"), text
