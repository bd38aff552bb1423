# SPDX-License-Identifier: Apache-2.0
"""Masks that grow: which weights are zero when there are to be more zeros than there were.

A weight's score is its size. One that is pruned scores below all that are not, so it is among those that go whatever
the others are: how many are zero is exact at every change, and a weight that was pruned never comes back. Unless it may
regrow: then some of the smallest weights that are left give way to those, pruned or not, that the loss asks for most,
told by their gradients (RigL, Evci et al., arXiv 1911.11134).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fewbit.numerics.sparsity import Pattern, kept

_BEHIND = -1e-30
"""The score of what is pruned: below zero, and so near to it that it takes nothing from the sum of a block."""


def grown(
    weights: Mapping[str, Tensor],
    pruned: Mapping[str, Tensor],
    pattern: Pattern,
    share: float,
    *,
    together: bool = False,
    wanted: Mapping[str, Tensor] | None = None,
    regrow: float = 0.0,
) -> dict[str, Tensor]:
    """The elements that are zero when a share of all is.

    Args:
        weights: by name, in fewbit's layout, `[out, in]` or `[out, in, kernel…]`.
        pruned: by name, the elements that are zero already; names may be missing.
        pattern: what may be zero at the end. On the way to N:M the elements go one by one that will not be kept.
        share: how many are zero now; not above the pattern's own.
        together: one share for all weights together; if not, for each of them.
        wanted: by name, how much the loss asks for each element; not for N:M.
        regrow: the share of the weights that are left which go by that and not by their size.

    Returns:
        By name, true for what is zero.

    >>> grown({"a": torch.tensor([[3.0, 1.0, 2.0, 4.0]])}, {}, Pattern.read("2:4"), 0.25)["a"]
    tensor([[False,  True, False, False]])
    """
    scores = {name: _scores(weight, pruned.get(name)) for name, weight in weights.items()}
    if wanted is None:
        keeps = _chosen(scores, pattern, share, together)
        return {name: ~keep | pruned[name] if name in pruned else ~keep for name, keep in keeps.items()}
    largest = _chosen(scores, pattern, share + regrow * (1 - share), together)
    asked = {name: wanted[name].masked_fill(keep, torch.inf) for name, keep in largest.items()}
    return {name: ~keep for name, keep in _chosen(asked, pattern, share, together).items()}


def _chosen(scores: Mapping[str, Tensor], pattern: Pattern, share: float, together: bool) -> dict[str, Tensor]:
    """By name, the elements that are kept."""
    if not together:
        return {name: _kept(score, pattern, share) for name, score in scores.items()}
    flat = torch.cat([score.flatten() for score in scores.values()])
    parts = torch.split(kept(flat[None], Pattern(share))[0], [score.numel() for score in scores.values()])
    return {name: part.reshape(score.shape) for (name, score), part in zip(scores.items(), parts)}


def _kept(scores: Tensor, pattern: Pattern, share: float) -> Tensor:
    if not pattern.of:
        return kept(scores, replace(pattern, share=share))
    stay = kept(scores, pattern)
    if share >= pattern.share:
        return stay
    return stay | kept(scores.masked_fill(stay, torch.inf), Pattern(share))


def _scores(weight: Tensor, pruned: Tensor | None) -> Tensor:
    size = weight.detach().float().abs()
    return size if pruned is None else size.masked_fill(pruned, _BEHIND)
