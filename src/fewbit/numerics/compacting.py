# SPDX-License-Identifier: Apache-2.0
"""A tensor's bytes without those of its zeros, and back, bit for bit.

What is not zero is kept in order, and a mask says where: one bit an element. (Two 2-bit places for every four elements,
as the hardware for 2:4 has them, are one bit an element too.) Floats of which many are -0.0 have one bit more for each
zero. Codes have no zero that is told by its bits: of one-byte codes the commonest is the one that is left out. Then
each piece goes through Zstandard where that makes it smaller: masks of 2:4 take two thirds of a bit, codes that share
a byte what their entropy is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.numerics.squeezing import Bytes, squeeze, unsqueeze


@dataclass(frozen=True)
class Compact:
    """A tensor's bytes in pieces.

    Args:
        unit: bits of an element; 0 if nothing was left out and there is one piece, `values`.
        fill: the bits of the element that was left out.
        pieces: `mask`, `values` and, of floats, `signs`, as they are kept.
        squeezed: which of them went through Zstandard, and in how many byte planes.
    """

    unit: int = 0
    fill: int = 0
    pieces: dict[str, Bytes] = field(default_factory=dict)
    squeezed: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(piece.nbytes for piece in self.pieces.values())

    def facts(self) -> dict[str, Any]:
        """Everything but the pieces, as JSON values."""
        return {"unit": self.unit, "fill": self.fill, "squeezed": self.squeezed}


def compacted(content: Bytes, itemsize: int, *, signed: bool) -> Compact:
    """The smallest form of a tensor's bytes.

    Args:
        content: all of them, flat.
        itemsize: bytes of an element.
        signed: whether the highest bit of an element is a sign, so that there are two zeros.

    >>> zeros = compacted(np.zeros(4096, np.uint8), 4, signed=True)
    >>> restored(zeros, 4096, 4).tobytes() == bytes(4096), zeros.nbytes < 128
    (True, True)
    """
    width = min(itemsize, 8)
    return min((_squeezed(each, width) for each in _ways(content, width, signed)), key=lambda each: each.nbytes)


def restored(compact: Compact, nbytes: int, itemsize: int) -> Bytes:
    """The bytes a tensor had.

    Args:
        compact: what `compacted` gave.
        nbytes: how many bytes there are.
        itemsize: of an element.

    Raises:
        ValueError: pieces that contradict one another, or these numbers.
    """
    width = min(itemsize, 8)
    if compact.unit == 0:
        _expect("pieces", set(compact.pieces), {"values"})
        return _piece(compact, "values", nbytes)
    if compact.unit != 8 * width:
        raise ValueError(f"elements of {compact.unit} bits in a tensor of {itemsize} bytes each")
    if not set(compact.pieces) - {"signs"} == {"mask", "values"}:
        raise ValueError(f"it has the pieces {sorted(compact.pieces)}")
    count = nbytes // width
    mask = _bits(compact, "mask", count)
    kept = int(mask.sum())
    values = _piece(compact, "values", kept * width)
    kind = np.dtype(f"u{width}")
    if not 0 <= compact.fill < 1 << compact.unit:
        raise ValueError(f"the fill {compact.fill} in elements of {compact.unit} bits")
    elements = np.full(count, compact.fill, kind)
    if "signs" in compact.pieces:
        signs = _bits(compact, "signs", count - kept)
        elements[~mask] = signs.astype(kind) << (compact.unit - 1)
    elements[mask] = values.view(kind)
    return elements.view(np.uint8)


def _ways(content: Bytes, width: int, signed: bool) -> Iterator[Compact]:
    """The bytes as they are, and what is worth trying beside."""
    yield Compact(pieces={"values": content})
    if not content.size:
        return
    elements = content.view(f"u{width}")
    if signed:
        kept = (elements << 1).astype(elements.dtype) != 0  # shifted out, the sign does not count
        exact = elements != 0
        negative = np.count_nonzero(exact) - np.count_nonzero(kept)
        few = negative * 8 * width <= len(kept) - np.count_nonzero(kept)  # a bit for each zero would cost more
        yield from _masked(elements, 8 * width, 0, exact if few else kept)
    elif width > 1:
        yield from _masked(elements, 8 * width, 0, elements != 0)
    else:
        fill = int(np.bincount(elements).argmax())
        yield from _masked(elements, 8, fill, elements != fill)


def _masked(elements: NDArray[Any], unit: int, fill: int, mask: NDArray[np.bool_]) -> Iterator[Compact]:
    kept = int(np.count_nonzero(mask))
    if kept * unit + len(mask) >= unit * len(mask):  # the mask alone costs more than it saves
        return
    values = elements[mask]
    pieces = {"mask": np.packbits(mask), "values": values.view(np.uint8)}
    signs = elements[~mask] != fill
    if signs.any():
        pieces["signs"] = np.packbits(signs)
    yield Compact(unit, fill, pieces)


def _squeezed(compact: Compact, width: int) -> Compact:
    pieces, squeezed = dict(compact.pieces), {}
    for name, piece in compact.pieces.items():
        planes = width if name == "values" else 1
        small = squeeze(piece, planes)
        if small is not None:
            pieces[name], squeezed[name] = small, planes
    return Compact(compact.unit, compact.fill, pieces, squeezed)


def _piece(compact: Compact, name: str, nbytes: int) -> Bytes:
    """A piece as it was before it was squeezed; it has to have so many bytes."""
    kept, planes = compact.pieces[name], compact.squeezed.get(name)
    if planes is not None:
        try:
            kept = unsqueeze(kept, planes, nbytes)
        except ValueError as error:
            raise ValueError(f"its {name}: {error}") from error
    _expect(f"bytes of {name}", kept.nbytes, nbytes)
    return kept


def _bits(compact: Compact, name: str, count: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(_piece(compact, name, -(-count // 8)))
    if bits[count:].any():
        raise ValueError(f"its {name} goes on after {count} bits")
    return bits[:count].view(np.bool_)


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"{what}: {found} where {wanted} are expected")


def read_compact(facts: Mapping[str, Any], pieces: dict[str, Bytes]) -> Compact:
    """The inverse of `Compact.facts`, with the pieces.

    Raises:
        ValueError: facts that are none.
    """
    unit, fill, squeezed = facts.get("unit"), facts.get("fill"), facts.get("squeezed")
    whole = all(type(number) is int for number in (unit, fill))
    if not whole or not isinstance(squeezed, dict) or not all(type(n) is int for n in squeezed.values()):
        raise ValueError("its description is not one of unit, fill and squeezed")
    assert isinstance(unit, int) and isinstance(fill, int)
    return Compact(unit, fill, pieces, squeezed)
