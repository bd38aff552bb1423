# SPDX-License-Identifier: Apache-2.0
"""A fault met while reading labels, and who decides what happens to it.

The parsers know faults, not policies: they describe each one to a `Decide` and do what it answers. So one
parser serves the reader (policy), the check (report all, go on) and the fix (repair what can be repaired).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fewbit.data.findings import Code, DataReport
from fewbit.data.sample import Place


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its code, what was found, where, a remedy if it is more exact than the code's own, and the split
    it lies in if it lies in one."""

    code: str
    message: str
    place: Place
    fix: str | None = None
    split: str | None = None


Decide = Callable[[Fault], str]
"""Told about a fault; answers `drop`, `repair` or `keep`, or raises."""


def remedy(code: Code) -> str:
    """What to do about a fault when nothing may be raised: its own policy, else repair it, else drop it."""
    if code.policy != "raise":
        return code.policy
    return next((policy for policy in ("repair", "drop") if policy in code.policies), "keep")


def reporting(report: DataReport) -> Decide:
    """A decision that adds every fault to a report and goes on."""

    def decide(fault: Fault) -> str:
        report.add(fault.code, fault.message, fault.place, fault.fix)
        return remedy(report.codes[fault.code])

    return decide
