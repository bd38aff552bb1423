# SPDX-License-Identifier: Apache-2.0
"""Rounding to nearest with scales of least error, weighted by the second moment of the inputs where it is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import LayerProblem
from fewbit.algorithms._scale_search import search_scales
from fewbit.numerics.qtensor import QTensor


class ScaleSearch:
    """Rounds to nearest, with scales of least error; data is optional."""

    name = "scale_search"
    stage = "weight"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {}

    def quantize(self, problem: LayerProblem) -> QTensor:
        """The rounded weight."""
        importance = None if problem.moments is None else problem.moments.second_moment
        qparams = search_scales(problem.weight, problem.grid, importance, problem.shared.get("global_scale"))
        return QTensor.encode(problem.weight, qparams)


ALGORITHM = ScaleSearch()
