# SPDX-License-Identifier: Apache-2.0
"""Wanda (Sun et al., arXiv 2306.11695): the smallest products of weight and input, |w| √E[x²], become zero.

They are compared within each output, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import PruningProblem
from fewbit.algorithms._pruning import apply_mask, input_scale, pruning_mask
from fewbit.numerics.ops import Array, namespace


class Wanda:
    """Removes the weights with the smallest products with their inputs."""

    name = "wanda"
    stage = "pruning"
    statistics = frozenset({"second_moment"})
    requires = None
    settings: Mapping[str, Any] = {"within_rows": True}

    def prune(self, problem: PruningProblem, *, within_rows: bool = True) -> Array:
        """The weight with the zeros of the pattern.

        Args:
            problem: with the second moment of the inputs.
            within_rows: compare only weights of the same output.

        >>> import numpy as np
        >>> from fewbit.algorithms._base import InputMoments
        >>> from fewbit.numerics.sparsity import SparsityPattern
        >>> moments = InputMoments(9, second_moment=np.array([1.0, 100.0], np.float32))
        >>> ALGORITHM.prune(PruningProblem("fc", np.array([[3.0, -1.0]]), SparsityPattern(0.5), moments)).tolist()
        [[0.0, -1.0]]
        """
        weight = problem.weight
        scores = namespace(weight).abs(weight) * input_scale(problem)
        mask = pruning_mask(weight, scores, problem.pattern, within_rows=within_rows)
        return apply_mask(weight, mask)


ALGORITHM = Wanda()
