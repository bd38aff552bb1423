# SPDX-License-Identifier: Apache-2.0
"""One option for each of several things, so that all together cost no more than a budget and do the least harm.

A table over the costs that can be reached, one row a thing: exact where costs are multiples of a common step, of which
the budget holds few enough. That is so for a language model: its blocks are alike. Elsewhere costs are rounded up to a
step that is, so the budget holds whatever happens, and the result is no worse than the best for a budget that is
smaller by one step a thing; what rounding left of it is then spent one exchange at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

_STEPS = 1 << 14


def least_harm(
    costs: Sequence[Sequence[int]], harms: Sequence[Sequence[float]], budget: int, steps: int = _STEPS
) -> list[int] | None:
    """The option of each thing.

    Args:
        costs: of each thing and option.
        harms: the same; they add up.
        budget: what all chosen costs together may be at most.
        steps: in how many the budget is divided at most.

    Returns:
        Numbers of options; none if the budget is too small for any choice.

    >>> least_harm([[1, 2], [1, 2]], [[5.0, 1.0], [3.0, 0.0]], 3)
    [1, 0]
    """
    extra = [[cost - min(each) for cost in each] for each in costs]
    room = min(budget - sum(min(each) for each in costs), sum(max(each) for each in extra))
    if room < 0:
        return None
    step = max(gcd(*(cost for each in extra for cost in each)), 1)
    if room // step > steps:
        step = -(-room // steps)
    found = _table([[-(-cost // step) for cost in each] for each in extra], harms, room // step)
    left = room - sum(each[option] for each, option in zip(extra, found))
    return _exchanged(found, extra, harms, left)


def _table(sizes: Sequence[Sequence[int]], harms: Sequence[Sequence[float]], room: int) -> list[int]:
    """The best choice where every size is a number of steps."""
    best = np.zeros(room + 1)  # the least harm of the things so far, by the room there is for them
    taken = np.zeros((len(sizes), room + 1), dtype=np.uint8)
    for row, mine, hurts in zip(taken, sizes, harms):
        before, best = best, np.full(room + 1, np.inf)
        for option in sorted(range(len(mine)), key=lambda option: mine[option]):
            size = mine[option]
            if size > room:
                continue
            total = before[: room + 1 - size] + hurts[option]
            better = total < best[size:]  # equal harm for less is kept
            best[size:][better] = total[better]
            row[size:][better] = option
    found, left = [], room
    for row, mine in zip(taken[::-1], sizes[::-1]):
        option = int(row[left])
        found.append(option)
        left -= mine[option]
    return found[::-1]


def _exchanged(
    found: list[int], extra: Sequence[Sequence[int]], harms: Sequence[Sequence[float]], left: int
) -> list[int]:
    """The same with single options exchanged, the one that saves most harm first, for as long as there is room."""
    while True:
        changes = [
            (hurts[mine] - hurts[other], thing, other)
            for thing, (mine, each, hurts) in enumerate(zip(found, extra, harms))
            for other in range(len(each))
            if hurts[other] < hurts[mine] and each[other] - each[mine] <= left
        ]
        if not changes:
            return found
        _, thing, other = max(changes, key=lambda change: (change[0], -change[1]))
        left -= extra[thing][other] - extra[thing][found[thing]]
        found[thing] = other
