# SPDX-License-Identifier: Apache-2.0
"""Bias correction (Nagel et al., arXiv 1906.04721, section 4.2): the mean output of a quantized layer is restored.

`weight_shift` gives the shift from the weights alone (the fast form: the layer is linear, so the mean output moves by
the change of the weight times the mean of its inputs); outputs of both models give it with everything included (the
sequential form). A channel is corrected only where that brings held-out samples nearer to their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.algorithms._base import BiasProblem, BiasShift
from fewbit.errors import DataError
from fewbit.numerics.ops import Array, cast, like, namespace


class BiasCorrection:
    """Adds to a bias what quantization took from the mean output."""

    name = "bias_correction"
    stage = "bias"
    statistics = frozenset({"mean"})
    requires = None
    settings: Mapping[str, Any] = {}

    def correct(self, problem: BiasProblem) -> BiasShift:
        """The correction of the channels where it helps on held-out samples; none without such samples.

        Raises:
            DataError: a mean is not finite.

        >>> import numpy as np
        >>> shift, held_out = np.array([1.0, 1.0, 0.0]), np.array([0.6, 0.4, 0.1])
        >>> ALGORITHM.correct(BiasProblem("fc", shift, held_out)).shift.tolist()
        [1.0, 0.0, 0.0]
        """
        if problem.held_out_shift is None:
            return BiasShift(None, {"corrected": 0, "reason": "too few samples to judge a correction by"})
        xp = namespace(problem.shift)
        shift, held_out = cast(problem.shift, "float64"), like(problem.held_out_shift, problem.shift, "float64")
        if not bool(xp.isfinite(shift).all() and xp.isfinite(held_out).all()):
            raise DataError(
                f"the mean output of the layer {problem.name} is not finite", code="bias-not-finite",
                where=problem.name, expected="finite outputs on the calibration data",
                hint="{ignore=" + problem.name + "}",
            )  # fmt: skip
        better = (xp.abs(held_out - shift) < xp.abs(held_out)) & (shift != 0)
        amount = xp.where(better, shift, xp.zeros_like(shift))
        corrected = int(better.sum())
        facts: dict[str, Any] = {
            "corrected": corrected, "channels": len(shift),
            "error_before": _relative(held_out, problem), "error": _relative(held_out - amount, problem),
        }  # fmt: skip
        return BiasShift(cast(amount, "float32") if corrected else None, facts)


def weight_shift(weight: Array, quantized: Array, input_mean: Array, groups: int = 1) -> Array:
    """Mean output of a float layer less that of the layer with a quantized weight, on the same inputs: [out], float64.

    Args:
        weight: [out, in / groups, kernel…].
        quantized: its quantized values.
        input_mean: [in, kernel…], the mean of what each element is multiplied with, padding included as zeros; [in] for
            layers without a kernel. So it is exact for every padding, stride and dilation.
        groups: of a convolution.

    >>> import numpy as np
    >>> weight_shift(np.array([[1.2, 0.9]]), np.array([[1.0, 1.0]]), np.array([3.0, 1.0])).round(6).tolist()
    [0.5]
    """
    rows = (cast(weight, "float64") - cast(quantized, "float64")).reshape((groups, weight.shape[0] // groups, -1))
    mean = like(input_mean, weight, "float64").reshape((groups, -1, 1))
    return (rows @ mean).reshape(-1)


def _relative(shift: Array, problem: BiasProblem) -> float:
    """The squared shift, as a share of the squared output if that is known."""
    square = shift * shift
    if problem.output_square is None:
        return float(square.mean())
    return float(square.sum()) / max(float(problem.output_square.sum()), 1e-300)


ALGORITHM = BiasCorrection()
