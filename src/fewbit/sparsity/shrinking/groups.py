# SPDX-License-Identifier: Apache-2.0
"""Groups of channels: what is made together, and of which some can be taken out.

A class is what goes together: a channel of every tensor it runs through, or a head with its queries, keys and values.
A group is every class of the weights that make them, so that a share of it is a share of a layer's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.sparsity.shrinking.tracing import Axis, Traced

CHANNELS, HEADS = "channels", "heads"


@dataclass(frozen=True)
class Member:
    """An axis of a tensor with channels of a group.

    Args:
        tensor: its name in the module.
        axis: number of the axis.
        classes: of each place along it; those of other groups too.
        reads: whether what comes in is multiplied with the tensor along this axis.
        makes: whether the channels are made along it.
    """

    tensor: str
    axis: int
    classes: Tensor
    reads: bool
    makes: bool


@dataclass(frozen=True)
class Group:
    """Channels or heads that are made together.

    Args:
        kind: `channels` or `heads`.
        classes: all of them, sorted.
        free: those that can be taken out.
        members: every axis they lie along, in the order of the module.
        why: why the others stay.
    """

    kind: str
    classes: tuple[int, ...]
    free: tuple[int, ...]
    members: tuple[Member, ...]
    why: str = ""

    @property
    def name(self) -> str:
        """The weights that make it."""
        return " + ".join(member.tensor for member in self.makers)

    @property
    def makers(self) -> list[Member]:
        """The axes along which its channels are made."""
        return [member for member in self.members if member.makes]

    @property
    def readers(self) -> list[Member]:
        """The axes along which its channels are read."""
        return [member for member in self.members if member.reads]


def find_groups(traced: Traced) -> list[Group]:
    """Every group of a traced module, in the order in which its channels are made."""
    flow = traced.flow
    read, made = (set() if not found else set(torch.cat(found).tolist()) for found in (flow.read, flow.made))
    heads = set() if not flow.met else set(flow.roots(torch.cat(flow.met)).tolist())
    members = [_member(axis, flow.roots(axis.labels), read, made) for axis in traced.axes]
    owned = {label for axis, member in zip(traced.axes, members, strict=True) if member.reads for label in
             set(axis.labels.tolist()) & read}  # fmt: skip
    reached = set() if not owned else set(flow.roots(torch.tensor(sorted(owned))).tolist())
    linked = _linked([set(member.classes.tolist()) for member in members if member.makes])
    home = {each: number for number, classes in enumerate(linked) for each in classes}
    inside: list[list[Member]] = [[] for _ in linked]
    for member in members:
        for number in sorted({home[each] for each in set(member.classes.tolist()) if each in home}):
            inside[number].append(member)
    return [_group(traced, found, mine, reached, heads) for found, mine in zip(linked, inside, strict=True)]


def _group(traced: Traced, found: set[int], members: list[Member], reached: set[int], heads: set[int]) -> Group:
    reason, classes = traced.flow.classes.reason, tuple(sorted(found))
    free = tuple(each for each in classes if each in reached and reason(each) is None) if len(classes) > 1 else ()
    kept = sorted(found - set(free))
    why = _why(traced, kept, len(classes)) if kept else ""
    return Group(HEADS if found & heads else CHANNELS, classes, free, tuple(members), why)


def _member(axis: Axis, roots: Tensor, read: set[int], made: set[int]) -> Member:
    own = set(axis.labels.tolist())
    return Member(axis.tensor, axis.number, roots, bool(own & read), bool(own & made))


def _linked(sets: Sequence[set[int]]) -> list[set[int]]:
    """Sets with an element in common as one, in the order of the first."""
    found: list[set[int]] = []
    for each in sets:
        touching = [other for other in found if other & each]
        if not touching:
            found.append(set(each))
            continue
        for other in touching[1:]:
            touching[0].update(other)
            found.remove(other)
        touching[0].update(each)
    return found


def _why(traced: Traced, kept: Sequence[int], count: int) -> str:
    reason = traced.flow.classes.reason(kept[0])
    if reason is not None:
        return f"{reason.what} ({reason.op}{' in ' + reason.node if reason.node else ''})"
    return "its channels are mixed, and go all together or not at all" if count == 1 else "no weight reads it"
