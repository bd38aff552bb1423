# SPDX-License-Identifier: Apache-2.0
"""Codes and scales in the bytes of ggml's blocks, one function for each layout.

Halves lie in one byte far apart: byte i of a block of 32 holds elements i (low) and i + 16 (high). Fifth and sixth
bits lie in bytes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.exporters._gguf_types import BlockType

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Blocks:
    """What some blocks hold.

    Args:
        type: their type.
        codes: `[N, parts, part]`, within the type's range.
        scale: float32 on values of float16, `[N]`.
        offset: the same, or none: what is added (a plain block) or subtracted `offsets` times (a K block).
        scales: `[N, parts]`, the integer scales of a K block, or none.
        offsets: the same, for its offsets.
    """

    type: BlockType
    codes: Tensor
    scale: Tensor
    offset: Tensor | None = None
    scales: Tensor | None = None
    offsets: Tensor | None = None

    def values(self) -> Tensor:
        """What the blocks stand for, `[N, block]`, in float32 as ggml computes it."""
        scale = self.scale[:, None] if self.scales is None else self.scale[:, None] * self.scales
        values = self.codes * scale[..., None]
        if self.offset is not None:
            added = self.offset[:, None] if self.offsets is None else -self.offset[:, None] * self.offsets
            values = values + added[..., None]
        return values.flatten(1)

    def or_else(self, kept: Tensor, other: Blocks) -> Blocks:
        """These blocks where `kept` `[N]`, others elsewhere; `[N, parts]` chooses among parts that share a scale."""
        mixed: list[Tensor | None] = []
        for ours, theirs in zip(self.tensors(), other.tensors()):
            if ours is None or theirs is None or kept.ndim > ours.ndim:
                mixed.append(theirs)
            else:
                mixed.append(torch.where(kept.reshape(kept.shape + (1,) * (ours.ndim - kept.ndim)), ours, theirs))
        return Blocks.of(self.type, mixed)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All but the type, in the order of the arguments."""
        return self.codes, self.scale, self.offset, self.scales, self.offsets

    @classmethod
    def of(cls, kind: BlockType, tensors: Sequence[Tensor | None]) -> Blocks:
        """The inverse of `tensors`."""
        codes, scale, *others = tensors
        assert codes is not None and scale is not None
        return cls(kind, codes, scale, *others)

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        """One after the other."""
        columns = zip(*(part.tensors() for part in parts))
        together = [[each for each in column if each is not None] for column in columns]
        return cls.of(parts[0].type, [torch.cat(each) if each else None for each in together])

    def pack(self) -> Bytes:
        """The bytes, `[N, bytes of a block]`."""
        codes = (self.codes.flatten(1) - self.type.lowest).numpy().astype(np.uint8)
        head = [_half(self.scale)] + ([] if self.offset is None else [_half(self.offset)])
        if self.type.name == "Q8_0":
            return np.concatenate([*head, codes + np.uint8(128)], axis=1)  # two's complement
        if self.scales is None:
            high = [] if self.type.highest - self.type.lowest < 16 else [np.packbits(codes >> 4, 1, "little")]
            return np.concatenate([*head, *high, _nibbles(codes, 16)], axis=1)
        if self.offsets is None:
            bits = codes.reshape(-1, 2, 4, 32)  # [N, half, quarter, element]
            above = np.bitwise_or.reduce((bits >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], 2)
            below = (bits[:, :, :2] & 15) | ((bits[:, :, 2:] & 15) << 4)
            parts = [below, above, self.scales.numpy().astype(np.int8).view(np.uint8), head[0]]
            return np.concatenate([part.reshape(len(codes), -1) for part in parts], axis=1)
        high = [] if self.type.highest < 16 else [np.packbits(codes.reshape(-1, 8, 32) >> 4, 1, "little")[:, 0]]
        return np.concatenate([*head, _six_bits(self.scales, self.offsets), *high, _nibbles(codes, 32)], axis=1)


def _half(numbers: Tensor) -> Bytes:
    return numbers.to(torch.float16)[:, None].numpy().view(np.uint8)


def _nibbles(codes: Bytes, apart: int) -> Bytes:
    """Low halves of bytes whose low and high element are `apart` elements apart."""
    pairs = codes.reshape(len(codes), -1, 2, apart) & 15
    joined: Bytes = np.bitwise_or(pairs[:, :, 0], pairs[:, :, 1] << 4, dtype=np.uint8)
    return joined.reshape(len(codes), -1)


def _six_bits(scales: Tensor, offsets: Tensor) -> Bytes:
    """Eight scales and eight offsets of six bits in 12 bytes.

    The first four of each are the low six bits of bytes 0 to 3 and 4 to 7. Of the others, the low four bits of both
    share bytes 8 to 11, and the two high bits lie above the first ones.
    """
    first, second = scales.numpy().astype(np.uint8), offsets.numpy().astype(np.uint8)
    high = [each[:, :4] | (each[:, 4:] >> 4 << 6) for each in (first, second)]
    low: Bytes = np.bitwise_or(first[:, 4:] & 15, second[:, 4:] << 4, dtype=np.uint8)
    return np.concatenate([*high, low], axis=1)
