# SPDX-License-Identifier: Apache-2.0
"""Sparsity patterns: how many elements of a weight are zero, and which of them only together.

N:M means that of M neighbors along the input N are *not* zero; a sparsity is the share of zeros. The number of zeros is
exact: the share of the elements (of the blocks, in block patterns), rounded to the nearest integer, halves up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np

from fewbit.errors import UsageError
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.ops import Array, arange, is_numpy, namespace, take

_RANDOM_ZEROS = 1000
"""A weight with fewer zeros than one in so many elements was not pruned."""


@dataclass(frozen=True)
class SparsityPattern:
    """Which elements may be zero.

    Args:
        sparsity: the share of zeros, 0 to 1; N:M sets it.
        nonzero: N of N:M.
        group: M of N:M; 0 if there are no groups.
        block: elements that are zero together, `(out, in)`.
        per_row: every output has the same share (every row of blocks); otherwise the weight in all.

    Raises:
        UsageError: a share outside 0 to 1, N above M, blocks and N:M at once.

    >>> SparsityPattern.parse("2:4").sparsity, SparsityPattern.parse("block:4", 0.5).block
    (0.5, (1, 4))
    """

    sparsity: float
    nonzero: int = 0
    group: int = 0
    block: tuple[int, int] = (1, 1)
    per_row: bool = False

    def __post_init__(self) -> None:
        if self.group:
            object.__setattr__(self, "sparsity", 1 - self.nonzero / self.group)
        if min(self.nonzero, self.group) < 0 or self.nonzero > self.group:
            raise _wrong(f"{self.nonzero}:{self.group}", "N:M with N up to M")
        if not 0 <= self.sparsity <= 1:
            raise _wrong(f"a share of {self.sparsity!r}", "a number from 0 to 1", param="sparsity")
        if self.group and self.block != (1, 1):
            raise _wrong("N:M of blocks", "N:M, or blocks such as block:4")
        if min(self.block) < 1:
            raise _wrong(f"a block of {self.block}", "at least one element in each direction")

    @classmethod
    def parse(
        cls, pattern: str | None = None, sparsity: float | None = None, *, per_row: bool = False
    ) -> SparsityPattern:
        """From `unstructured` (or `None`), `2:4`, `block:4` or `1x4`, and a share unless N:M says it.

        Raises:
            UsageError: an unknown pattern, no share, or one that differs from that of N:M.
        """
        if match := re.fullmatch(r"(\d+):(\d+)", pattern or ""):
            nonzero, group = int(match[1]), int(match[2])
            if not group:
                raise _wrong(f"{pattern}", "N:M with M above zero")
            if sparsity is not None and abs(sparsity - (1 - nonzero / group)) > 1e-6:
                expected = f"no {{sparsity}}: {1 - nonzero / group:g} of the weights are zero"
                raise _wrong(f"{pattern} with a share of {sparsity:g}", expected)
            return cls(0.0, nonzero, group)
        block = re.fullmatch(r"(?:block:|(\d+)x)(\d+)", pattern or "")
        if pattern not in (None, "unstructured") and not block:
            raise _wrong(f"the pattern {pattern!r}", "unstructured, 2:4, 4:8 or block:4")
        if sparsity is None:
            raise _wrong(f"{pattern or 'sparsity'} without a share", "the share of zeros", param="sparsity")
        sides = (int(block[1] or 1), int(block[2])) if block else (1, 1)
        return cls(float(sparsity), block=sides, per_row=per_row)

    def __str__(self) -> str:
        if self.group:
            return f"{self.nonzero}:{self.group}"
        shape = "" if self.block == (1, 1) else f" in blocks of {self.block[0]}x{self.block[1]}"
        return f"{self.sparsity:.0%}{shape}"


def sparsity_mask(scores: Array, pattern: SparsityPattern) -> Array:
    """True for the elements that stay: those with the highest scores; of equal scores the first.

    Args:
        scores: `[out, in]` or `[out, in, kernel…]`, none negative. N:M and blocks run along the input, separately for
            each position of a kernel.
        pattern: how many zeros, and which together. A block at the edge may be smaller; inputs that M does not divide
            stay.

    >>> sparsity_mask(np.array([[1.0, 1.0, 1.0, 1.0]]), SparsityPattern(0.5)).tolist()
    [[True, True, False, False]]
    """
    if pattern.group:
        last = namespace(scores).moveaxis(scores, 1, -1)
        mask = _n_of_m(last.reshape((-1, last.shape[-1])), pattern).reshape(last.shape)
        return namespace(mask).moveaxis(mask, -1, 1)
    if pattern.block != (1, 1):
        return _block_mask(scores, pattern)
    rows = scores.reshape((scores.shape[0], -1) if pattern.per_row else (1, -1))
    return highest(rows, rows.shape[1] - zero_count(pattern.sparsity, rows.shape[1])).reshape(scores.shape)


def highest(scores: Array, count: int) -> Array:
    """True for the `count` highest scores of each row; of equal scores the first.

    >>> highest(np.array([[3.0, 1.0, 3.0, 3.0]]), 2).tolist()
    [[True, False, True, False]]
    """
    xp, width = namespace(scores), scores.shape[1]
    if count >= width or count <= 0 or not scores.shape[0]:
        return (xp.ones_like if count >= width else xp.zeros_like)(scores, dtype=xp.bool)
    if not is_numpy(scores) and scores.device.type != "cpu":  # sorting is fast there; selecting goes row by row
        order = xp.argsort(scores, dim=1, descending=True, stable=True)
        return xp.zeros_like(scores, dtype=xp.bool).scatter_(1, order[:, :count], True)
    if is_numpy(scores):
        least = np.partition(scores, width - count, axis=1)[:, width - count][:, None]
    else:
        least = scores.kthvalue(width - count + 1, dim=1, keepdim=True).values
    above, equal = scores > least, scores == least
    room = count - above.sum(1)[:, None]
    if bool((equal.sum(1)[:, None] > room).any()):
        equal = equal & (equal.cumsum(1) <= room)
    return above | equal


def _n_of_m(scores: Array, pattern: SparsityPattern) -> Array:
    rows, width = scores.shape
    full = width // pattern.group * pattern.group
    mask = namespace(scores).ones_like(scores, dtype=namespace(scores).bool)
    if full:
        groups = scores[:, :full].reshape((-1, pattern.group))
        mask[:, :full] = highest(groups, pattern.nonzero).reshape((rows, full))
    return mask


def _block_mask(scores: Array, pattern: SparsityPattern) -> Array:
    outputs, inputs, *kernel = scores.shape
    sides = (*pattern.block, *(1,) * len(kernel))
    blocks = BlockShape(tuple(scores.shape), sides)
    sums = blocks.split(scores, 0.0).sum(tuple(range(1, 2 * scores.ndim, 2)))
    mask = sparsity_mask(sums, SparsityPattern(pattern.sparsity, per_row=pattern.per_row))
    for axis, (side, width) in enumerate(zip((outputs, inputs), pattern.block)):
        mask = take(mask, arange(side, mask) // width, axis)
    return mask


def zero_count(sparsity: float, total: int) -> int:
    """A share of a total, to the nearest integer; halves up.

    The share is the decimal that it is written as: 0.55 of 10 is 6, though a binary 0.55 is a little less.

    >>> zero_count(0.5, 5), zero_count(0.55, 10), zero_count(1.0, 7)
    (3, 6, 7)
    """
    return floor(Fraction(repr(float(sparsity))) * total + Fraction(1, 2))


def distribute_zeros(zeros: int, existing: Sequence[int]) -> list[int]:
    """Zeros for several parts, as evenly as integers can be, and none fewer than a part has already.

    Args:
        zeros: in all; as many as exist if there are more.
        existing: zeros of each part.

    >>> distribute_zeros(5, [0, 0]), distribute_zeros(9, [0, 7, 1])
    ([3, 2], [1, 7, 1])
    """
    result, left = [int(count) for count in existing], max(zeros, int(sum(existing)))
    open_parts = list(range(len(result)))
    while open_parts:
        parts = len(open_parts)
        ends = [(2 * left * index + parts) // (2 * parts) for index in range(parts + 1)]
        shares = [stop - start for start, stop in pairwise(ends)]
        full = [index for index, share in zip(open_parts, shares) if result[index] > share]
        if not full:
            for index, share in zip(open_parts, shares):
                result[index] = share
            break
        left -= sum(result[index] for index in full)  # the others share what is left
        open_parts = [index for index in open_parts if index not in full]
    return result


def is_pruned(zeros: int, elements: int) -> bool:
    """Whether a weight with so many zeros was pruned on purpose.

    >>> is_pruned(1, 1000), is_pruned(1, 1001), is_pruned(0, 0)
    (True, False, False)
    """
    return zeros > 0 and zeros * _RANDOM_ZEROS >= elements


def _wrong(what: str, expected: str, param: str = "pattern") -> UsageError:
    return UsageError(
        f"{what} is no sparsity pattern" if param == "pattern" else what, code="sparsity-pattern", param=param,
        expected=expected, hint="{pattern=2:4}, or {sparsity=0.5}",
    )  # fmt: skip
