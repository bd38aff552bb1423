# SPDX-License-Identifier: Apache-2.0
"""The cheapest way to say yes or no to many things at once, where some answers cost more beside others.

Two-way choices with costs of their own and costs between them are a minimum cut, and that is found exactly in
polynomial time: no order of trying decides what comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

_YES, _NO = 0, 1


class Choice:
    """Things to say yes or no to.

    >>> choice = Choice()
    >>> a, b = choice.add(yes=1.0, no=3.0), choice.add(yes=4.0, no=3.0)
    >>> choice.solve([a, b])
    [True, False]
    >>> choice.charge_if_any([a], without=b, cost=4.0)
    >>> choice.solve([a, b])
    [True, True]
    """

    def __init__(self) -> None:
        self._to: list[int] = []
        self._room: list[float] = []
        self._edges: list[list[int]] = [[], []]

    def add(self, *, yes: float = 0.0, no: float = 0.0) -> int:
        """One more thing, and what each answer costs; infinite for one that cannot be."""
        self._edges.append([])
        it = len(self._edges) - 1
        self._join(it, _NO, yes)
        self._join(_YES, it, no)
        return it

    def charge_if_any(self, yes: Iterable[int], *, without: int | None = None, cost: float) -> None:
        """A cost where any of some are yes, once; with `without`, only where that one is no."""
        members = list(yes)
        if not cost or not members:
            return
        some = self.add()
        for it in members:
            self._join(it, some, inf)
        self._join(some, _NO if without is None else without, cost)

    def charge_if_any_not(self, no: Iterable[int], *, beside: int, cost: float) -> None:
        """A cost where any of some are no while another is yes, once."""
        members = list(no)
        if not cost or not members:
            return
        every = self.add()
        for it in members:
            self._join(every, it, inf)
        self._join(beside, every, cost)

    def solve(self, things: Iterable[int]) -> list[bool]:
        """The answers that cost least together; no where both cost the same."""
        room = list(self._room)
        while (levels := self._levels(room)) is not None:
            following = [0] * len(self._edges)
            while self._push(room, levels, following):
                pass
        reached = self._reached(room)
        return [reached[it] for it in things]

    def _join(self, a: int, b: int, room: float) -> None:
        if room > 0:
            self._edges[a].append(len(self._to))
            self._to.append(b)
            self._room.append(room)
            self._edges[b].append(len(self._to))
            self._to.append(a)
            self._room.append(0.0)

    def _levels(self, room: list[float]) -> list[int] | None:
        levels = [-1] * len(self._edges)
        levels[_YES] = 0
        queue = deque([_YES])
        while queue:
            at = queue.popleft()
            for edge in self._edges[at]:
                to = self._to[edge]
                if room[edge] > 0 and levels[to] < 0:
                    levels[to] = levels[at] + 1
                    queue.append(to)
        return levels if levels[_NO] >= 0 else None

    def _push(self, room: list[float], levels: list[int], following: list[int]) -> bool:
        """Send as much as fits along one shortest way; false when there is none left."""
        way: list[int] = []
        at = _YES
        while at != _NO:
            edges = self._edges[at]
            while following[at] < len(edges):
                edge = edges[following[at]]
                if room[edge] > 0 and levels[self._to[edge]] == levels[at] + 1:
                    break
                following[at] += 1
            else:
                if not way:
                    return False
                levels[at] = -1  # nothing leads on from here
                at = self._to[way.pop() ^ 1]
                continue
            way.append(edge)
            at = self._to[edge]
        least = min(room[edge] for edge in way)
        for edge in way:
            room[edge] -= least
            room[edge ^ 1] += least
        return True

    def _reached(self, room: list[float]) -> list[bool]:
        reached = [False] * len(self._edges)
        reached[_YES] = True
        queue = deque([_YES])
        while queue:
            for edge in self._edges[queue.popleft()]:
                if room[edge] > 0 and not reached[self._to[edge]]:
                    reached[self._to[edge]] = True
                    queue.append(self._to[edge])
        return reached
