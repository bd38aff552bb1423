# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: text for people, JSON for programs, bars only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from fewbit.data.findings import DataReport, Progress, Severity
from fewbit.errors import FewbitError, UsageError

T = TypeVar("T")

_STYLE = {Severity.ERROR: "bold red", Severity.WARN: "yellow", Severity.INFO: "cyan"}


def stdout() -> Console:
    """Where results go. Long lines are not broken when a program reads them."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def stderr() -> Console:
    """Where errors and progress go."""
    return Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    sys.stdout.write(orjson.dumps(value, option=options, default=str).decode() + "\n")


def show_error(error: FewbitError, *, as_json: bool) -> None:
    """An error with its four parts."""
    if as_json:
        print_json({"error": {"kind": type(error).__name__, **error.to_dict()}})
        return
    head, _, rest = str(error).partition("\n")
    stderr().print(Text.assemble(("error: ", "bold red"), head, f"\n{rest}" if rest else ""))


def show_report(report: DataReport, *, places: int = 5) -> None:
    """What was understood, a few samples, then the findings by code."""
    out = stdout()
    out.print(Text.assemble((report.path, "bold"), "  ", (report.format, "bold cyan"), f"  ({report.why})"))
    facts = {name.replace("_", " "): value for name, value in report.understood.items() if value is not None}
    width = max(map(len, ["sample", *facts]))
    for name, value in facts.items():
        out.print(Text(f"  {name:<{width}}  {_words(value)}"))
    for sample in report.samples:
        out.print(Text.assemble(f"  {'sample':<{width}}  ", (sample["place"], "dim"), "  ", sample["sample"]))
    for code, known, findings in report.grouped():
        style = _STYLE[known.severity]
        out.print(
            Text.assemble("\n", (f"{known.severity}", style), f" {code} ×{report.counts[code]:,}: {known.meaning}")
        )
        for finding in findings[:places]:
            out.print(Text.assemble("    ", (str(finding.place), "bold"), f": {finding.message}"))
        if report.counts[code] > places:
            out.print(Text(f"    … and {report.counts[code] - places:,} more (all of them: --places 0, or --json)"))
        out.print(Text.assemble(("    try: ", "dim"), findings[0].fix))
    out.print(Text.assemble("\n", verdict(report)))


def verdict(report: DataReport) -> Text:
    """One line: fit or not, and how many findings of each severity."""
    totals = dict.fromkeys(Severity, 0)
    for code, count in report.counts.items():
        totals[report.codes[code].severity] += count
    words = ", ".join(_count(severity, count) for severity, count in totals.items() if count) or "no findings"
    if not report.complete:
        return Text(f"stopped before the end; so far: {words}", style="bold yellow")
    return Text(f"{'fine' if report.ok else 'not fit'}: {words}", style="bold green" if report.ok else "bold red")


def _count(severity: Severity, count: int) -> str:
    noun = {Severity.ERROR: "error", Severity.WARN: "warning", Severity.INFO: "remark"}[severity]
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(str(name) if item is None else f"{name}: {_words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        shown = ", ".join(map(_words, value[:12]))
        return shown + (f", … ({len(value):,} in all)" if len(value) > 12 else "")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class TerminalProgress(Progress):
    """A bar with an estimate on standard error when that is a terminal, nothing otherwise."""

    def __init__(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=stderr(),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def track(self, items: Iterable[T], *, total: int | None, label: str) -> Iterator[T]:
        for done, item in enumerate(items):
            self.advance(label, done, total)
            yield item
        if total is not None:
            self.advance(label, total, total)

    def advance(self, label: str, done: int, total: int | None) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._bar.add_task(label, total=total)
        self._bar.update(self._tasks[label], completed=done, total=total)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs from the command line as options; values that are JSON are read as JSON.

    >>> parse_options(["delimiter=;", "workers=2"])
    {'delimiter': ';', 'workers': 2}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--option {pair!r} has no '='", expected="--option name=value")
        try:
            options[name] = orjson.loads(text)
        except orjson.JSONDecodeError:
            options[name] = text
    return options
