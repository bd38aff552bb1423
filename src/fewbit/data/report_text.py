# SPDX-License-Identifier: Apache-2.0
"""A report in words: what was understood, a few samples, the findings by code, the verdict.

Lines are lists of `(text, style)` pairs; `str(report)` joins the texts, the command line paints the styles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fewbit.data.sample import Place

if TYPE_CHECKING:
    from fewbit.data.findings import DataReport

Line = list[tuple[str, str]]

_STYLES = {"error": "bold red", "warn": "yellow", "info": "cyan"}
_NOUNS = {"error": "error", "warn": "warning", "info": "remark"}


def lines(report: DataReport, places: int) -> Iterator[Line]:
    """The report line by line.

    Args:
        report: what a check found.
        places: how many places to name for a finding.
    """
    yield [(report.path, "bold"), ("  ", ""), (report.format, "bold cyan"), (f"  ({report.why})", "")]
    facts = {name.replace("_", " "): value for name, value in report.understood.items() if _tells(value)}
    width = max(map(len, ["sample", *facts]))
    for name, value in facts.items():
        yield [(f"  {name:<{width}}  {words(value)}", "")]
    for sample in report.samples:
        yield [(f"  {'sample':<{width}}  ", ""), (sample["place"], "dim"), (f"  {sample['sample']}", "")]
    for code, known, findings in report.grouped():
        count = report.counts[code]
        yield []
        yield [(str(known.severity), _STYLES[known.severity]), (f" {code} ×{count:,}: {known.meaning}", "")]
        for finding in findings[:places]:
            place = f"{finding.place}: " if finding.place != Place() else ""
            yield [(f"    {place}", "bold"), (finding.message, "")]
        if count > places:
            yield [(f"    … and {count - places:,} more (all of them: --places 0, or --json)", "")]
        if findings:
            yield [("    try: ", "dim"), (findings[0].fix, "")]
    yield []
    yield [verdict(report)]


def verdict(report: DataReport) -> tuple[str, str]:
    """One line: fit or not, and how many findings of each severity."""
    totals = dict.fromkeys(_NOUNS, 0)
    for code, count in report.counts.items():
        totals[report.codes[code].severity] += count
    counted = [f"{n:,} {_NOUNS[severity]}{'' if n == 1 else 's'}" for severity, n in totals.items() if n]
    text = ", ".join(counted) or "no findings"
    if not report.complete:
        return f"stopped before the end; so far: {text}", "bold yellow"
    return (f"fine: {text}", "bold green") if report.ok else (f"not fit: {text}", "bold red")


def words(value: Any) -> str:
    """A fact in words: twelve entries of a list, the names and values of a mapping.

    >>> words({"train": 12000, "val": None}), words([1, 2])
    ('train: 12,000, val', '1, 2')
    """
    if isinstance(value, Mapping):
        nested = "; " if any(isinstance(item, str) and "," in item for item in value.values()) else ", "
        return nested.join(str(name) if item is None else f"{name}: {words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        shown = ", ".join(map(words, value[:12]))
        return shown + (f", … ({len(value):,} in all)" if len(value) > 12 else "")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _tells(value: Any) -> bool:
    return value is not None and value != {} and value != []
