# SPDX-License-Identifier: Apache-2.0
"""How close two language models are on the same sequences: perplexity, KL divergence, agreement of the next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, inf, isfinite
from typing import Any

import numpy as np

from fewbit.evaluation.intervals import ratio_interval, share_interval
from fewbit.numerics.ops import Array

_KEYS = ("tokens", "original", "result", "divergence", "same")
_LEAST_LOG = -1e4
"""For tokens that a model rules out with a logit of minus infinity: an infinite sum would say less."""
_MOST_EXPONENT = 700.0
_CHANGE = 1e-4
"""Of what changes at the last token: rounding changes earlier positions by less, attention to later tokens by more."""


class TokenComparison:
    """Adds up two models' next-token distributions, sequence by sequence.

    Args:
        looks_ahead: whether the original sees later tokens; its perplexity means nothing then, and is left out.
    """

    def __init__(self, *, looks_ahead: bool = False) -> None:
        self.looks_ahead = looks_ahead
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
            expected = original[index, :-1].float().log_softmax(-1).clamp(min=_LEAST_LOG)
            actual = result[index, :-1].to(original.device).float().log_softmax(-1).clamp(min=_LEAST_LOG)
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
        columns = {key: [sequence[key] for sequence in self.sequences] for key in _KEYS}
        total = {key: sum(values) for key, values in columns.items()}
        count, tokens = len(self.sequences), total["tokens"]
        if not count:
            return {"samples": 0}
        finite = all(map(isfinite, total.values()))
        facts: dict[str, Any] = {
            "samples": count, "unit": "held-out sequence", "tokens": int(tokens), "finite": finite
        }  # fmt: skip
        if not finite:
            return facts
        counts = columns["tokens"]
        facts |= {
            "divergence": max(total["divergence"] / tokens, 0.0),
            "divergence_interval": ratio_interval(columns["divergence"], counts, low=0.0),
            "agreement": total["same"] / tokens,
            "agreement_interval": share_interval(columns["same"], counts),
        }
        if self.looks_ahead:
            return facts
        drops = [after - before for before, after in zip(columns["original"], columns["result"])]
        low, high = ratio_interval(drops, counts)
        return facts | {
            "perplexity": [_exp(total["original"] / tokens), _exp(total["result"] / tokens)],
            "perplexity_ratio": _exp(sum(drops) / tokens),
            "perplexity_ratio_interval": [_exp(low), _exp(high)],
        }


def looks_ahead(logits: Callable[[Mapping[str, Any]], np.ndarray], inputs: Mapping[str, Any]) -> bool:
    """Whether a later token changes a model's outputs at earlier ones, as in encoders; tried with another last token.

    Args:
        logits: runs the model, [sequences, tokens, vocabulary].
        inputs: with `input_ids`, [sequences, tokens].
    """
    ids = np.array(inputs["input_ids"])
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(ids)))
    real = np.flatnonzero(mask[0])
    if len(real) < 2:
        return False
    last = int(real[-1])
    before = logits(inputs)
    ids[0, last] = ids[0, 0] if ids[0, last] != ids[0, 0] else (ids[0, last] + 1) % before.shape[-1]
    after = logits({**inputs, "input_ids": ids})
    earlier = mask[0, :last].astype(bool)
    there = float(np.abs(after[0, last] - before[0, last]).max())
    change = float(np.abs(after[0, :last][earlier] - before[0, :last][earlier]).max(initial=0.0))
    return change > _CHANGE * there > 0


def next_token_logits(outputs: Mapping[str, np.ndarray], inputs: Mapping[str, Any]) -> str | None:
    """The output with a score for every token of a vocabulary at every position; `None` if there is none."""
    ids = inputs.get("input_ids")
    if ids is None or np.ndim(ids) != 2:
        return None
    for name, array in outputs.items():
        if array.ndim == 3 and array.shape[:2] == tuple(np.shape(ids)) and array.shape[2] > int(np.max(ids)):
            return name
    return None


def _exp(exponent: float) -> float:
    return 0.0 if exponent == -inf else exp(min(exponent, _MOST_EXPONENT))
