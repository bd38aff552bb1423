# SPDX-License-Identifier: Apache-2.0
"""The report of a check as text for people and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit import registry
from fewbit.data.types import DataReport, IssueType, Severity
from fewbit.errors import Interface, escape, plural, render

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
_MOST_NAMES = 9


def report_text(report: DataReport, *, interface: Interface = "python", show: int = 5, command: str = "") -> str:
    """The summary, every issue grouped by type, and the verdict.

    Args:
        report: of a check.
        interface: whose syntax hints are written in.
        show: locations per issue; 0 for all.
        command: the command line so far, for the `next` line.
    """
    lines = [*_summary(report), ""]
    for kind in _sorted_types(report):
        lines += _issue(report, kind, interface, show)
    lines += [*([""] if report.types else []), verdict_line(report)]
    if sentence := report.facts.get("calibration", {}).get("sentence"):
        lines.append(f"  {sentence}")
    if next_line := _next(report, interface, command):
        lines.append(next_line)
    return "\n".join(escape(line) for line in lines)


def report_dict(report: DataReport) -> dict[str, Any]:
    """Plain data: facts, counts, and every issue with its location."""
    issues = [
        {
            "code": issue.code,
            "severity": str(issue.severity),
            "message": render(issue.message, "cli"),
            "location": {
                name: value
                for name in ("file", "line", "row", "byte", "index", "field")
                if (value := getattr(issue.location, name)) not in (None, "")
            },
            "try": render(issue.type.hint, "cli"),
        }
        for issue in report.issues
    ]
    return {
        "source": report.source, "format": report.data_format, "ok": report.ok,
        "complete": report.complete and not {"checked", "quick"} & set(report.facts),
        "facts": {key: report_dict(value) if key == "copy" else value for key, value in report.facts.items()},
        "counts": dict(report.counts), "issues": issues,
    }  # fmt: skip


def verdict_line(report: DataReport) -> str:
    """`NOT READY  3 errors, 1 note in 60 images`, or `OK  no issues in 60 images`."""
    counts = dict.fromkeys(_ORDER, 0)
    for code, kind in report.types.items():
        counts[kind.severity] += report.counts[code]
    parts = [plural(count, str(severity)) for severity, count in counts.items() if count]
    samples = report.facts.get("samples")
    where = "" if samples is None else f" in {plural(samples, _unit(report))}"
    if (checked := report.facts.get("checked")) is not None:
        where = f" in {checked:,} of {plural(samples or 0, _unit(report))}"
    if report.facts.get("quick"):
        where += " (names, sizes and headers only)"
    label = "OK" if report.ok else "NOT READY" if report.complete else "NOT COMPLETE"
    return f"{label}  {', '.join(parts) or 'no issues'}{where}"


def _summary(report: DataReport) -> Iterator[str]:
    facts = report.facts
    known = report.data_format in registry.names("data_formats")
    title = registry.get("data_formats", report.data_format).title if known else report.data_format
    yield f"{report.source}  {', '.join(filter(None, [title, facts.get('task')]))}"
    if facts.get("splits"):
        yield f"  {'splits':<10}{_counts(facts['splits'])}"
    if facts.get("class_counts"):
        yield f"  {'classes':<10}{len(facts['class_counts'])}: {_counts(facts['class_counts'])}"
    elif facts.get("classes"):
        yield f"  {'classes':<10}{len(facts['classes'])}: {_names(list(facts['classes']))}"
    unit = _unit(report)
    details = [f"{facts['samples']:,}"] if "samples" in facts else []
    details += [str(facts[key]) for key in ("image_sizes", "image_formats", "layout") if facts.get(key)]
    yield f"  {plural(2, unit)[2:]:<10}{'; '.join(details)}"
    if facts.get("columns"):
        yield f"  {'columns':<10}{_names([str(name) for name in facts['columns']])}"


def _counts(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:_MOST_NAMES]]
    return ", ".join(shown) + (", ..." if len(counts) > _MOST_NAMES else "")


def _names(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _sorted_types(report: DataReport) -> list[IssueType]:
    return sorted(report.types.values(), key=lambda kind: _ORDER.index(kind.severity))


def _issue(report: DataReport, kind: IssueType, interface: Interface, show: int) -> Iterator[str]:
    count = report.counts[kind.code]
    yield f"{kind.severity}: {kind.meaning} [{kind.code}]" + (f" ({count:,})" if count > 1 else "")
    issues = [issue for issue in report.issues if issue.code == kind.code]
    for issue in issues[: show or None]:
        where = str(issue.location)
        message = render(issue.message, interface)
        yield f"  {where}  {message}" if where else f"  {message}"
    if show and count > show:
        yield f"  ... and {count - show:,} more"
    if kind.severity is not Severity.NOTE:
        yield f"  try: {render(kind.hint, interface)}"


def _unit(report: DataReport) -> str:
    if report.data_format in registry.names("data_formats"):
        unit: str = registry.get("data_formats", report.data_format).unit
        return unit
    return "sample"


def _repairable(report: DataReport) -> bool:
    names = registry.names("data_formats")
    return report.data_format in names and registry.get("data_formats", report.data_format).write is not None


def _next(report: DataReport, interface: Interface, command: str) -> str | None:
    """The command that repairs, with what it would do; only if it would do something."""
    fixes: dict[str, int] = {}
    for code, kind in report.types.items():
        if kind.fix and kind.severity is not Severity.NOTE:
            fixes[kind.fix] = fixes.get(kind.fix, 0) + report.counts[code]
    if not fixes or interface != "cli" or not _repairable(report):
        return None
    effect = "; ".join(f"{fix} ({count:,})" if count > 1 else fix for fix, count in list(fixes.items())[:3])
    return f"  next      {command or f'fewbit check {report.source}'} --fix -o repaired    {effect}"
