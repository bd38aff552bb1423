# SPDX-License-Identifier: Apache-2.0
"""How far two models' scores are apart, position by position: in float64, a few positions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_AT_ONCE = 1 << 20
"""Scores that are looked at together: some twenty positions of a vocabulary of 50,000, which a cache can hold."""
_NEVER = -1e4
"""The logarithm of what a model rules out by a score of minus infinity; infinite sums would say less."""
_ROUNDED = 1e-3
"""How far probabilities in half precision may sum to something else than one."""


@dataclass(frozen=True)
class Divergence:
    """What two rows of scores make of each position.

    Args:
        kl: KL(ours ‖ theirs) in nats, `[positions]` in float64.
        same: whether the highest score is the same one, `[positions]`.
        surprise: minus the logarithm of what ours gives the target; zero where there is none; so `their_surprise`.
    """

    kl: Tensor
    same: Tensor
    surprise: Tensor
    their_surprise: Tensor


def divergence(ours: Tensor, theirs: Tensor, targets: Tensor | None = None) -> Divergence:
    """Hold two tables of scores against each other.

    Args:
        ours: `[positions, choices]`: logits, or probabilities where every row is one of those in both tables.
        theirs: the same of the other model.
        targets: what came next, `[positions]`; below zero where it is not known.

    >>> found = divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> float(found.kl), bool(found.same), round(float(found.surprise), 4)
    (0.0, True, 0.6931)
    """
    if targets is None:
        targets = torch.full((len(ours),), -1, dtype=torch.int64)
    likely = are_probabilities(ours) and are_probabilities(theirs)
    parts = [_part(ours[rows], theirs[rows], targets[rows], likely) for rows in _pieces(ours)]
    return Divergence(*(torch.cat(each) for each in zip(*parts)))


def are_probabilities(scores: Tensor) -> bool:
    """Whether every row sums to one and nothing is below zero.

    >>> are_probabilities(torch.tensor([[0.25, 0.75]])), are_probabilities(torch.tensor([[1.0, 1.0]]))
    (True, False)
    """
    pieces = (scores[rows].double() for rows in _pieces(scores))
    return all(bool((piece >= 0).all()) and bool(((piece.sum(-1) - 1).abs() < _ROUNDED).all()) for piece in pieces)


def _pieces(scores: Tensor) -> Iterator[slice]:
    step = max(1, _AT_ONCE // max(1, scores.shape[-1]))
    return (slice(start, start + step) for start in range(0, max(1, len(scores)), step))


def _part(ours: Tensor, theirs: Tensor, targets: Tensor, likely: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logs = [_logarithms(each, likely) for each in (ours, theirs)]
    p = logs[0].exp()
    kl = torch.linalg.vecdot(p, logs[0] - logs[1])
    if not bool(kl.isfinite().all()):
        # What ours never chooses adds nothing; what theirs never does, and ours would, adds much and not everything.
        kl = torch.where(p > 0, p * (logs[0] - logs[1].clamp(min=_NEVER)), 0).sum(-1)
    same = ours.argmax(-1) == theirs.argmax(-1)
    known = targets >= 0
    at = targets.clamp(min=0)[:, None]
    ours_of, theirs_of = (torch.where(known, -each.gather(-1, at)[:, 0].clamp(min=_NEVER), 0) for each in logs)
    return kl.clamp(min=0), same, ours_of, theirs_of  # rounding may leave a little below zero


def _logarithms(scores: Tensor, likely: bool) -> Tensor:
    wide = scores.double()
    if not likely:
        return wide.log_softmax(-1)
    # A probability of zero is one too small for its type.
    return (wide.clamp(min=torch.finfo(scores.dtype).tiny) / wide.sum(-1, keepdim=True)).log()
