# SPDX-License-Identifier: Apache-2.0
"""Bytes of numbers through Zstandard, where that makes them smaller: byte plane by byte plane, and bounded.

Exponents repeat themselves, lowest bits do not: first bytes of all elements go first, then all second ones, and so on.
"""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_LEVEL = 3
_MOST_EXPANSION = 15
_SMALL = 1 << 16
"""Above so many bytes a piece does not shrink to less than a fifteenth: a reader tells a bomb by its size."""


def squeeze(piece: Bytes, planes: int) -> Bytes | None:
    """A piece of elements of so many bytes, smaller; none if it is not.

    >>> small = squeeze(np.zeros(400, np.uint8), 4)
    >>> small is not None and unsqueeze(small, 4, 400).tobytes() == bytes(400)
    True
    """
    plain = piece if planes == 1 else np.ascontiguousarray(piece.reshape(-1, planes).T)
    small = zstandard.ZstdCompressor(level=_LEVEL).compress(plain.tobytes())
    bounded = piece.nbytes <= _SMALL or piece.nbytes <= _MOST_EXPANSION * len(small)
    return np.frombuffer(small, np.uint8) if len(small) < piece.nbytes and bounded else None


def unsqueeze(small: Bytes, planes: int, nbytes: int) -> Bytes:
    """What a piece was.

    Args:
        small: what `squeeze` gave.
        planes: as given there.
        nbytes: how many there may be.

    Raises:
        ValueError: what cannot be decompressed, or is more.
    """
    try:
        plain = zstandard.ZstdDecompressor().decompress(small.tobytes(), max_output_size=nbytes)
    except zstandard.ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if planes < 1 or len(plain) % planes:
        raise ValueError(f"{len(plain)} bytes in {planes} planes")
    return np.ascontiguousarray(np.frombuffer(plain, np.uint8).reshape(planes, -1).T).reshape(-1)
