# SPDX-License-Identifier: Apache-2.0
"""The block types of ggml: what a block stands for, and its bytes.

Q4_0 Q5_0 Q8_0   32 elements, one float16 scale d                         x = d q
Q4_1 Q5_1        32 elements, scale d and offset m                        x = d q + m
Q2_K Q4_K Q5_K   256 elements, a 4- or 6-bit scale s and offset t per sub-block   x = d s q - m t
Q3_K Q6_K        256 elements, a 6- or 8-bit scale s per sub-block        x = d s q
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    Bytes = np.ndarray


@dataclass(frozen=True)
class BlockType:
    """One type.

    Args:
        name: as ggml calls it.
        block: elements of a block.
        part: elements that share a scale; fewer than a block in the K types.
        lowest: the smallest integer, before ggml's own shift.
        highest: the largest integer.
        offset: whether values have an offset.
        scales: the range of the integer scales of sub-blocks; `None` if a block has none.
        file_type: `general.file_type` of a file that holds mostly this type.
    """

    name: str
    block: int
    part: int
    lowest: int
    highest: int
    offset: bool
    scales: tuple[int, int] | None
    file_type: int


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("Q4_0", 32, 32, -8, 7, False, None, 2),
        BlockType("Q4_1", 32, 32, 0, 15, True, None, 3),
        BlockType("Q5_0", 32, 32, -16, 15, False, None, 8),
        BlockType("Q5_1", 32, 32, 0, 31, True, None, 9),
        BlockType("Q8_0", 32, 32, -128, 127, False, None, 7),
        BlockType("Q2_K", 256, 16, 0, 3, True, (0, 15), 10),
        BlockType("Q3_K", 256, 16, -4, 3, False, (-32, 31), 12),
        BlockType("Q4_K", 256, 32, 0, 15, True, (0, 63), 15),
        BlockType("Q5_K", 256, 32, 0, 31, True, (0, 63), 17),
        BlockType("Q6_K", 256, 16, -32, 31, False, (-128, 127), 18),
    )
}
FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Blocks:
    """The content of N blocks.

    Args:
        type: of all of them.
        codes: float32 [N, parts, part], whole numbers in the range of the type.
        d: float32 [N], values of float16.
        m: the same for offsets, or `None`: added in Q4_1 and Q5_1, subtracted `offsets` times in K types.
        scales: float32 [N, parts], whole numbers, or `None`.
        offsets: the same for offsets.
    """

    type: BlockType
    codes: Tensor
    d: Tensor
    m: Tensor | None = None
    scales: Tensor | None = None
    offsets: Tensor | None = None

    def values(self) -> Tensor:
        """What the blocks stand for, [N, parts, part], rounded as ggml rounds."""
        step = self.d[:, None] if self.scales is None else self.d[:, None] * self.scales
        values = self.codes * step[..., None]
        if self.m is None:
            return values
        if self.offsets is None:
            return values + self.m[:, None, None]
        return values - (self.m[:, None] * self.offsets)[..., None]

    def pack(self) -> Bytes:
        """The bytes, uint8 [N, bytes of a block]."""
        return _PACKERS[self.type.name](self)


def _pack_simple(blocks: Blocks) -> Bytes:
    """d, m, the fifth bits, then nibbles: byte i holds elements i and i + 16."""
    codes = _unsigned(blocks)
    head = [_half(blocks.d)] + ([] if blocks.m is None else [_half(blocks.m)])
    fifth = [np.packbits(codes >> 4, axis=1, bitorder="little")] if "Q5" in blocks.type.name else []
    return np.concatenate([*head, *fifth, _nibbles(codes, 16)], axis=1)


def _pack_q8_0(blocks: Blocks) -> Bytes:
    codes = blocks.codes.flatten(1).numpy().astype(np.int8).view(np.uint8)
    return np.concatenate([_half(blocks.d), codes], axis=1)


def _pack_q2_k(blocks: Blocks) -> Bytes:
    scales, offsets = _bytes(blocks.scales), _bytes(blocks.offsets)
    parts = [scales | (offsets << 4), _crumbs(_unsigned(blocks)), _half(blocks.d), _half(blocks.m)]
    return np.concatenate(parts, axis=1)


def _pack_q3_k(blocks: Blocks) -> Bytes:
    codes = _unsigned(blocks)
    # bit j of byte l is the third bit of element 32 j + l
    third = np.packbits((codes >> 2).reshape(-1, 8, 32), axis=1, bitorder="little")[:, 0]
    assert blocks.scales is not None
    scales = _bytes(blocks.scales + 32)
    low = (scales[:, :8] & 15) | ((scales[:, 8:] & 15) << 4)
    high = np.zeros((len(codes), 4), np.uint8)
    for quarter in range(4):
        high |= (scales[:, 4 * quarter : 4 * quarter + 4] >> 4) << (2 * quarter)
    return np.concatenate([third, _crumbs(codes & 3), low, high, _half(blocks.d)], axis=1)


def _pack_q4_q5_k(blocks: Blocks) -> Bytes:
    codes = _unsigned(blocks)
    fifth = []
    if blocks.type.name == "Q5_K":
        fifth = [np.packbits((codes >> 4).reshape(-1, 8, 32), axis=1, bitorder="little")[:, 0]]
    scales = _six_bits(_bytes(blocks.scales), _bytes(blocks.offsets))
    return np.concatenate([_half(blocks.d), _half(blocks.m), scales, *fifth, _nibbles(codes, 32)], axis=1)


def _pack_q6_k(blocks: Blocks) -> Bytes:
    codes = _unsigned(blocks).reshape(-1, 2, 4, 32)  # halves of 128 elements, each in four quarters
    low = (codes[:, :, :2] & 15) | ((codes[:, :, 2:] & 15) << 4)
    high = np.zeros((len(codes), 2, 32), np.uint8)
    for quarter in range(4):
        high |= (codes[:, :, quarter] >> 4) << (2 * quarter)
    assert blocks.scales is not None
    scales = blocks.scales.numpy().astype(np.int8).view(np.uint8)
    parts = [low, high, scales, _half(blocks.d)]
    return np.concatenate([part.reshape(len(codes), -1) for part in parts], axis=1)


_PACKERS = {
    "Q4_0": _pack_simple, "Q4_1": _pack_simple, "Q5_0": _pack_simple, "Q5_1": _pack_simple, "Q8_0": _pack_q8_0,
    "Q2_K": _pack_q2_k, "Q3_K": _pack_q3_k, "Q4_K": _pack_q4_q5_k, "Q5_K": _pack_q4_q5_k, "Q6_K": _pack_q6_k,
}  # fmt: skip


def _six_bits(scales: Bytes, offsets: Bytes) -> Bytes:
    """Eight scales and eight offsets of six bits in 12 bytes.

    Bytes 0 to 3 and 4 to 7 hold the first four scales and offsets in their low six bits; bytes 8 to 11 hold the low
    four bits of the others; the two high bits of these lie above the first ones.
    """
    first = [part[:, :4] | (part[:, 4:] >> 4 << 6) for part in (scales, offsets)]
    return np.concatenate([*first, (scales[:, 4:] & 15) | (offsets[:, 4:] << 4)], axis=1)


def _nibbles(codes: Bytes, distance: int) -> Bytes:
    """Two elements per byte that lie `distance` apart, the first in the low half."""
    pairs = codes.reshape(len(codes), -1, 2, distance) & 15
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(len(codes), -1)


def _crumbs(codes: Bytes) -> Bytes:
    """Four elements of two bits per byte, 32 apart."""
    quarters = codes.reshape(len(codes), 2, 4, 32)
    packed = np.zeros((len(codes), 2, 32), np.uint8)
    for quarter in range(4):
        packed |= quarters[:, :, quarter] << (2 * quarter)
    return packed.reshape(len(codes), -1)


def _unsigned(blocks: Blocks) -> Bytes:
    return (blocks.codes.flatten(1) - blocks.type.lowest).numpy().astype(np.uint8)


def _half(numbers: Tensor | None) -> Bytes:
    import torch

    assert numbers is not None
    return numbers.to(torch.float16)[:, None].numpy().view(np.uint8)


def _bytes(numbers: Tensor | None) -> Bytes:
    assert numbers is not None
    return numbers.numpy().astype(np.uint8)
