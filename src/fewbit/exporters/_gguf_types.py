# SPDX-License-Identifier: Apache-2.0
"""The tensor types of a GGUF file that fewbit writes: what a block holds, and the file type that is named for it.

Q4_0 Q5_0 Q8_0   32 elements, one float16 scale d            x = d q
Q4_1 Q5_1        32 elements, scale d and offset m           x = d q + m
Q4_K Q5_K        256 elements in 8 parts, 6-bit s and t      x = d s q - m t
Q6_K             256 elements in 16 parts, 8-bit s           x = d s q
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fewbit.errors import UsageError, nearest
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType


@dataclass(frozen=True)
class BlockType:
    """One type of blocks.

    Args:
        name: as ggml calls it.
        block: elements of a block.
        part: elements that share a scale; the whole block but for the K types.
        lowest: the smallest code, before ggml's own shift.
        highest: the largest.
        offset: whether a block, or each part of it, also has an offset.
        scales: the smallest and largest 6- or 8-bit scale of a part; none where a block has no parts.
        file_type: the number under `general.file_type` of a file that holds mostly this type.
    """

    name: str
    block: int
    part: int
    lowest: int
    highest: int
    offset: bool
    scales: tuple[int, int] | None
    file_type: int

    @property
    def grid(self) -> Grid:
        """What a part is by itself; its scales in the precision of the file, where a block has no parts."""
        bits = (self.highest - self.lowest).bit_length()
        kept = ScaleType.float16 if self.scales is None else ScaleType.float32
        kind = Dtype[f"uint{bits}" if self.offset else f"int{bits}"]
        common = {"granularity": QSchemeType.per_group, "group_size": self.part, "scale_type": kept}
        shape = {"symmetric": False, "float_zero": True} if self.offset else {"full_range": True}
        return Grid(kind, **common, **shape)  # type: ignore[arg-type]


_TYPES = (
    BlockType("Q4_0", 32, 32, -8, 7, False, None, 2),
    BlockType("Q4_1", 32, 32, 0, 15, True, None, 3),
    BlockType("Q5_0", 32, 32, -16, 15, False, None, 8),
    BlockType("Q5_1", 32, 32, 0, 31, True, None, 9),
    BlockType("Q8_0", 32, 32, -128, 127, False, None, 7),
    BlockType("Q4_K", 256, 32, 0, 15, True, (0, 63), 14),
    BlockType("Q5_K", 256, 32, 0, 31, True, (0, 63), 16),
    BlockType("Q6_K", 256, 16, -32, 31, False, (-128, 127), 18),
)
BLOCKS = {each.name: each for each in _TYPES}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, **{each.name: each.file_type for each in _TYPES}}
# What llama.cpp's own tool takes for rows that are not a multiple of 256.
_NARROWER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def type_name(name: str, where: str) -> str:
    """A type's name, in any case, if there is one.

    >>> type_name("q4_k", "type")
    'Q4_K'
    """
    if name.upper() not in FILE_TYPES:
        raise UsageError(f"there is no GGUF type {name!r}", where=where, expected=nearest(name.upper(), FILE_TYPES))
    return name.upper()


def for_width(name: str, width: int) -> str:
    """The type for rows of a width: a block never goes beyond its row.

    >>> for_width("Q4_K", 576), for_width("Q4_0", 40)
    ('Q5_0', 'F16')
    """
    if name in BLOCKS and width % BLOCKS[name].block:
        name = _NARROWER.get(name, name)
    return "F16" if name in BLOCKS and width % BLOCKS[name].block else name


def for_grid(grid: Grid) -> str | None:
    """The smallest type that holds a grid's codes as they are, with one scale for 32 of them; none if there is none.

    Asymmetric codes of 6 to 8 bits are the exception: no type with an offset has so many, and `Q8_0` comes near.

    >>> for_grid(Grid(Dtype.int4)), for_grid(Grid(Dtype.uint4, symmetric=False)), for_grid(Grid(Dtype.nf4))
    ('Q4_0', 'Q4_1', None)
    """
    if not grid.dtype.is_integer or grid.dtype.bits > 8 or grid.two_level:
        return None
    bits = 4 if grid.dtype.bits <= 4 else 5 if grid.dtype.bits == 5 else 8
    return f"Q{bits}_{int(grid.asymmetric and bits < 8)}"
