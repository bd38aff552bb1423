# SPDX-License-Identifier: Apache-2.0
"""AWQ (Lin et al., arXiv 2306.00978): channels with large inputs are multiplied before rounding, so they lose less.

Smoothing factors are rms(x)^r, or rms(x)^r / mean|w|^(1 - r), centered by sqrt(max · min); r is tried on a lattice, and
the error of really rounding the weights decides. The paper takes mean|x|; here it is the root of the second moment, by
which the error is weighted. Its second part, clipping, is what the scale search does for every group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fewbit.algorithms._base import Scaling, ScalingProblem
from fewbit.algorithms._scaling import ScalingError, best_scaling, check_finite, limited
from fewbit.errors import UsageError
from fewbit.numerics.ops import namespace

_ROWS, _FINALISTS = 64, 2
"""Rows of each weight for the first choice; candidates that are judged by all rows."""
_LEAST_INPUT, _LEAST_WEIGHT = 0.1, 0.01
"""Shares of the median that a channel counts for at least: other samples may light channels that these did not."""


class Awq:
    """Rescales input channels by their size, as far as rounding the weights then loses less."""

    name = "awq"
    stage = "scaling"
    statistics = frozenset({"second_moment"})
    requires = None
    settings: Mapping[str, Any] = {"steps": 20, "margin": 0.01}

    def scale(self, problem: ScalingProblem, *, steps: int = 20, margin: float = 0.01) -> Scaling:
        """Factors for the input channels of all consumers.

        Args:
            problem: consumers with `second_moment`.
            steps: exponents tried from 0 to 1.
            margin: share by which the error must fall.

        >>> from fewbit.algorithms._base import InputMoments, ScaledLayer
        >>> from fewbit.numerics.dtypes import Dtype
        >>> from fewbit.numerics.grid import QuantizationGrid
        >>> moments = InputMoments(9, second_moment=np.array([100.0, 1.0], np.float32))
        >>> weight = np.array([[0.3, 1.0], [0.4, -1.0]], np.float32)
        >>> layer = ScaledLayer(weight, [0, 1], QuantizationGrid(Dtype.int3), moments)
        >>> scaling = ALGORITHM.scale(ScalingProblem("x", 2, [layer]))
        >>> bool(scaling.factors[0] < scaling.factors[1]), scaling.error < scaling.error_unscaled
        (True, True)
        """
        if steps < 1:
            raise UsageError(
                f"steps = {steps!r} for awq", code="awq-steps", where="steps", expected="an integer from 1 up",
                hint="steps=20",
            )  # fmt: skip
        check_finite(problem)
        quick = ScalingError(problem, search=True, rows=_ROWS)
        ranked = sorted(_candidates(quick, steps), key=lambda item: quick(item[1]))
        return best_scaling(ScalingError(problem, search=True), ranked[:_FINALISTS], margin)


def _candidates(error: ScalingError, steps: int) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    size = error.problem.size
    squares, weights = np.zeros(size), np.zeros(size)
    for side in error.consumers:
        squares += side.by_factor(side.square, size, "mean") / len(error.consumers)
        elements = side.kernel * side.layer.weight.shape[0] / side.layer.groups
        rms = namespace(side.energy).sqrt(side.energy / elements)
        weights += side.by_factor(rms, size, "mean") / len(error.consumers)
    live = (squares > 0) & (weights > 0)
    if not live.any():
        return
    x, w = np.zeros(size), np.zeros(size)
    inputs = np.sqrt(squares[live])
    x[live] = np.log(np.maximum(inputs, _LEAST_INPUT * np.median(inputs)))
    w[live] = np.log(np.maximum(weights[live], _LEAST_WEIGHT * np.median(weights[live])))
    for form, logs in (("input", 0 * w), ("input over weight", w)):
        for step in range(steps + 1):
            exponent = step / steps
            smoothing = np.where(live, exponent * x - (1 - exponent) * logs, 0.0)
            smoothing[live] -= (smoothing[live].max() + smoothing[live].min()) / 2
            if smoothing.any():
                yield {"form": form, "exponent": exponent}, limited(smoothing)


ALGORITHM = Awq()
