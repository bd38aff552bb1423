# SPDX-License-Identifier: Apache-2.0
"""How close two language models are on the same sequences: perplexity, KL divergence, agreement of the next token."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

from fewbit.numerics.ops import Array

# Two-sided 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class TokenComparison:
    """Adds up two models' next-token distributions, sequence by sequence."""

    def __init__(self) -> None:
        self.sequences: list[dict[str, float]] = []

    def add(self, original: Array, result: Array, tokens: Array, mask: Array | None = None) -> None:
        """Compare the logits of a batch.

        Args:
            original: torch, [sequences, tokens, vocabulary].
            result: of the same shape.
            tokens: [sequences, tokens].
            mask: 1 for real tokens, of the same shape; all by default.
        """
        for index in range(len(tokens)):
            labels = tokens[index, 1:].to(original.device)
            expected = original[index, :-1].float().log_softmax(-1)
            actual = result[index, :-1].float().log_softmax(-1)
            if mask is not None:
                real = mask[index, 1:].bool().to(original.device)
                labels, expected, actual = labels[real], expected[real], actual[real]
            if not len(labels):
                continue
            picked = labels[:, None]
            self.sequences.append({
                "tokens": len(labels),
                "original": -float(expected.gather(1, picked).double().sum()),
                "result": -float(actual.gather(1, picked).double().sum()),
                "divergence": float((expected.exp() * (expected - actual)).sum(-1).double().sum()),
                "same": float((expected.argmax(-1) == actual.argmax(-1)).sum()),
            })  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Perplexities, their ratio with a 95 % interval paired by sequence, KL divergence, agreement."""
        count = len(self.sequences)
        total = {key: sum(sequence[key] for sequence in self.sequences) for key in ("tokens", "original", "result", "divergence", "same")}
        if not count:
            return {"samples": 0}
        tokens = total["tokens"]
        finite = all(value == value and abs(value) != float("inf") for value in total.values())
        facts: dict[str, Any] = {"samples": count, "tokens": int(tokens), "finite": finite}
        if not finite:
            return facts
        drop = (total["result"] - total["original"]) / tokens
        half = _half_interval([
            (sequence["result"] - sequence["original"] - drop * sequence["tokens"]) / (tokens / count)
            for sequence in self.sequences
        ])  # fmt: skip
        shares = [(sequence["same"] - total["same"] / tokens * sequence["tokens"]) / (tokens / count) for sequence in self.sequences]
        share, share_half = total["same"] / tokens, _half_interval(shares)
        return facts | {
            "perplexity": [exp(min(total["original"] / tokens, 700)), exp(min(total["result"] / tokens, 700))],
            "perplexity_ratio": exp(min(drop, 700)),
            "perplexity_ratio_interval": [exp(min(drop - half, 700)), exp(min(drop + half, 700))],
            "divergence": total["divergence"] / tokens,
            "agreement": share,
            "agreement_interval": [max(share - share_half, 0.0), min(share + share_half, 1.0)],
        }


def _half_interval(deviations: list[float]) -> float:
    """Half of the 95 % interval of a ratio of sums, from its deviations per sequence (Student's t)."""
    count = len(deviations)
    if count < 2:
        return float("inf")
    spread = sqrt(sum(value * value for value in deviations) / (count - 1) / count)
    return spread * (_T[count - 2] if count - 1 <= len(_T) else 1.96)
