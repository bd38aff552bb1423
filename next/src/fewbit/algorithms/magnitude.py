# SPDX-License-Identifier: Apache-2.0
"""Magnitude pruning: the smallest weights become zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import PruningProblem
from fewbit.algorithms._pruning import apply_mask, pruning_mask
from fewbit.numerics.ops import Array, namespace


class Magnitude:
    """Removes the smallest weights; needs no data."""

    name = "magnitude"
    stage = "pruning"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {}

    def prune(self, problem: PruningProblem) -> Array:
        """The weight with the zeros of the pattern.

        >>> import numpy as np
        >>> from fewbit.numerics.sparsity import SparsityPattern
        >>> ALGORITHM.prune(PruningProblem("fc", np.array([[3.0, -1.0]]), SparsityPattern(0.5))).tolist()
        [[3.0, 0.0]]
        """
        weight = problem.weight
        return apply_mask(weight, pruning_mask(weight, namespace(weight).abs(weight), problem.pattern))


ALGORITHM = Magnitude()
