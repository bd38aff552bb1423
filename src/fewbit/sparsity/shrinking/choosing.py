# SPDX-License-Identifier: Apache-2.0
"""Which channels and heads of a group are taken out: those that cost least, in rounds; of equal ones the first."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, gcd

import torch
from torch import Tensor

from fewbit.sparsity.shrinking.groups import CHANNELS, Group
from fewbit.sparsity.shrinking.reading import Reader

_ROUNDS = 32


def how_many(group: Group, share: float, multiple: int = 1) -> int:
    """How many classes of a group are taken out: a share of all, of those that can be, and never all.

    Args:
        group: the group.
        share: of its channels or heads.
        multiple: what the number of channels that stay is a multiple of; more stay where it has to be.
    """
    count = len(group.classes)
    left = count - floor(share * count + 1e-9)
    if group.kind == CHANNELS and multiple > 1:
        width = max(1, len(group.makers[0].classes) // count)
        step = multiple // gcd(multiple, width)
        left = ceil(left / step) * step
    left = max(1, left, count - len(group.free))
    return max(0, count - left)


def choose(group: Group, count: int, readers: Mapping[str, Reader], tensors: Mapping[str, Tensor]) -> list[int]:
    """The classes to take out; readers know of it afterwards.

    Args:
        group: the group.
        count: how many.
        readers: by weight; where there is none, magnitudes decide.
        tensors: of the module.
    """
    mine = [readers[member.tensor] for member in group.readers if member.tensor in readers]
    gone: list[int] = []
    fixed = None if mine else magnitudes(group, tensors)
    while len(gone) < count:
        candidates = sorted(set(group.free) - set(gone))
        costs = fixed_costs(fixed, candidates) if fixed is not None else sum(r.costs(candidates) for r in mine)
        assert isinstance(costs, Tensor)
        step = min(count - len(gone), max(1, ceil(count / _ROUNDS)))
        taken = [candidates[place] for place in torch.argsort(costs, stable=True).tolist()]
        new = _leaving_one(group, gone, taken)[:step]
        if not new:
            break
        gone += new
        for reader in mine:
            reader.take(new)
    return sorted(gone)


def magnitudes(group: Group, tensors: Mapping[str, Tensor]) -> dict[int, float]:
    """What a class weighs: its squared weights, of each tensor in terms of the mean of the group's classes there."""
    classes = torch.tensor(group.classes)
    total = torch.zeros(len(classes), dtype=torch.float64)
    for member in group.members:
        tensor = tensors[member.tensor]
        if not isinstance(tensor, torch.nn.Parameter):
            continue
        others = [axis for axis in range(tensor.ndim) if axis != member.axis]
        squares = tensor.detach().double().square().cpu()
        mine = torch.isin(member.classes, classes)
        squares = (squares.sum(others) if others else squares)[mine]
        sums = torch.zeros_like(total).index_add_(0, torch.searchsorted(classes, member.classes[mine]), squares)
        total += sums / sums.mean().clamp_min(1e-300)
    return dict(zip(group.classes, total.tolist(), strict=True))


def fixed_costs(known: Mapping[int, float], candidates: list[int]) -> Tensor:
    """Costs that do not change as others go."""
    return torch.tensor([known[each] for each in candidates], dtype=torch.float64)


def _leaving_one(group: Group, gone: list[int], wanted: list[int]) -> list[int]:
    """Of classes in order, those that leave at least one on every axis that makes channels of the group."""
    left = [set(member.classes.tolist()) - set(gone) for member in group.makers]
    found = []
    for each in wanted:
        if all(axis != {each} for axis in left):
            found.append(each)
            for axis in left:
                axis.discard(each)
    return found
