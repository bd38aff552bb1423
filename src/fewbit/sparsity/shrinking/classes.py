# SPDX-License-Identifier: Apache-2.0
"""Places along the axes of a graph's values, in classes that stay or go together.

Every place along an axis has a label. Labels that an operator couples are joined into a class; a class that something
needs as it is has a reason to stay. Label 0 is every place that is no channel: batch, positions, inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


class Reason(NamedTuple):
    """Why channels stay: a node, its operator, and what is the matter there."""

    node: str
    op: str
    what: str


class Classes:
    """Labels joined into classes, of which some must stay.

    >>> classes = Classes()
    >>> a, b = classes.new(3), classes.new(3)
    >>> classes.join(a, b, Reason("add", "Add", "coupled"))
    >>> classes.stay(b[:1], Reason("y", "output", "an output of the graph"))
    >>> classes.roots(b).tolist(), classes.reason(a[0]).node, classes.reason(a[1])
    ([1, 2, 3], 'y', None)
    """

    def __init__(self) -> None:
        self._parent = np.zeros(1024, np.int64)
        self._count = 1
        self._reasons: dict[int, Reason] = {0: Reason("", "", "these are no channels")}

    def new(self, count: int) -> Labels:
        """Labels that nothing is joined with yet."""
        made = np.arange(self._count, self._count + count)
        while self._count + count > len(self._parent):
            self._parent = np.concatenate([self._parent, np.zeros_like(self._parent)])
        self._parent[made] = made
        self._count += count
        return made

    def roots(self, labels: Labels) -> Labels:
        """The class of each label, as its first one."""
        found = self._parent[labels]
        while np.any(found != (above := self._parent[found])):
            found = above
        return found

    def join(self, a: Labels, b: Labels, reason: Reason) -> None:
        """Let places go together; where one of the two is no channel, the other stays, for this reason."""
        for x, y in self._apart(a, b):
            first, second = sorted((self._root(x), self._root(y)))
            if first == second:
                continue
            if first == 0:
                self._reasons.setdefault(second, reason)
                continue
            self._parent[second] = first
            if second in self._reasons:
                self._reasons.setdefault(first, self._reasons[second])

    def stay(self, labels: Labels, reason: Reason) -> None:
        """Keep the classes of these labels."""
        for root in np.unique(self.roots(labels)).tolist():
            self._reasons.setdefault(root, reason)

    def reason(self, label: int) -> Reason | None:
        """Why the class of a label stays; none if it may go."""
        return self._reasons.get(self._root(int(label)))

    def _root(self, label: int) -> int:
        while (above := int(self._parent[label])) != label:
            label = above
        return label

    def _apart(self, a: Labels, b: Labels) -> Iterator[tuple[int, int]]:
        pairs = np.stack([self.roots(a), self.roots(b)])
        pairs = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
        return iter(zip(pairs[0].tolist(), pairs[1].tolist()))
