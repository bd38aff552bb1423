# SPDX-License-Identifier: Apache-2.0
"""Labels on every element of every tensor of a run: which channel it belongs to.

A channel's elements carry its label through whatever moves them. What computes one value from two joins their classes;
what mixes the channels of an axis joins all of them, and a class that is all there is of an axis is never taken out.
So a layer norm, which needs every channel, keeps its input whole, and a norm within a head keeps the head whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fewbit.sparsity.shrinking.classes import Classes, Reason


@dataclass(frozen=True)
class Matrix:
    """A parameter as layers use it: elements are in a row and in a column, so labels are by axis.

    Args:
        axes: the labels along each axis.
    """

    axes: tuple[Tensor, ...]


@dataclass
class Flow:
    """What is known of the tensors of a run.

    Args:
        classes: of labels.
        values: what each tensor carries: labels of its shape, or a `Matrix`; none for what belongs to no channel.
        seen: the labels of every activation, without axes they do not change along.
        met: labels of what two activations were multiplied for: the heads of attention.
        read: labels of the columns of weights, where what comes in is multiplied.
        made: labels of the rows of weights, whose channels are made there.
        place: the module that is running.
        op: the operator that is running.
    """

    classes: Classes = field(default_factory=Classes)
    values: Any = field(default_factory=WeakTensorKeyDictionary)
    seen: list[Tensor] = field(default_factory=list)
    met: list[Tensor] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)
    place: str = ""
    op: str = ""

    def new(self, count: int) -> Tensor:
        """Labels that belong together with no others yet."""
        return torch.from_numpy(self.classes.new(count))

    def roots(self, labels: Tensor) -> Tensor:
        """The class of each label; the memory of a constant axis is not spent."""
        small = narrowed(labels)
        return torch.from_numpy(self.classes.roots(small.contiguous().numpy())).expand(labels.shape)

    def stays(self, labels: Tensor, what: str) -> None:
        """Keep classes, for a reason."""
        self.classes.stay(narrowed(labels).numpy(), self.reason(what))

    def join(self, a: Tensor, b: Tensor, what: str = "") -> None:
        """Let labels of the same shape go together, one by one."""
        a, b = torch.broadcast_tensors(narrowed(a), narrowed(b))  # type: ignore[no-untyped-call]
        self.classes.join(a.reshape(-1).numpy(), b.reshape(-1).numpy(), self.reason(what or "joined with no channel"))

    def merge(self, labels: Tensor, axes: Iterable[int]) -> Tensor:
        """Let everything along some axes go together; the labels of what is left, these axes one long."""
        small = narrowed(labels)
        dims = [axis % labels.ndim for axis in axes]
        if not dims:
            return labels
        top = small.amax(dims, keepdim=True)
        self.join(small, top.expand(small.shape), f"mixed by {self.op}")
        shape = [1 if axis in dims else side for axis, side in enumerate(labels.shape)]
        return top.expand(shape)

    def channel(self, labels: Tensor, axis: int) -> Tensor:
        """One label for each place along an axis, whatever the other axes."""
        others = [other for other in range(labels.ndim) if other != axis % labels.ndim]
        return self.merge(labels, others).reshape(-1)

    def varies(self, labels: Tensor) -> list[int]:
        """The axes along which the class changes; all that stays is one class here."""
        small = narrowed(self.roots(labels))
        if small.numel() > 1:
            classes, places = small.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            free = [self.classes.reason(each) is None for each in classes.tolist()]
            small = narrowed((classes * torch.tensor(free))[places])
        return [axis for axis, side in enumerate(small.shape) if side > 1]

    def is_live(self, labels: Tensor) -> bool:
        """Whether any of the labels is of a channel that may go."""
        classes = narrowed(self.roots(labels)).unique()  # type: ignore[no-untyped-call]
        return any(self.classes.reason(each) is None for each in classes.tolist())

    def labels(self, tensor: Tensor) -> Tensor:
        """The labels of a tensor's elements; a matrix has them where only one of its axes can be taken apart."""
        value: Tensor | Matrix | None = self.values.get(tensor)
        if value is None:
            return nothing(tensor.shape)
        if isinstance(value, Tensor):
            return value
        wide = [axis for axis, labels in enumerate(value.axes) if len(labels) > 1 and self.is_live(labels)]
        if len(wide) == 1:
            along = [-1 if axis == wide[0] else 1 for axis in range(len(value.axes))]
            return value.axes[wide[0]].view(along).expand(tensor.shape)
        self.keep(value, "a parameter in a use that is not known")
        return nothing(tensor.shape)

    def keep(self, value: Tensor | Matrix, what: str) -> None:
        """Keep everything a value carries."""
        for labels in value.axes if isinstance(value, Matrix) else (value,):
            self.stays(labels, what)

    def reason(self, what: str) -> Reason:
        """A reason with the place and the operator of now."""
        return Reason(self.place, self.op, what)

    def note(self, tensor: Tensor, value: Tensor | Matrix | None) -> None:
        """Remember what a tensor carries."""
        if isinstance(value, Tensor):
            small = narrowed(value)
            if not bool(small.any()):
                value = None
            else:
                value = small.expand(value.shape)
                self.seen.append(small)
        if value is None:
            self.values.pop(tensor, None)
        else:
            self.values[tensor] = value

    def settle(self) -> None:
        """Let go together what a tensor could not lose alone: classes change along one axis of it, the first."""
        changed = True
        while changed:
            changed = False
            for labels in self.seen:
                axes = self.varies(labels)
                if len(axes) > 1 and self.is_live(labels):
                    self.op = "reshaping"
                    self.merge(labels, axes[1:])
                    changed = True


def nothing(shape: Sequence[int]) -> Tensor:
    """Labels of what belongs to no channel."""
    return torch.zeros((), dtype=torch.int64).expand(*shape)


def narrowed(labels: Tensor) -> Tensor:
    """The same labels with every axis along which they do not change one long.

    >>> narrowed(torch.tensor([1, 2]).expand(5, 2)).shape
    torch.Size([1, 2])
    """
    for axis, side in enumerate(labels.shape):
        first = labels.narrow(axis, 0, min(1, side))
        if side > 1 and (labels.stride(axis) == 0 or bool((labels == first).all())):
            labels = first
    return labels
