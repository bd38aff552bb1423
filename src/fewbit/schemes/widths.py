# SPDX-License-Identifier: Apache-2.0
"""Bits a weight: the mode they stand for, or the modes that make them on average."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from fewbit.errors import UsageError
from fewbit.schemes.modes import MODES, mode_name, mode_spec
from fewbit.schemes.rules import element
from fewbit.schemes.spec import QuantizationSpec

DEFAULT = "int8_asym"
_FAMILIES = (("int2_sym", "int3_sym", "int4_sym", "int8_sym"), ("int4_asym", "int8_asym"))


def modes_for(mode: str | Enum | Sequence[str | Enum] | None, bits: float | None) -> tuple[str, ...]:
    """The modes weights may become: one, or several to choose from, the narrowest first.

    Args:
        mode: one mode; several, of which each layer gets one; or none.
        bits: a whole number that is a mode's, or what the weights shall have on average, scales included.

    Raises:
        UsageError: bits that cannot be, or that the mode does not have.

    >>> modes_for(None, 4), modes_for("int4_asym", 4.5)
    (('int4_sym',), ('int4_asym', 'int8_asym'))
    """
    several = not isinstance(mode, str | Enum | None)
    names = tuple(dict.fromkeys(map(mode_name, mode if several else [] if mode is None else [mode])))  # type: ignore
    if bits is None:
        if len(names) > 1:
            raise UsageError(f"{len(names)} modes and no bits", where="bits", expected="bits a weight, on average")
        return names or (DEFAULT,)
    if isinstance(bits, bool) or not isinstance(bits, int | float) or not 1 < bits <= 16:
        raise UsageError(f"bits={bits!r}", where="bits", expected="a number from 2 to 8, such as 4 or 4.5")
    if several:
        if len(names) < 2:
            raise UsageError(f"{len(names)} modes to choose from", where="mode", expected="two or more")
        return tuple(sorted(names, key=_bits))
    given = names[0] if names else None
    if (whole := _whole(given, bits)) is not None:
        return (whole,)
    family = next((each for each in _FAMILIES if (given or each[0]) in each), None)
    if family is None:
        raise UsageError(
            f"bits={bits} of {given} on average",
            where="bits",
            expected="two modes or more to choose from",
            try_=f"mode=[{given!r}, 'int8_sym']; on the command line, --mode {given} --mode int8_sym",
        )
    return family


def formats_of(
    modes: Sequence[str], *, group_size: int | None = None, algorithm: str | None = None
) -> dict[str, QuantizationSpec]:
    """The specs of modes that lie side by side in one model.

    Eight bits take the groups of the modes beside them: runtimes that have several widths have them in the same groups.

    >>> formats_of(["int4_sym", "int8_sym"], group_size=64)["int8_sym"].group_size
    64
    """
    specs = {name: mode_spec(name, group_size=group_size, algorithm=algorithm) for name in modes}
    grouped = [specs[name] for name in modes if MODES[name].get("qscheme") == "per_group"]
    for name in modes if grouped else ():
        if MODES[name].get("qscheme") == "per_channel" and "int" in name:
            beside = {
                "qscheme": "per_group",
                "group_size": grouped[-1].group_size,
                "scale_type": grouped[-1].scale_type,
            }
            # Said here, since what a layer does not say it takes from the narrow mode around it.
            full: dict[str, Any] = {"full_range": False} if MODES[name]["symmetric"] else {}
            specs[name] = QuantizationSpec.from_dict({**beside, **full}).over(specs[name])
    return specs


def _whole(mode: str | None, bits: float) -> str | None:
    """The mode that a whole number stands for; none if it is an average."""
    own = f"int{int(bits)}_sym"
    if bits != int(bits) or (own not in MODES and (mode is None or _bits(mode) != bits)):
        return None
    if mode is not None and _bits(mode) != bits:
        raise UsageError(
            f"bits={bits} and mode={mode!r}, which has {_bits(mode)}",
            where="bits",
            expected="one of the two, or a fraction: bits on average",
        )
    return mode or own


def _bits(mode: str) -> int:
    number = element(mode_spec(mode).given)
    assert number is not None
    return number.bits
