# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points of the values that become codes, where some go together.

Values that only move, the parts of a concatenation, and a value before and after a product or sum with one number share
their codes: what one reads as a number, the other reads as `factor * number + offset`. They are one family with one
scale. Where that would cost bits, because parts differ in range or something large is added, they stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor

from fewbit.backends.graph.units import Unit

_ALIKE = 1.25


@dataclass(frozen=True)
class CodeScale:
    """How codes 0 … 255 are read: `scale * (code - zero)`."""

    scale: float
    zero: int

    @property
    def range(self) -> tuple[float, float]:
        """The values of the lowest and the highest code."""
        return -self.scale * self.zero, self.scale * (255 - self.zero)

    def code(self, number: float) -> int:
        """The code that is read as a number, or as the nearest to it there is."""
        return round(min(255.0, max(0.0, number / self.scale + self.zero)))

    def follows(self, other: CodeScale, factor: float, offset: float) -> bool:
        """Whether codes that `other` reads as a number are read here as `factor * number + offset`, to a step."""
        same = abs(self.scale - factor * other.scale) <= 1e-6 * self.scale
        return same and abs(other.zero - self.zero - offset / self.scale) <= 1 + 1e-6

    def clips(self, low: float, high: float) -> bool:
        """Whether no code is read as a number further than half a step outside two ends."""
        least, most = self.range
        return least > low - self.scale / 2 and most < high + self.scale / 2


@dataclass(frozen=True)
class Kin:
    """How a value follows from the head of its family: `factor * head + offset`."""

    head: str
    factor: float = 1.0
    offset: float = 0.0


def families(units: Iterable[Unit], ranges: Mapping[str, tuple[float, float]] | None = None) -> dict[str, Kin]:
    """Every value that units in integers read or give, and the family it belongs to.

    Args:
        units: in integers.
        ranges: of the values. Parts of a concatenation whose ranges differ much from that of the whole keep scales of
            their own: what a common one saves in time it would cost in bits. So do a value and its sum with a number
            that is large beside it.
    """
    known: dict[str, Kin] = {}
    members: dict[str, list[str]] = {}

    def kin(name: str) -> Kin:
        if name not in known:
            known[name], members[name] = Kin(name), [name]
        return known[name]

    def join(source: str, result: str, factor: float = 1.0, offset: float = 0.0) -> None:
        """Let `result = factor * source + offset`; where the two are kin already, they stay as they are."""
        a, b = kin(source), kin(result)
        if a.head == b.head:
            return
        # result = fb * hb + ob and = factor * (fa * ha + oa) + offset, so hb follows from ha.
        step = factor * a.factor / b.factor
        rest = (factor * a.offset + offset - b.offset) / b.factor
        for name in members.pop(b.head):
            mine = known[name]
            known[name] = Kin(a.head, mine.factor * step, mine.factor * rest + mine.offset)
            members[a.head].append(name)

    # What the parts of a concatenation are to each other is said last: if two of them follow from one another already,
    # they stay so, and the concatenation reads each in its own way.
    for unit in sorted(units, key=lambda unit: unit.kind == "concat"):
        for value in (*unit.reads, *unit.gives):
            kin(value.name or "")
        if unit.kind == "pass":
            for value in unit.gives:
                join(unit.reads[0].name or "", value.name or "")
        elif unit.kind == "affine":
            if ranges is None or share_codes(unit, ranges[unit.reads[0].name or ""], ranges[unit.out.name or ""]):
                join(unit.reads[0].name or "", unit.out.name or "", unit.factor, unit.offset)
        elif unit.kind == "concat":
            for value in unit.reads:
                if ranges is None or _alike(ranges[value.name or ""], ranges[unit.out.name or ""]):
                    join(unit.out.name or "", value.name or "")
    return known


def _alike(part: tuple[float, float], whole: tuple[float, float]) -> bool:
    """Whether codes on the scale of the whole lose little of a part."""
    return _length(*whole) <= _ALIKE * _length(*part)


def share_codes(unit: Unit, before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Whether a value before and after a product or sum with a number shares its codes: if they lose little of either.

    Args:
        unit: an `affine` one.
        before: the range of what it reads.
        after: the range of what it gives.
    """
    if unit.offset == 0:
        return True
    both = _length(*after, unit.offset)  # of what comes after, with the zero of what was before
    return both <= _ALIKE * min(unit.factor * _length(*before), _length(*after))


def _length(*ends: float) -> float:
    """From the smallest to the largest of some numbers and zero."""
    return max(*ends, 0.0) - min(*ends, 0.0)


def code_scales(kin: Mapping[str, Kin], ranges: Mapping[str, tuple[float, float]]) -> dict[str, CodeScale]:
    """The scale and zero point of every value.

    Args:
        kin: the families.
        ranges: low and high of the values that were looked at; at least one of each family.
    """
    groups: dict[str, list[str]] = {}
    for name, it in kin.items():
        groups.setdefault(it.head, []).append(name)
    found: dict[str, CodeScale] = {}
    for names in groups.values():
        low, high = 0.0, 0.0
        for name in names:
            it = kin[name]
            for end in (*ranges.get(name, ()), 0.0):  # every member's zero is a code
                at = (end - it.offset) / it.factor
                low, high = min(low, at), max(high, at)
        scale = max(high - low, 1e-30) / 255
        scale = _in_step(scale, {it.offset / it.factor for name in names if (it := kin[name]).offset})
        zero = min(255, max(0, round(-low / scale)))
        for name in names:
            it = kin[name]
            shifted = round(zero - it.offset / (it.factor * scale))
            found[name] = CodeScale(scale * it.factor, min(255, max(0, shifted)))
    return found


def _in_step(scale: float, offsets: set[float]) -> float:
    """A scale, a little larger, that divides an offset, so that the zero points on both sides of it are whole."""
    if len(offsets) != 1:
        return scale
    offset = abs(offsets.pop())
    steps = floor(offset / scale)
    return offset / steps if steps >= 4 else scale
