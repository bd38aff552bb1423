# SPDX-License-Identifier: Apache-2.0
"""Which weights to keep, all at once: the alternating directions of ALPS (X. Meng et al., 2024).

Two matrices are to agree: W answers as it shall, Z has the zeros of the pattern. In turn, W is the best answer held
back towards Z, and Z the nearest to W with such zeros; what they differ by adds up in V, and the force ρ that holds
them together grows, the slower the less the zeros still change. Weights are measured in what they give, w √H[j,j].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.algorithms._compensation import Compensation

_RHO = 0.03  # at first; the diagonal of H is 1 here
_PAUSE = 3  # steps between two changes of ρ
# How much ρ grows where at least such a share of the kept weights are others than before.
_GROWTH = ((0.1, 1.3), (0.005, 1.2), (0.0, 1.1))


@dataclass(frozen=True)
class Axes:
    """H in units of its diagonal, taken apart: Q diag(values) Qᵀ; and the units."""

    vectors: Tensor
    values: Tensor
    units: Tensor


def kept_by_turns(case: Compensation, steps: int) -> tuple[Tensor, Tensor, int]:
    """The mask that so many turns at most lead to.

    Returns:
        The mask and what the last Z was, `[out, columns]`, and how many turns it took.
    """
    axes, matrix = _axes(case), case.matrix
    aim = case.aim * axes.units
    # In the directions of Q everything but the zeros is a product.
    wish = case.by_lanes(lambda rows: (aim[rows] @ axes.vectors) * axes.values)
    mask = matrix.kept(aim.abs())
    zeros, force, rho = aim * mask, torch.zeros_like(aim), _RHO
    for step in range(1, steps + 1):

        def answer(rows: slice) -> Tensor:
            pulled = wish[rows] + (rho * zeros[rows] - force[rows]) @ axes.vectors  # noqa: B023
            return (pulled / (axes.values + rho)) @ axes.vectors.T  # noqa: B023

        free = case.by_lanes(answer)
        near = free + force / rho
        before, mask = mask, matrix.kept(near.abs())
        zeros = near * mask
        force += rho * (free - zeros)
        if step % _PAUSE == 0:
            changed = int((mask != before).sum()) / max(1, int(mask.sum()))
            if not changed:
                break
            rho *= next(growth for least, growth in _GROWTH if changed >= least)
    return mask, zeros / axes.units, step if steps else 0


def _axes(case: Compensation) -> Axes:
    known, key = case.matrix.flat.shared, ("prune", "axes", case.effort.damping, case.effort.apart)
    if key not in known:
        units = case.moment.gram.diagonal().sqrt()
        values, vectors = torch.linalg.eigh((case.moment.gram / units / units[:, None]).double())
        known[key] = Axes(vectors.float(), values.clamp(min=0).float(), units)
    found: Axes = known[key]
    return found
