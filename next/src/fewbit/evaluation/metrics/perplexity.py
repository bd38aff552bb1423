# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a language model: how many tokens it hesitates between."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf
from typing import Any

import numpy as np

from fewbit.evaluation.metrics._base import IGNORED_LABEL, Metric, Row, ratio

_MOST = 700.0
"""Of an exponent in float64."""


def _row(output: Any, label: Any) -> Row | None:
    """Loss over all positions, and how many there are; the logits at a position predict the next token."""
    logits, tokens = np.asarray(output), np.asarray(label)
    if logits.ndim != 2 or tokens.ndim != 1 or tokens.dtype.kind not in "iu" or len(tokens) != len(logits):
        return None
    scores, following = logits[:-1].astype(np.float64), tokens[1:]
    counted = following != IGNORED_LABEL
    scores, following = scores[counted], following[counted]
    scores = scores - scores.max(-1, keepdims=True)
    losses = np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(following)), following]
    return float(losses.sum()), float(len(following))


def _compute(rows: Sequence[Row]) -> float:
    return exp(min(ratio(rows), _MOST))


METRIC = Metric(
    "perplexity", "Exponential of the mean loss per token of a language model", _row, _compute,
    ([np.eye(3)[[1, 2, 0]]], [np.array([0, 1, 2])]), low=1.0, high=inf, higher_is_better=False,
)  # fmt: skip
