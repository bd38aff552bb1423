# SPDX-License-Identifier: Apache-2.0
"""The smallest and the largest value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array, amax, amin, cast, namespace
from fewbit.observers._base import RangeObserver, State


@dataclass(kw_only=True, eq=False)
class MinMaxObserver(RangeObserver):
    """Range from the smallest to the largest value.

    >>> import numpy as np
    >>> from fewbit.numerics.dtypes import Dtype
    >>> observer = MinMaxObserver()
    >>> for batch in ([[1.0, 2.0]], [[-3.0, 0.0]]):
    ...     observer.update(np.array(batch, np.float32))
    >>> [end.tolist() for end in observer.range(QuantizationGrid(Dtype.int8))]
    [[-3.0], [2.0]]
    """

    name = "min_max"
    state_names = ("low", "high")
    reductions = frozenset({"min", "max"})

    def measure(self, rows: Array) -> dict[str, Array]:
        # Not `torch.aminmax`, which is six times slower along an axis.
        return {"low": amin(rows, 1), "high": amax(rows, 1)}

    def measure_reduced(self, reduced: Mapping[str, Array], count: int) -> dict[str, Array]:
        return {"low": cast(reduced["min"], "float32"), "high": cast(reduced["max"], "float32")}

    def combine(self, first: State, second: State) -> dict[str, Array]:
        xp = namespace(first["low"])
        return {"low": xp.minimum(first["low"], second["low"]), "high": xp.maximum(first["high"], second["high"])}

    def range(self, grid: QuantizationGrid, global_scale: Array | None = None) -> tuple[Array, Array]:
        return self.observed["low"], self.observed["high"]


class PerTensorMinMaxObserver(MinMaxObserver):
    """`min_max` with one scale per tensor, unless the spec says otherwise."""

    granularity = QSchemeType.per_tensor


class PerChannelMinMaxObserver(MinMaxObserver):
    """`min_max` with one scale per channel, unless the spec says otherwise."""

    granularity = QSchemeType.per_channel


class PerGroupMinMaxObserver(MinMaxObserver):
    """`min_max` with one scale per group, unless the spec says otherwise."""

    granularity = QSchemeType.per_group


OBSERVER = MinMaxObserver
