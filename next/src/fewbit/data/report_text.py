# SPDX-License-Identifier: Apache-2.0
"""The report of a check as text for people and as plain data for JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fewbit import registry
from fewbit.data.types import DataReport, Format, IssueType, Severity
from fewbit.errors import Interface, escape, plural, render

_WIDTH = 100
_MOST_NAMES = 9
_OPTION = re.compile(r"\{data_option=[^{}…]+\}")
_DETAILS = ("image_sizes", "image_formats", "layout")


def report_text(report: DataReport, *, interface: Interface = "python", show: int = 5, command: str | None = "") -> str:
    """The summary, every issue grouped by type, and the verdict.

    Args:
        report: of a check.
        interface: whose syntax hints are written in.
        show: locations per issue; 0 for all.
        command: what the `next` line adds `--fix` to; `None` for no such line.
    """
    lines = [*_summary(report), ""]
    for kind in sorted(report.types.values(), key=lambda kind: list(Severity).index(kind.severity)):
        lines += _issue(report, kind, interface, show)
    lines += [*([""] if report.types else []), verdict_line(report)]
    if "checked" in report.facts and report.facts["checked"] < report.facts.get("samples", 0):
        lines.append(
            "  not looked at: damage in the other samples, duplicates, and statistics, which take all of them;"
        )
        lines.append(render("  without {samples}, everything is checked", interface))
    if sentence := report.facts.get("calibration", {}).get("sentence"):
        lines.append(f"  {sentence}")
    if interface == "cli" and command is not None:
        lines += _next(report, command or f"fewbit check {report.source}")
    return "\n".join(escape(line) for line in lines)


def report_dict(report: DataReport) -> dict[str, Any]:
    """Plain data: facts, counts, and every issue with its location."""
    issues = []
    for issue in report.issues:
        fields = {name: getattr(issue.location, name) for name in ("file", "line", "row", "byte", "index", "field")}
        issues.append(
            {
                "code": issue.code,
                "severity": str(issue.severity),
                "message": render(issue.message, "cli"),
                "location": {name: value for name, value in fields.items() if value not in (None, "")},
                "try": render(issue.type.hint, "cli"),
            }
        )
    return {
        "source": report.source, "format": report.data_format, "ok": report.ok,
        "complete": report.complete and not {"checked", "quick"} & set(report.facts),
        "facts": {key: report_dict(value) if key == "copy" else value for key, value in report.facts.items()},
        "counts": dict(report.counts), "issues": issues,
    }  # fmt: skip


def verdict_line(report: DataReport) -> str:
    """`NOT READY  3 errors, 1 note in 60 images`, or `OK  no issues in 60 images`."""
    totals = Counter(report.types[code].severity for code in report.counts.elements())
    counts = [plural(totals[severity], str(severity)) for severity in Severity if totals[severity]]
    samples, checked = report.facts.get("samples"), report.facts.get("checked")
    subset = "" if checked is None else f"{checked:,} of "
    total = "" if samples is None else f" in {subset}{plural(samples, report.unit)}"
    depth = " (names, sizes and headers only)" if report.facts.get("quick") else ""
    reason = ""
    if report.complete and not report.ok and not report.errors:
        reason = f"; warnings concern {plural(report.warned_samples, report.unit)}"
    return f"{'OK' if report.ok else 'NOT READY'}  {', '.join(counts) or 'no issues'}{total}{depth}{reason}"


def _summary(report: DataReport) -> Iterator[str]:
    facts, format = report.facts, _format(report)
    title = report.data_format if format is None else format.title
    yield f"{report.source}  {', '.join(filter(None, [title, facts.get('task')]))}"
    if facts.get("splits"):
        yield f"  {'splits':<10}{_counts(facts['splits'])}"
    if counts := facts.get("class_counts"):
        yield f"  {'classes':<10}{len(counts)}: {_counts(counts)}"
    elif classes := facts.get("classes"):
        yield f"  {'classes':<10}{len(classes)}: {_names(classes)}"
    if (values := facts.get("mask_values")) and not facts.get("classes"):
        yield f"  {'values':<10}{len(values)}: {_names(values)}"
    details = [f"{facts['samples']:,}"] if "samples" in facts else []
    if details and (left_out := facts.get("left_out")) and "changes" not in facts:
        details = [f"{facts['samples']:,} of {facts['samples'] + left_out:,} usable"]
    details += [str(facts[key]) for key in _DETAILS if facts.get(key)]
    yield f"  {plural(2, report.unit)[2:]:<9} {'; '.join(details)}"
    if facts.get("columns"):
        yield f"  {'columns':<10}{_names(facts['columns'])}"
    if model := facts.get("model"):
        yield f"  {'model':<10}{model['kind']}; input {', '.join(model['inputs'])}"
    if inputs := facts.get("inputs"):
        yield f"  {'inputs':<10}{inputs}"
        yield f"  {'fitting':<10}{facts['fitting']:,} of {plural(facts['compared'], 'sample')}"


def _counts(counts: Mapping[str, int]) -> str:
    return _names([f"{name} {count:,}" for name, count in counts.items()])


def _names(names: Collection[Any]) -> str:
    return ", ".join(map(str, list(names)[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")


def _issue(report: DataReport, kind: IssueType, interface: Interface, show: int) -> Iterator[str]:
    count = report.counts[kind.code]
    yield f"{kind.severity}: {kind.meaning} [{kind.code}]" + (f" ({count:,})" if count > 1 else "")
    issues = [issue for issue in report.issues if issue.code == kind.code]
    for issue in issues[: show or None]:
        yield "  " + "  ".join(filter(None, [str(issue.location), render(issue.message, interface)]))
    if show and count > show:
        yield f"  ... and {count - show:,} more"
    if kind.severity is not Severity.NOTE:
        yield f"  try: {render(kind.hint, interface)}"


def _next(report: DataReport, command: str) -> Iterator[str]:
    """The command that repairs, with what it would do; only if it would do something."""
    if report.facts.get("samples") is not None and _loses_most(report):  # a copy of nearly nothing is no repair
        option = next((found[0] for kind in report.types.values() if (found := _OPTION.search(kind.hint))), None)
        if option is not None:
            yield f"  next      {command} {render(option, 'cli')}"
        return
    fixes: Counter[str] = Counter()
    for code, kind in report.types.items():
        if kind.fix and kind.severity is not Severity.NOTE:
            fixes[kind.fix] += report.counts[code]
    format = _format(report)
    if fixes and format is not None and format.write is not None:
        effects = [f"{fix} ({count:,})" if count > 1 else fix for fix, count in list(fixes.items())[:3]]
        line, effect = f"  next      {command} --fix -o repaired", "; ".join(effects)
        narrow = len(line) + 4 + len(effect) <= _WIDTH
        yield from [f"{line}    {effect}"] if narrow else [line, f"{'':<12}{effect}"]


def _loses_most(report: DataReport) -> bool:
    """Whether a repaired copy would lack most of the samples."""
    lost = sum(
        report.counts[code] for code, kind in report.types.items()
        if kind.fix.startswith("leaves") and kind.severity is Severity.ERROR
    )  # fmt: skip
    return lost > 0 and lost > 4 * int(report.facts["samples"])


def _format(report: DataReport) -> Format | None:
    if report.data_format not in registry.names("data_formats"):
        return None
    format: Format = registry.get("data_formats", report.data_format)
    return format
