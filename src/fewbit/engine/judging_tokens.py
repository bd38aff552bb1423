# SPDX-License-Identifier: Apache-2.0
"""Two language models: perplexity, KL and the same first choice, position by position, padding left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewbit.engine.confidence import Estimate, Floats, quantile, ratio, share
from fewbit.engine.divergence import divergence
from fewbit.engine.non_finite import refuse_non_finite
from fewbit.engine.pairing import Pair


class TokenJudge:
    """Takes answers in and gives figures.

    Args:
        reads_ahead: whether the model sees the tokens it would have to guess; its perplexity means nothing then.
    """

    kind = "language"

    def __init__(self, *, reads_ahead: bool) -> None:
        self._reads_ahead = reads_ahead
        self._kl: list[Floats] = []
        self._same: list[int] = []
        self._surprise: list[float] = []
        self._theirs: list[float] = []
        self._guesses: list[int] = []
        self._worst: dict[str, Any] = {"value": -1.0}

    @property
    def samples(self) -> int:
        """Those that had a position at all."""
        return len(self._kl)

    def take(self, pair: Pair) -> None:
        """Take one item's answers in."""
        output = scores_of(pair)
        assert output is not None
        ours, theirs = pair.ours[output], pair.theirs[output]
        found, real = pair.question.tokens(ours), pair.question.real(ours)
        assert found is not None and real is not None
        nexts = _nexts(found[1], real)
        for row in range(len(ours)):
            kept = real[row].nonzero().flatten()
            if not len(kept):
                continue
            whole = len(kept) == len(real[row])  # a copy of the scores of a long text is large
            a, b = (each[row] if whole else each[row, kept] for each in (ours, theirs))
            targets = nexts[row, kept]
            refuse_non_finite(a, b, pair.question.place)
            apart = divergence(a, b, targets)
            self._kl.append(apart.kl.numpy())
            self._same.append(int(apart.same.sum()))
            self._surprise.append(float(apart.surprise.sum()))
            self._theirs.append(float(apart.their_surprise.sum()))
            self._guesses.append(int((targets >= 0).sum()))
            at = int(apart.kl.argmax())
            if (value := float(apart.kl[at])) > self._worst["value"]:
                place = int(kept[at])
                self._worst = {
                    "value": value, "item": pair.item, "sample": pair.first + row, "position": place,
                    "token": int(found[1][row, place]), "place": pair.question.place,
                    **({"row": row} if len(ours) > 1 else {}),
                }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Everything found, each figure with its interval."""
        counts = [len(each) for each in self._kl]
        mean = ratio([each.sum() for each in self._kl], counts).at_least(0.0)
        found: dict[str, Any] = {
            "positions": sum(counts),
            "kl": {
                "mean": mean.to_dict(),
                "median": quantile(self._kl, 0.5).to_dict(),
                "p99": quantile(self._kl, 0.99).to_dict(),
                "worst": self._worst,
            },
            "agreement": share(self._same, counts).to_dict(),
        }
        if self._has_perplexity:
            original, compressed = (ratio(each, self._guesses) for each in (self._surprise, self._theirs))
            found["perplexity"] = {
                "original": original.exponential().to_dict(),
                "compressed": compressed.exponential().to_dict(),
                "log_difference": self._difference().to_dict(),
                "positions": sum(self._guesses),
            }
        return found

    def verdict(self) -> str:
        """What may be said, in words."""
        samples = f"{self.samples} sample{'s' if self.samples > 1 else ''}"
        if not self._has_perplexity:
            why = "it sees the tokens it would guess" if self._reads_ahead else "no sample has two tokens"
            return f"perplexity means nothing for this model and data: {why}; KL and agreement are of {samples}"
        rests = f"on {samples}, {sum(self._guesses)} positions"
        apart = self._difference()
        if apart.low is None or apart.high is None:
            return f"one sample gives no interval: whether the perplexity differs cannot be said ({rests})"
        change = apart.exponential()
        assert change.low is not None and change.high is not None
        ends = f"95 % interval {change.low - 1:+.2%} to {change.high - 1:+.2%}, {rests}"
        if apart.may_be(0.0):
            return f"no difference in perplexity could be shown: {change.value - 1:+.2%}, {ends}"
        return f"perplexity is {abs(change.value - 1):.2%} {'higher' if apart.value > 0 else 'lower'}: {ends}"

    @property
    def _has_perplexity(self) -> bool:
        return not self._reads_ahead and sum(self._guesses) > 0

    def _difference(self) -> Estimate:
        """Of the logarithms of the perplexities, sample by sample: what makes a text hard goes out of it."""
        return ratio([b - a for a, b in zip(self._surprise, self._theirs)], self._guesses)


def scores_of(pair: Pair) -> int | None:
    """Which of the answers are scores of the next token: one row a token id, and more choices than any id."""
    for output, answer in enumerate(pair.ours):
        found = pair.question.tokens(answer) if answer.ndim == 3 else None
        if found is not None and answer.shape[2] > max(1, int(found[1].max())):
            return output
    return None


def _nexts(ids: Tensor, real: Tensor) -> Tensor:
    """The token after each position, -1 where there is none or it is padding."""
    following = torch.full_like(ids, -1)
    following[:, :-1] = torch.where(real[:, :-1] & real[:, 1:], ids[:, 1:], -1)
    return following
