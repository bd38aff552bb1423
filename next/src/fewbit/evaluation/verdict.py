# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run, from the best evidence there is: the task's metric, else decisions, else outputs.

A limit is passed only if the whole 95 % interval lies beyond it: few samples cannot condemn a model. Decisions that
change between near ties cannot either: a result whose outputs are close is never broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.errors import plural

METRIC_OK, METRIC_BROKEN = 0.01, 0.10
"""Relative loss of the task's metric."""
PERPLEXITY_OK, PERPLEXITY_BROKEN = 1.03, 1.5
"""Ratio of perplexities."""
AGREEMENT_OK, AGREEMENT_BROKEN = 0.98, 0.80
"""Share of equal decisions."""
RARE_BROKEN = 0.60
"""The same of what a classifier chooses besides its most frequent class."""
COSINE_OK, COSINE_BROKEN = 0.95, 0.50
"""Similarity of embeddings; a retrieval that works still had 0.70."""
SQNR_OK, SQNR_BROKEN = 18.0, 6.0
"""Decibels; the last resort, since outputs may differ where no decision does."""
CLOSE_SQNR, CLOSE_UNSURE_SQNR = 20.0, 7.0
"""Decibels from which outputs are close: of scores, and of what may be scores or an embedding."""
LEAST_SAMPLES = 2
"""One sample has no interval."""

Verdict = tuple[str, str]
_BROKEN = "the result does not work: "


def verdict(quality: Mapping[str, Any]) -> Verdict:
    """`ok`, `degraded`, `broken` or `not-measured`, with a sentence.

    Args:
        quality: what a comparison measured; see `Comparison.facts` and `TokenComparison.facts`.

    >>> verdict({"samples": 32, "finite": True, "agreement": 1.0, "agreement_interval": (0.89, 1.0)})
    ('ok', 'no significant change in the outputs')
    >>> verdict({"samples": 32, "finite": True, "perplexity_ratio": 1.1, "perplexity_ratio_interval": (1.05, 1.15)})
    ('degraded', 'perplexity 10.0% higher (5.0 to 15.0)')
    >>> verdict({"samples": 32, "finite": True, "agreement": 0.0, "agreement_interval": (0.0, 0.107)})
    ('broken', 'the result does not work: agreement with the original 0% (0 to 10.7), 32 held-out samples')
    """
    if not quality.get("samples"):
        return "not-measured", "no held-out samples"
    if not quality["finite"]:
        return "broken", f"{_BROKEN}its outputs are not finite"
    if quality.get("constant"):
        return "broken", f"{_BROKEN}its outputs are the same for every sample"
    if quality["samples"] < LEAST_SAMPLES:
        return "not-measured", "one sample has no confidence interval"
    if "metric_loss" in quality:
        return _by_metric(quality)
    if "perplexity_ratio" in quality:
        return _by_perplexity(quality)
    return _by_outputs(quality)


def _by_metric(quality: Mapping[str, Any]) -> Verdict:
    name, loss, (low, high) = quality["metric"], quality["metric_loss"], quality["metric_loss_interval"]
    direction = "lower" if quality.get("metric_higher_is_better", True) else "higher"
    text = f"{name} {loss:.1%} {direction} than the original's ({100 * low:.1f} to {100 * high:.1f})"
    if low > METRIC_BROKEN:
        return "broken", f"{_BROKEN}{text}"
    if low > 0 and loss > METRIC_OK:
        return "degraded", text
    # Few labels may not show what the decisions do.
    if loss > METRIC_OK and "agreement" in quality and _by_agreement(quality)[0] == "broken":
        return "degraded", _agreement_text(quality)
    return "ok", f"no significant change in {name}" if low <= 0 else f"{text}, within {METRIC_OK:.0%}"


def _by_perplexity(quality: Mapping[str, Any]) -> Verdict:
    ratio, (low, high) = quality["perplexity_ratio"], quality["perplexity_ratio_interval"]
    interval = f"({100 * (low - 1):.1f} to {100 * (high - 1):.1f})"
    if low > PERPLEXITY_BROKEN:
        times = f"{ratio:.1f} times the original's" if ratio < 1e4 else "beyond all bounds"
        return "broken", f"{_BROKEN}perplexity {times}"
    if low > 1 and ratio > PERPLEXITY_OK:
        return "degraded", f"perplexity {ratio - 1:.1%} higher {interval}"
    if low > 1:
        return "ok", f"perplexity {ratio - 1:.1%} higher {interval}, within {PERPLEXITY_OK - 1:.0%}"
    return "ok", "no significant change of perplexity"


def _by_outputs(quality: Mapping[str, Any]) -> Verdict:
    if "agreement" in quality:
        return _by_agreement(quality)
    if "cosine" in quality:
        return _by_cosine(quality)
    return _by_sqnr(quality)


def _by_agreement(quality: Mapping[str, Any]) -> Verdict:
    (_, high), text = quality["agreement_interval"], _agreement_text(quality)
    limit = CLOSE_UNSURE_SQNR if quality.get("unsure") else CLOSE_SQNR
    close = quality.get("decision_sqnr_db", quality.get("sqnr_db", 0.0)) >= limit
    if high < AGREEMENT_BROKEN and not close:
        return "broken", _BROKEN + text
    if "rare_agreement" in quality and quality["rare_agreement_interval"][1] < RARE_BROKEN and not close:
        rare = f"{quality['rare_agreement']:.0%} where the original does not choose its most frequent class"
        return "broken", f"{_BROKEN}{text}, {rare}"
    if quality.get("unsure") and quality.get("cosine", 0.0) >= COSINE_OK and high < AGREEMENT_OK:
        return _by_cosine(quality)
    if high < AGREEMENT_OK:
        return "degraded", text
    return "ok", "no significant change in the outputs"


def _agreement_text(quality: Mapping[str, Any]) -> str:
    low, high = (f"{100 * end:.1f}".removesuffix(".0") for end in quality["agreement_interval"])
    share = f"{100 * quality['agreement']:.1f}".removesuffix(".0")
    subject = f" of {quality['agreement_of']}" if quality.get("agreement_of") else ""
    samples = plural(quality["samples"], quality.get("unit", "held-out sample"))
    return f"agreement with the original {share}%{subject} ({low} to {high}), {samples}"


def _by_cosine(quality: Mapping[str, Any]) -> Verdict:
    cosine, (_, high) = quality["cosine"], quality["cosine_interval"]
    text = f"cosine similarity of the outputs {cosine:.3f}"
    if high < COSINE_BROKEN:
        return "broken", f"{_BROKEN}{text}"
    return ("degraded", text) if high < COSINE_OK else ("ok", f"no significant change in the outputs: {text}")


def _by_sqnr(quality: Mapping[str, Any]) -> Verdict:
    sqnr = quality.get("sqnr_db", 200.0)
    text = f"SQNR {sqnr:.1f} dB (outputs only, no decisions compared)"
    if sqnr < SQNR_BROKEN:
        return "broken", f"{_BROKEN}{text}"
    return ("degraded" if sqnr < SQNR_OK else "ok"), text
