# SPDX-License-Identifier: Apache-2.0
"""A random order of samples by a fixed seed: classes in proportion, in the calibration and in the held-out samples."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

HELD_OUT_EVERY = 5
"""Of five items, the last one is held out."""


def is_held_out(item: int) -> bool:
    """Whether an item is held out from calibration."""
    return item % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def are_classes(labels: Sequence[int]) -> bool:
    """Whether numbers may be classes: if most of them occur once they are something else.

    >>> are_classes([0, 0, 1, 1]), are_classes([3, 1, 4, 5])
    (True, False)
    """
    return 2 * len(set(labels)) <= len(labels)


def seeded_order(count: int, n: int, labels: Sequence[int] | None, seed: int, batch_size: int = 1) -> list[int]:
    """`n` of `count` indices in random order.

    With labels, each class has its share of the calibration samples and of the held-out samples, to within one, and
    all along the order: the first held-out samples are in proportion too.

    Args:
        count: the number of elements.
        n: how many are wanted.
        labels: the class of each element.
        seed: of the choice.
        batch_size: how many elements an item holds: items are held out, not elements.

    >>> labels = [0] * 16 + [1] * 8
    >>> order = seeded_order(24, 15, labels, seed=0)
    >>> sorted(labels[index] for index in order), sorted(labels[index] for index in order[4::5])
    ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1])
    """
    chooser = random.Random(seed)
    n = min(n, count)
    if labels is None:
        return chooser.sample(range(count), n)
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    takes = _shares({label: len(mine) for label, mine in members.items()}, n, chooser)
    chosen = {label: chooser.sample(mine, takes[label]) for label, mine in members.items()}
    positions = [is_held_out(position // batch_size) for position in range(n)]
    aside = _shares(takes, sum(positions), chooser, least=2)
    held_out = iter(_mixed([mine[: aside[label]] for label, mine in chosen.items()], chooser))
    calibration = iter(_mixed([mine[aside[label] :] for label, mine in chosen.items()], chooser))
    return [next(held_out if position else calibration) for position in positions]


def _shares(sizes: Mapping[int, int], n: int, chooser: random.Random, least: int = 1) -> dict[int, int]:
    """`n` split by size. What is left goes to classes without a share first, then to the largest remainders.

    Args:
        sizes: of each class.
        n: how many in all.
        chooser: breaks ties at random.
        least: the size from which a class without a share comes first.
    """
    whole = max(1, sum(sizes.values()))
    exact = {label: n * size / whole for label, size in sizes.items()}
    found = {label: int(share) for label, share in exact.items()}
    ranks = {
        label: (found[label] > 0 or size < least, found[label] - exact[label], chooser.random())
        for label, size in sizes.items()
    }
    for label in sorted(sizes, key=ranks.__getitem__)[: n - sum(found.values())]:
        found[label] += 1
    return found


def _mixed(classes: Sequence[Sequence[int]], chooser: random.Random) -> list[int]:
    """The members of all classes, each class spread evenly, with some chance, from the first to the last place."""
    keyed = [((number + chooser.random()) / len(mine), index) for mine in classes for number, index in enumerate(mine)]
    return [index for _, index in sorted(keyed)]
