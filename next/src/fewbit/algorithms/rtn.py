# SPDX-License-Identifier: Apache-2.0
"""Plain rounding: scales from the smallest and largest weight of a block, every weight to the nearest value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import LayerProblem
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max


class RoundToNearest:
    """Rounds to nearest, with scales from the extremes; needs no data."""

    name = "rtn"
    stage = "weight"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {}

    def quantize(self, problem: LayerProblem) -> QTensor:
        """The rounded weight."""
        shape = tuple(problem.weight.shape)
        block = problem.grid.weight_block(shape)
        low, high = BlockShape(shape, block).extremes(problem.weight)
        return QTensor.encode(problem.weight, qparams_from_min_max(low, high, problem.grid, block))


ALGORITHM = RoundToNearest()
