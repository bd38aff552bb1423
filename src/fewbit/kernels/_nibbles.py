# SPDX-License-Identifier: Apache-2.0
"""The layouts of PyTorch's int4 kernels, learnt from their own packing functions.

Both kernels want codes 0 … 15 of a weight `[out, in]` two to a byte, in an order of their own, which on a CPU follows
the instructions it has. The order is the same in every tile, so it is learnt from one: a tile of known codes is
packed, and what lies where is read off. With that, codes come back from a packed weight bit by bit, on whatever
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16  # both kernels take outputs in such steps
_WHOLE = 64  # no CPU packs more rows together
_CHUNK = 1 << 18  # elements packed at a time: PyTorch packs from int32, eight times the size of the result


class Cpu:
    """For `_weight_int4pack_mm_for_cpu`: blocks of rows, within a block column after column."""

    def pack(self, codes: Tensor) -> Tensor:
        """uint8 `[out, in]` holding 0 … 15, to bytes `[out, in / 2]`."""
        packed = codes.new_empty(codes.shape[0], codes.shape[1] // 2)
        rows = max(_CHUNK // codes.shape[1] // _WHOLE, 1) * _WHOLE
        for start in range(0, codes.shape[0], rows):
            packed[start : start + rows] = _pack_cpu(codes[start : start + rows])
        return packed

    def tiles(self, packed: Tensor, elements: int) -> Iterator[tuple[slice, Tensor]]:
        """The codes of some blocks at a time.

        Args:
            packed: what `pack` gave.
            elements: about so many at a time.

        Yields:
            Which outputs, and their codes, uint8 `[blocks, in, outputs of a block]`.
        """
        outputs, half = packed.shape
        width, tail = _block(), outputs % _block()
        count = max(elements // (2 * half * width), 1)
        blocks = packed[: outputs - tail].view(-1, 2 * half, width // 2)
        for start in range(0, len(blocks), count):
            part = blocks[start : start + count]
            yield slice(start * width, (start + len(part)) * width), _in_order(part, width)
        if tail:
            last = packed[outputs - tail :].view(1, 2 * half, tail // 2)
            yield slice(outputs - tail, outputs), _in_order(last, tail)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`."""
        codes = packed.new_empty(packed.shape[0], 2 * packed.shape[1])
        for outputs, tile in self.tiles(packed, 1):
            codes[outputs] = tile[0].t()
        return codes


class Cuda:
    """For `_weight_int4pack_mm`: tiles of 8 rows and 16, 32 … columns, spread over the threads of a warp.

    Args:
        features: of the weight; a tile is as wide as divides them.
    """

    def __init__(self, features: int):
        self.inner = next(inner for inner in (8, 4, 2) if features % (16 * inner) == 0)

    def pack(self, codes: Tensor) -> Tensor:
        """uint8 `[out, in]` holding 0 … 15, to int32 `[out / 8, in / (16 · inner), 32, inner / 2]`."""
        return _pack_cuda(codes, self.inner)

    def fast_unpack(self, packed: Tensor) -> Tensor:
        """The same as `unpack`, int16, by shifts on whole tensors.

        A word holds eight columns of a row: 2q + o + 8e + 16t + 32j, with o in bit 4 of the place of a nibble within
        the word, t in bit 3, e in bit 2; q and the row count the words of a warp, j those of a thread.
        """
        rows, tiles, _, each = packed.shape
        words = packed.view(rows, tiles, 8, 4, each).permute(0, 2, 1, 4, 3).contiguous()  # row, tile, j, q
        pairs = words.view(torch.int16)  # …, q and o
        places = torch.arange(0, 16, 4, device=packed.device, dtype=torch.int16)  # t and e
        return (pairs.unsqueeze(-2) >> places[:, None]).bitwise_and_(15).view(8 * rows, -1)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`."""
        rows, tiles = packed.shape[:2]
        nibbles = _nibbles(packed.view(torch.uint8).reshape(rows, tiles, -1))
        codes = nibbles[..., _order_cuda(self.inner, packed.device)].view(rows, tiles, 8, -1)
        return codes.transpose(1, 2).reshape(8 * rows, -1)


def _pack_cpu(codes: Tensor) -> Tensor:
    return torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)


def _pack_cuda(codes: Tensor, inner: int) -> Tensor:
    return torch._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], inner)


def _nibbles(packed: Tensor) -> Tensor:
    """The codes of `[…, bytes]`: all low halves, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1)


def _learn(pack: Callable[[Tensor], Tensor], rows: int, columns: int, device: torch.device) -> Tensor:
    """For every nibble of a packed tile, in the order of `_nibbles`, which element of the tile it is."""
    index = torch.arange(rows * columns, device=device).reshape(rows, columns)
    found = torch.zeros(rows * columns, dtype=torch.int64, device=device)
    for place in range(0, (rows * columns - 1).bit_length(), 4):
        packed = pack((index >> place & 15).to(torch.uint8))
        found |= _nibbles(packed.contiguous().view(torch.uint8).flatten()).long() << place
    return found


@cache
def _block() -> int:
    """How many rows this CPU packs together: those whose first column comes before any second one."""
    columns = _learn(_pack_cpu, 64, 2, torch.device("cpu")) % 2
    low = columns[: len(columns) // 2]  # of the low halves alone, each stands for a byte
    return 2 * int(low.cumsum(0).eq(0).sum())


@cache
def _order_cpu(rows: int) -> Tensor | None:
    """Where in the nibbles of one column each row lies; none if they are in order."""
    tile = _learn(_pack_cpu, rows, 2, torch.device("cpu")).view(2, 2, rows // 2)  # half, column, byte
    order = tile[:, 0].flatten() // 2
    return None if torch.equal(order, torch.arange(rows)) else order.argsort()


@cache
def _order_cuda(inner: int, device: torch.device) -> Tensor:
    return _learn(lambda codes: _pack_cuda(codes, inner), 8, 16 * inner, device).argsort()


def _in_order(blocks: Tensor, rows: int) -> Tensor:
    order = _order_cpu(rows)
    nibbles = _nibbles(blocks)
    return nibbles if order is None else nibbles[..., order]


def padded(codes: Tensor) -> Tensor:
    """With as many rows of zeros more as the kernels need."""
    return F.pad(codes, (0, 0, 0, -codes.shape[0] % ROWS))
