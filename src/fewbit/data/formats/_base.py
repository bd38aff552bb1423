# SPDX-License-Identifier: Apache-2.0
"""The contract of a dataset format.

A format is a module (or any object) with the names below; its docstring's first line is its summary.

    CODES                     every fault it can find, declared once
    detect(source)            is this mine? Cheap: looks at names, never at the whole data
    read(source, …)           a lazy `Source`; nothing is decoded before it is asked for
    check(source, report, …)  every fault there is, into the report
    fix(source, out, …)       a repaired copy elsewhere; returns what was changed. Optional.

`source` is a `Path` or a Python object; `detect` says no to what it does not know. Options of a format are
the keyword arguments of its own `read` and `check`, with defaults: there is no other list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fewbit.data.findings import Code, DataReport, Policy
from fewbit.data.signature import Signature
from fewbit.data.source import Source


@dataclass(frozen=True, slots=True)
class Match:
    """How sure a format is that a source is its own.

    Args:
        confidence: 0 to 1. Two formats within 0.1 of one another are ambiguous, and the user is asked.
        reason: what it saw, for the report.
    """

    confidence: float
    reason: str


class Format(Protocol):
    """What a format module offers."""

    CODES: Mapping[str, Code]

    def detect(self, source: object) -> Match | None:
        """How sure the format is that the source is its own, or `None`."""

    def read(self, source: Any, *, split: str | None, task: str | None, policy: Policy, **options: Any) -> Source:
        """Open the source lazily."""

    def check(
        self,
        source: Any,
        report: DataReport,
        *,
        task: str | None,
        signature: Signature | None,
        quick: bool,
        **options: Any,
    ) -> None:
        """Put every fault into the report; `quick` looks at names and headers only."""


class Fixer(Protocol):
    """What a format offers that can write a repaired copy."""

    def fix(
        self, source: Path, out: Path, *, task: str | None, signature: Signature | None, **options: Any
    ) -> list[str]:
        """Write the repaired copy into the empty folder `out` and say each change in a line."""
