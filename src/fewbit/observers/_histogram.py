# SPDX-License-Identifier: Apache-2.0
"""What observers that keep a histogram have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.observers._base import RangeObserver, State
from fewbit.observers._bins import MORE, count, exponents, moved
from fewbit.observers._spectrum import Spectrum, magnitudes, spectrum

_PART = 1 << 20  # bins looked at together


@dataclass(kw_only=True, eq=False)
class HistogramBase(RangeObserver):
    """An observer that keeps a histogram of each row.

    Args:
        bins: between half of them and all cover the range from the smallest to the largest value, zero included.
    """

    keeps = ("counts", "exponent", "low", "high")

    bins: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 4:
            raise UsageError(f"bins={self.bins}", where="bins", expected="at least 4")

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        low, high = rows.amin(1), rows.amax(1)
        exponent = exponents(low, high, self.bins)
        counts = torch.zeros(len(rows), self.bins + MORE, dtype=torch.int64, device=rows.device)
        count(counts, rows, low, exponent)
        return {"counts": counts, "exponent": exponent, "low": low, "high": high}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        grown = self._grown(first, second["low"], second["high"])
        return {**grown, "counts": grown["counts"] + moved(second, grown["low"], grown["exponent"])}

    @property
    def spectrum(self) -> Spectrum:
        """What was seen: bins from the lowest to the highest, and how many values each holds."""
        return spectrum(self.seen)

    @property
    def magnitudes(self) -> Spectrum:
        """The same without the signs."""
        return magnitudes(self.seen)

    def parts(self) -> Iterator[Spectrum]:
        """The spectrum a few rows at a time, without the bins that none of them uses."""
        rows, columns = self.seen["counts"].shape
        tall = max(1, _PART // columns)
        for top in range(0, rows, tall):
            yield spectrum({name: tensor[top : top + tall] for name, tensor in self.seen.items()}).compact()

    def _take(self, rows: Tensor) -> None:
        if self.empty:
            self._seen = self.measure(rows)
        else:
            # What `combine` of a `measure` gives, without a second set of counts.
            self._seen = self._grown(self._seen, rows.amin(1), rows.amax(1))
            count(self._seen["counts"], rows, self._seen["low"], self._seen["exponent"])

    def _grown(self, state: State, low: Tensor, high: Tensor) -> dict[str, Tensor]:
        low, high = torch.minimum(state["low"], low), torch.maximum(state["high"], high)
        exponent = exponents(low, high, self.bins)
        return {"counts": moved(state, low, exponent), "exponent": exponent, "low": low, "high": high}
