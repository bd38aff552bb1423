# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalization (Nagel et al., arXiv 1906.04721, section 4.1): both sides of a channel get similar ranges.

The classical smoothing sqrt(r1 / r2) makes the range r1 of a layer's rows equal to the range r2 of the columns that
read them. Ranges of the activation, other divisions of the difference and half of it are tried too; the expected error
decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from fewbit.algorithms._base import Scaling, ScalingProblem
from fewbit.algorithms._scaling import ScalingError, best_scaling, check_finite, factor_ranges, range_smoothing

_ALPHAS, _STRENGTHS = (0.5, 0.75, 1.0), (1.0, 0.5)
"""1/2 divides the difference between both sides; 1 gives it to consumers: depthwise ones have a scale per channel."""
_ROWS = 256


class Equalization:
    """Equalizes channel ranges between layers; data is optional."""

    name = "equalization"
    stage = "scaling"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {"margin": 0.1}

    def scale(self, problem: ScalingProblem, *, margin: float = 0.1) -> Scaling:
        """Factors for the channels between producers and consumers.

        Args:
            problem: producers and consumers; with moments, their ranges count too.
            margin: share by which the expected error must fall.

        >>> import numpy as np
        >>> from fewbit.algorithms._base import ScaledLayer
        >>> from fewbit.numerics.dtypes import Dtype
        >>> from fewbit.numerics.grid import QuantizationGrid
        >>> grid = QuantizationGrid(Dtype.int4)
        >>> reads = ScaledLayer(np.array([[1.0, 0.02], [0.9, 0.01]], np.float32), [0, 1], grid)
        >>> writes = ScaledLayer(np.array([[0.02], [1.0]], np.float32), [0, 1], grid)
        >>> scaling = ALGORITHM.scale(ScalingProblem("x", 2, [reads], [writes]))
        >>> bool(scaling.factors[0] > 5 * scaling.factors[1]), scaling.error < scaling.error_unscaled / 10
        (True, True)
        """
        check_finite(problem)
        error = ScalingError(problem, search=False, rows=_ROWS)
        activations, producers, consumers = factor_ranges(error)
        candidates = []
        for by, first in (("activation", activations), ("weight", producers)):
            for alpha, strength in product(_ALPHAS, _STRENGTHS):
                smoothing = range_smoothing(first, consumers, activations, alpha, strength)
                candidates.append(({"by": by, "alpha": alpha, "strength": strength}, smoothing))
        return best_scaling(error, candidates, margin)


ALGORITHM = Equalization()
