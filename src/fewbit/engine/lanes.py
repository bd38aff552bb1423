# SPDX-License-Identifier: Apache-2.0
"""Sums over items in an order that does not depend on how many workers there are.

Floats do not add up to the same in another order. So items are dealt to lanes, runs of neighbours whose number goes by
that of the items alone; a lane's sums are made item after item, and lanes are added in their order. A worker has whole
lanes, by turns. What is held is the total and one lane, with one worker or with many.
"""

from __future__ import annotations

from fewbit.engine.second_moments import Gathered
from fewbit.engine.workers import Workers
from fewbit.model.walking import TRIES

_LANES = 8


class Lanes:
    """The items of a job, dealt to lanes.

    Args:
        items: how many there are.
        workers: who have the lanes, by turns; the first lane is the first worker's.

    >>> Lanes(20).mine == range(20)
    True
    >>> list(Lanes(20, Workers(rank=1, count=3)).mine)
    [4, 5, 6, 7, 16, 17, 18, 19]
    """

    def __init__(self, items: int, workers: Workers | None = None):
        self.workers = workers or Workers()
        # The first worker finds the way of a walk for all, from the items that one alone would find it from.
        self._size = max(-(-items // _LANES), TRIES)
        self.count = -(-items // self._size)
        mine = [item for item in range(items) if self.of(item) % self.workers.count == self.workers.rank]
        self.mine = range(items) if len(mine) == items else mine

    def of(self, item: int) -> int:
        """The lane of an item."""
        return item // self._size


class LaneSums:
    """Sums of several kinds over the items of a stage.

    Args:
        lanes: of the items.
        kinds: how many kinds of sums there are.
    """

    def __init__(self, lanes: Lanes, kinds: int):
        self._lanes, self._workers = lanes, lanes.workers
        self._total = [Gathered() for _ in range(kinds)]
        self._lane = [Gathered() for _ in range(kinds)]
        self._turn = 0

    def at(self, item: int) -> list[Gathered]:
        """What an item of this worker goes into, one of each kind; items come in their order."""
        while self._lanes.of(item) // self._workers.count > self._turn:
            self._end_turn()
        return self._lane

    def total(self) -> list[Gathered]:
        """The sums over the items of all workers; asked once, when all went in."""
        while self._turn * self._workers.count < self._lanes.count:
            self._end_turn()
        if self._workers.count > 1:
            self._total = [Gathered.of(self._workers.handed(each.tensors(), giver=0, taker=-1)) for each in self._total]
        return self._total

    def _end_turn(self) -> None:
        """Every worker has finished a lane: they are added to the first one's total, in their order."""
        for total, lane in zip(self._total, self._lane):
            for giver in range(self._workers.count):
                found = self._workers.handed(lane.tensors(), giver=giver, taker=0) if giver else lane.tensors()
                if self._workers.is_first:
                    total.absorb(Gathered.of(found))
                    lane.sides.clear()
        self._lane = [Gathered() for _ in self._total]
        self._turn += 1
