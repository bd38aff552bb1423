# SPDX-License-Identifier: Apache-2.0
"""Which samples are kept: all, the first n, or n drawn evenly from a stream of unknown length."""

from __future__ import annotations

from random import Random

from fewbit.errors import UsageError


class Choice:
    """Gives each sample offered a slot, or none.

    Args:
        max_samples: how many to keep; `None` for all.
        seed: `None` keeps the first ones. A number keeps an even draw from everything offered (reservoir sampling,
            Vitter 1985, algorithm R), the same for the same seed; a later sample then takes an earlier one's slot.

    >>> choice = Choice(2)
    >>> [choice.slot() for _ in range(3)], choice.full
    ([0, 1, None], True)
    """

    def __init__(self, max_samples: int | None = None, seed: int | None = None):
        if max_samples is not None and (isinstance(max_samples, bool) or max_samples < 1):
            raise UsageError(f"max_samples is {max_samples!r}", expected="a number from 1, or None for all")
        if seed is not None and max_samples is None:
            raise UsageError("seed draws max_samples samples, but max_samples is not given", try_="max_samples=300")
        self.max_samples, self.seed = max_samples, seed
        self.offered = 0
        self._random = None if seed is None else Random(seed)

    @property
    def full(self) -> bool:
        """No later sample will be kept: time to stop the loop. A draw is never full before the stream ends."""
        return self._random is None and self.max_samples is not None and self.offered >= self.max_samples

    def slot(self) -> int | None:
        """Offer one sample: the slot it takes, or `None`."""
        index = self.offered
        self.offered += 1
        if self.max_samples is None or index < self.max_samples:
            return index
        if self._random is None:
            return None
        slot = self._random.randrange(index + 1)
        return slot if slot < self.max_samples else None
