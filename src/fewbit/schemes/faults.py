# SPDX-License-Identifier: Apache-2.0
"""Faults of a configuration: gathered first, then raised together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from fewbit.errors import UsageError


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Args:
        path: the field, such as `layer_quant_config["*.fc1"].weight.group_size`.
        found: what was found there.
        expected: what would have been right.
        try_: the next thing to do, if there is more to say.
    """

    path: str
    found: str
    expected: str
    try_: str | None = None

    def under(self, path: str) -> Fault:
        """The same fault of a part that lies at `path`."""
        return replace(self, path=f"{path}.{self.path}")

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.found}", f"expected: {self.expected}"]
        return "\n     ".join(lines + ([f"try: {self.try_}"] if self.try_ else []))


class FaultsError(UsageError):
    """Several faults in one error.

    Args:
        faults: each of them.
        what: the thing they are faults of.
    """

    def __init__(self, faults: Sequence[Fault], what: str):
        lines = [f"  {number}. {fault}" for number, fault in enumerate(faults, 1)]
        super().__init__("\n".join([f"{len(faults)} faults in {what}", *lines]))
        self.faults = tuple(faults)


def refuse(faults: Sequence[Fault], what: str) -> None:
    """Raise every fault in one error; nothing if there is none.

    Args:
        faults: what was gathered.
        what: the thing they are faults of, as it stands in the message.

    Raises:
        UsageError: one fault with its parts, several as a numbered list.
    """
    faults = list(dict.fromkeys(faults))
    if len(faults) == 1:
        fault = faults[0]
        raise UsageError(fault.found, where=fault.path, expected=fault.expected, try_=fault.try_)
    if faults:
        raise FaultsError(faults, what)


def closest(name: str, known: Iterable[str], most: int = 8) -> str:
    """The names nearest to one that is not known; where none is near, at most `most` of what may be thousands.

    >>> closest("fc3", ["fc1", "fc2", "norm"])
    "'fc2' or 'fc1'"
    """
    names = list(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return " or ".join(repr(n) for n in near)
    more = f" … ({len(names)} in all)" if len(names) > most else ""
    return f"one of {', '.join(names[:most])}{more}" if names else "nothing, there is none"


def no_field(path: str, name: str, known: Iterable[str]) -> Fault:
    """The fault of a field that does not exist, with the one that was probably meant."""
    return Fault(path, f"there is no field {name!r}", closest(name, known, most=50))
