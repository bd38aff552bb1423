# SPDX-License-Identifier: Apache-2.0
"""The protocol of a weight algorithm: it names the statistics it needs, and every path provides them.

A file here defines `ALGORITHM`. An algorithm is a function of arrays: it runs no model and knows no backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class InputMoments:
    """Means over calibration rows (tokens, pixels) of the input x of a layer; x' is that of the float model.

    Args:
        count: rows.
        second_moment: x², [in].
        absmax: largest |x|, [in].
        hessian: x xᵀ, [in, in].
        input_gap: (x' - x) xᵀ, [in, in].
        output_gap: (y' - y) xᵀ, [out, in]: what the output y of this layer lacks, all earlier losses included.
    """

    count: int
    second_moment: Array | None = None
    absmax: Array | None = None
    hessian: Array | None = None
    input_gap: Array | None = None
    output_gap: Array | None = None


@dataclass(frozen=True)
class LayerProblem:
    """A weight to quantize.

    Args:
        name: of the layer, for errors.
        weight: [out, in], float32; kernels of convolutions are flattened into `in`.
        grid: the values it may take.
        moments: of the layer's input; `None` without calibration data.
        shared: what layers that read the same input have in common, such as a factorized Hessian.
    """

    name: str
    weight: Array
    grid: QuantizationGrid
    moments: InputMoments | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class WeightAlgorithm(Protocol):
    """Chooses scales and integers for one weight."""

    name: str
    statistics: frozenset[str]
    """Fields of `InputMoments` that must be there."""
    requires: str | None
    """The library it needs beyond numpy, such as torch."""
    settings: Mapping[str, Any]
    """Its own settings with their defaults."""

    def quantize(self, problem: LayerProblem, **settings: Any) -> QTensor:
        """The quantized weight."""
        ...
