# SPDX-License-Identifier: Apache-2.0
"""The scale above all blocks of a two-level grid, shared by weights that runtimes make one matrix of.

Runtimes join layers that lie beside each other and read the same input, and keep one such scale for the joined matrix.
It only says what the scales of blocks are counted in, so sharing costs nothing that could be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem
from fewbit.engine.plan import WeightPlan
from fewbit.model.points import Point


def super_scales(read: Callable[[Point], Tensor], weights: Iterable[WeightPlan]) -> dict[str, Tensor]:
    """The scale of every weight on a two-level grid, by the weight's name: the largest of its family.

    A family are matrices of one module that read as many features. Whether they read the same is not asked: one more
    weight under the same scale does no harm.

    Args:
        read: gives a weight.
        weights: of a plan.
    """
    families: dict[object, list[WeightPlan]] = {}
    for w in weights:
        if w.grid.two_level:
            alone = () if len(w.point.shape) == 2 else (w.point.name,)
            parent = w.point.layer.rpartition(".")[0]
            families.setdefault((parent, w.point.shape[-1], w.grid, *alone), []).append(w)
    found: dict[str, Tensor] = {}
    for family in families.values():
        own = [rtn.qparams(Problem(read(w.point), w.grid, w.block)).super_scale for w in family]
        largest = torch.stack([scale for scale in own if scale is not None]).amax()
        found |= {w.point.name: largest for w in family}
    return found
