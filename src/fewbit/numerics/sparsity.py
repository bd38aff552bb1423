# SPDX-License-Identifier: Apache-2.0
"""Which elements of a tensor may be zero: how many, and which ones only together.

N:M means here, everywhere and only, that of M neighbours along the input N are *kept*. A share is that of the zeros.
How many elements are zero is exact: the share of the elements (of the blocks, where these are zero together), rounded
to the nearest whole number, halves up. Of equal scores the ones that come first are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks

_ON_PURPOSE = 1000  # of so many elements one is zero, at least


@dataclass(frozen=True)
class Pattern:
    """What may be zero.

    Args:
        share: of the elements that are zero, from 0 to 1; with `keep` it follows from there.
        keep: N of N:M.
        of: M of N:M; 0 if elements are free.
        block: elements that are zero together or not at all, `(out, in)`; `(1, 1)` if each is for itself.
        by_row: whether every output (every row of blocks) has the same share; if not, the weight as a whole has it.
        together: whether a stack of weights is counted as one; if not, each of them has the same share.

    Raises:
        UsageError: a share outside 0 to 1, an N above its M, a block and N:M at once.

    >>> Pattern.read("2:4"), Pattern.read(0.6).share, Pattern.read("1x4", 0.5).block
    (Pattern(share=0.5, keep=2, of=4, block=(1, 1), by_row=False, together=False), 0.6, (1, 4))
    """

    share: float
    keep: int = 0
    of: int = 0
    block: tuple[int, int] = (1, 1)
    by_row: bool = False
    together: bool = False

    def __post_init__(self) -> None:
        if self.of:
            object.__setattr__(self, "share", 1 - self.keep / self.of)
        if min(self.keep, self.of) < 0 or self.keep > self.of:
            raise UsageError(f"{self.keep}:{self.of}", where="pattern", expected="N:M that keeps N of M, N up to M")
        if not 0 <= self.share <= 1:
            raise UsageError(f"a share of {self.share!r}", where="sparsity", expected="a number from 0 to 1")
        if self.of and self.block != (1, 1):
            raise UsageError("N:M of blocks", where="pattern", expected="N:M, or blocks such as 1x4")
        if min(self.block) < 1:
            raise UsageError(f"a block of {self.block}", where="pattern", expected="at least one element each way")

    @classmethod
    def read(cls, structure: str | float, share: float | None = None, *, by_row: bool = False) -> Pattern:
        """From a share, or from words: `unstructured`, `2:4`, `1x4`.

        Raises:
            UsageError: words that mean nothing; no share where one is needed, or one that N:M does not have.
        """
        if not isinstance(structure, str):
            if share is not None and share != structure:
                raise UsageError(f"shares of {structure!r} and {share!r}", where="sparsity", expected="one of the two")
            return cls(float(structure), by_row=by_row)
        if found := re.fullmatch(r"(\d+):(\d+)", structure):
            keep, of = map(int, found.groups())
            if not of:
                raise UsageError(f"{structure}", where="pattern", expected="N:M that keeps N of M, M above zero")
            own = 1 - keep / of
            if share is not None and abs(share - own) > 1e-6:
                raise UsageError(
                    f"{structure} with a share of {share:g}", where="pattern", expected=f"no share: {own:g} are zero"
                )
            return cls(own, keep, of)
        block = re.fullmatch(r"(\d+)x(\d+)", structure)
        if structure != "unstructured" and not block:
            raise UsageError(
                f"the pattern {structure!r}", where="pattern", expected="unstructured, N:M or a block: 1x4"
            )
        if share is None:
            raise UsageError(f"{structure} without a share", where="sparsity", expected="how many are zero: 0.5")
        return cls(share, block=(int(block[1]), int(block[2])) if block else (1, 1), by_row=by_row)

    @property
    def text(self) -> str:
        """What it is, in a few words."""
        if self.of:
            return f"{self.keep}:{self.of}"
        return f"{self.share:.0%}" + (f" in blocks of {self.block[0]}x{self.block[1]}" if self.block != (1, 1) else "")


def count(share: float, total: int) -> int:
    """A share of a whole, to the nearest number; halves up.

    The share is taken for the decimal that it is written as: .55 of 10 are 6, though a binary .55 is a little less.

    >>> count(0.5, 5), count(0.55, 10), count(1.0, 7)
    (3, 6, 7)
    """
    return floor(Fraction(repr(float(share))) * total + Fraction(1, 2))


def is_pruned(zeros: int, elements: int) -> bool:
    """Whether a weight with so many zeros was pruned, and does not just happen to have some.

    >>> is_pruned(1, 1000), is_pruned(1, 1001), is_pruned(0, 0)
    (True, False, False)
    """
    return zeros > 0 and zeros * _ON_PURPOSE >= elements


def kept(scores: Tensor, pattern: Pattern) -> Tensor:
    """The elements that are kept: those whose scores are the highest.

    Args:
        scores: `[out, in]` or `[out, in, kernel…]`, none below zero. N:M and blocks go along the input, those of each
            element of a kernel for itself; an output is all that is multiplied for it.
        pattern: how many, and which together. A block at the edge may be smaller; N:M keeps the inputs that are left
            over where M does not divide them.

    Returns:
        True where an element is kept, of the shape of the scores.

    >>> kept(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), Pattern(0.5))
    tensor([[ True,  True, False, False]])
    """
    if pattern.of:
        apart = scores.movedim(1, -1)  # the input last
        return _of_each(apart.reshape(-1, apart.shape[-1]), pattern).reshape(apart.shape).movedim(-1, 1)
    if pattern.block != (1, 1):
        return _in_blocks(scores, pattern)
    rows = scores.reshape((len(scores), -1) if pattern.by_row else (1, -1))
    return highest(rows, rows.shape[1] - count(pattern.share, rows.shape[1])).reshape(scores.shape)


def highest(scores: Tensor, keep: int) -> Tensor:
    """The highest so many of each row, the first of equals; a bool `[rows, columns]`.

    >>> highest(torch.tensor([[3.0, 1.0, 3.0, 3.0]]), 2)
    tensor([[ True, False,  True, False]])
    """
    if keep >= scores.shape[1]:
        return torch.ones_like(scores, dtype=torch.bool)
    if keep <= 0 or not len(scores):
        return torch.zeros_like(scores, dtype=torch.bool)
    if scores.device.type != "cpu":  # where sorting is fast, and selecting goes one row at a time
        order = torch.argsort(scores, dim=1, descending=True, stable=True)
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order[:, :keep], True)
    least = scores.kthvalue(scores.shape[1] - keep + 1, dim=1, keepdim=True).values
    above, equal = scores > least, scores == least
    room = keep - above.sum(1, keepdim=True)
    if bool((equal.sum(1, keepdim=True) > room).any()):
        equal &= equal.cumsum(1, dtype=torch.int32) <= room
    return above | equal


def _of_each(scores: Tensor, pattern: Pattern) -> Tensor:
    rows, width = scores.shape
    whole = width // pattern.of * pattern.of
    found = torch.ones_like(scores, dtype=torch.bool)
    if whole:
        groups = scores[:, :whole].reshape(-1, pattern.of)
        found[:, :whole] = highest(groups, pattern.keep).reshape(rows, whole)
    return found


def _in_blocks(scores: Tensor, pattern: Pattern) -> Tensor:
    outputs, inputs, *kernel = scores.shape
    sides = (*pattern.block, *(1,) * len(kernel))
    blocks = Blocks(tuple(scores.shape), sides)
    sums = blocks.split(scores).sum(tuple(range(1, 2 * scores.ndim, 2)))
    chosen = kept(sums, Pattern(pattern.share, by_row=pattern.by_row))
    whole = chosen.repeat_interleave(sides[0], 0).repeat_interleave(sides[1], 1)
    return whole[:outputs, :inputs]
