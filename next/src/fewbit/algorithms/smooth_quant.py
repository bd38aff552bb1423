# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant (Xiao et al., arXiv 2211.10438): outlier channels of an activation are divided, their weights multiplied.

s = max|x|^α / max|w|^(1 - α) per channel. How much the weights can take differs between layers, so α is chosen by the
expected error of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import Scaling, ScalingProblem
from fewbit.algorithms._scaling import ScalingError, best_scaling, check_finite, factor_ranges, range_smoothing
from fewbit.errors import UsageError

_ALPHAS = tuple(step / 10 for step in range(11))
_ROWS = 256


class SmoothQuant:
    """Divides the outlier channels of an activation."""

    name = "smooth_quant"
    stage = "scaling"
    statistics = frozenset({"second_moment", "absmax"})
    requires = None
    settings: Mapping[str, Any] = {"alpha": None, "margin": 0.1}

    def scale(self, problem: ScalingProblem, *, alpha: float | None = None, margin: float = 0.1) -> Scaling:
        """Factors for the channels of an activation.

        Args:
            problem: consumers with `second_moment` and `absmax`.
            alpha: from 0 (all to the activation) to 1 (all to the weights); by default eleven are tried.
            margin: share by which the expected error must fall.

        >>> import numpy as np
        >>> from fewbit.algorithms._base import InputMoments, ScaledLayer
        >>> from fewbit.numerics.dtypes import Dtype
        >>> from fewbit.numerics.grid import QuantizationGrid
        >>> moments = InputMoments(9, np.array([0.1, 400.0], np.float32), np.array([1.0, 64.0], np.float32))
        >>> grid = QuantizationGrid(Dtype.int8)
        >>> layer = ScaledLayer(np.array([[0.5, 0.5], [-0.5, 0.5]], np.float32), [0, 1], grid, moments, grid)
        >>> ALGORITHM.scale(ScalingProblem("x", 2, [layer]), alpha=0.5).factors.round(6).tolist()
        [8.0, 1.0]
        """
        if alpha is not None and not 0 <= alpha <= 1:
            raise UsageError(
                f"alpha = {alpha!r} for smooth_quant", code="smooth-quant-alpha", where="alpha",
                expected="a number from 0 to 1", hint="alpha=0.5",
            )  # fmt: skip
        check_finite(problem)
        error = ScalingError(problem, search=False, rows=_ROWS)
        activations, _, consumers = factor_ranges(error)
        alphas = _ALPHAS if alpha is None else (alpha,)
        candidates = [({"alpha": a}, range_smoothing(activations, consumers, activations, a)) for a in alphas]
        return best_scaling(error, candidates, margin)


ALGORITHM = SmoothQuant()
