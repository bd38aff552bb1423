# SPDX-License-Identifier: Apache-2.0
"""Values that are not finite: counted, located and kept out of statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.numerics.ops import Array, amax, amin, is_numpy, like, namespace, on_cpu


@dataclass(frozen=True)
class NonFinite:
    """What a guard saw.

    Args:
        sample: the first sample with such a value.
        nan: values that are not a number.
        positive: plus infinity.
        negative: minus infinity.
        reduced: the numbers count reductions, not values, which were not at hand.
    """

    sample: int
    nan: int
    positive: int
    negative: int
    reduced: bool = False

    def __str__(self) -> str:
        counts = {"NaN": self.nan, "+inf": self.positive, "-inf": self.negative}
        names = [name if self.reduced else f"{count} {name}" for name, count in counts.items() if count]
        return " and ".join(names)


class FiniteGuard:
    """Watches one activation; nothing is read back from an accelerator before `result`.

    >>> import numpy as np
    >>> guard = FiniteGuard()
    >>> guard.filter(np.array([1.0, np.nan], np.float32), sample=7).tolist()
    [1.0, 0.0]
    >>> print(guard.result().sample, guard.result())
    7 1 NaN
    """

    def __init__(self) -> None:
        self._counts: Array | None = None
        self._sample: Array | None = None
        self._reduced = False

    def filter(self, x: Array, sample: int) -> Array:
        """The values for observers: `x` if all are finite, else a copy with zeros for those that are not."""
        floating = x.dtype.kind == "f" if is_numpy(x) else x.is_floating_point()
        # On the CPU two fast passes answer the common case. Reading a result from an accelerator would wait for it.
        if not floating or 0 in x.shape or (on_cpu(x) and _all_finite(x)):
            return x
        self._count(x, sample)
        xp = namespace(x)
        return xp.where(xp.isfinite(x), x, xp.zeros_like(x))

    def check_reductions(self, reduced: Mapping[str, Array], sample: int) -> bool:
        """Whether reductions of a batch are finite, which they are only if its values are; see `Observer.reductions`.

        A sum of squares can overflow though all values are finite, so it counts only if there is no plain sum.
        """
        names = [name for name in reduced if name != "sum_of_squares" or "sum" not in reduced]
        bad = [name for name in names if not (on_cpu(reduced[name]) and _all_finite(reduced[name]))]
        for name in bad:
            self._reduced = True
            self._count(reduced[name], sample)
        return not bad

    def result(self) -> NonFinite | None:
        """What was not finite, or `None`; waits for the device."""
        if self._counts is None or self._sample is None or int(self._sample) < 0:
            return None
        nan, positive, negative = (int(count) for count in self._counts)
        return NonFinite(int(self._sample), nan, positive, negative, self._reduced)

    def _count(self, x: Array, sample: int) -> None:
        xp = namespace(x)
        counts = xp.stack([xp.isnan(x).sum(), (x == math.inf).sum(), (x == -math.inf).sum()])
        if self._counts is None:
            self._counts, self._sample = xp.zeros_like(counts), like(-1, x, "int64")
        assert self._sample is not None
        self._counts = self._counts + counts
        new = (self._sample < 0) & (counts.sum() > 0)
        self._sample = xp.where(new, xp.full_like(self._sample, sample), self._sample)


def _all_finite(x: Array) -> bool:
    """NaN passes through minimum and maximum."""
    flat = x.reshape(-1)
    return math.isfinite(float(amin(flat, 0))) and math.isfinite(float(amax(flat, 0)))
