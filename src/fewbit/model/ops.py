# SPDX-License-Identifier: Apache-2.0
"""The neutral operations: what fewbit needs to know of a layer, whatever framework it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """One kind of layer.

    Args:
        name: the neutral name.
        features: the axis of its input that the weight's `in` axis is contracted with; none for table look-ups.
    """

    name: str
    features: int | None = -1


LINEAR = Op("linear")
CONV = Op("conv", features=1)
CONV_TRANSPOSE = Op("conv_transpose", features=1)
EMBEDDING = Op("embedding", features=None)
ATTENTION = Op("attention")  # projections inside one call, as in `nn.MultiheadAttention`
RECURRENT = Op("recurrent")
EXPERTS = Op("experts")  # a stack of linear layers in one tensor
CACHE = Op("cache")
