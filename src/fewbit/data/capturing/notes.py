# SPDX-License-Identifier: Apache-2.0
"""What a capture has to tell beyond the data: every reading that could be another, everything not written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Notes:
    """Remarks, each kept once, and the arguments that are no data.

    >>> notes = Notes()
    >>> notes.constants({"mode": "fast"}); notes.constants({"mode": "slow"})
    >>> notes.not_captured
    {'mode': {'type': 'str', 'value': 'fast', 'varies': True}}
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, str]] = []
        self.not_captured: dict[str, dict[str, Any]] = {}
        self._told: set[tuple[str, str]] = set()

    def add(self, what: str, reason: str, where: str) -> None:
        """Keep a remark; of each kind the first about a place is enough."""
        if (what, where) not in self._told:
            self._told.add((what, where))
            self.lines.append({"what": what, "reason": reason, "where": where})

    def constants(self, values: Mapping[str, Any]) -> None:
        """Keep the arguments of a call that are no data: `None`, flags, text, objects."""
        for name, value in values.items():
            shown = value if value is None or isinstance(value, bool) else _text(value)
            entry = {"type": type(value).__name__, "value": shown, "varies": False}
            known = self.not_captured.setdefault(name, entry)
            known["varies"] = known["varies"] or (known["type"], known["value"]) != (entry["type"], entry["value"])


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text[:200].encode(errors="backslashreplace").decode()  # a file name of odd bytes fits no JSON
