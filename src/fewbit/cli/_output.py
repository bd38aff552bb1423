# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: text for people, JSON for programs, bars only on a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from fewbit.data import report_text
from fewbit.data.findings import DataReport, Progress
from fewbit.errors import FewbitError, UsageError
from fewbit.record import to_json

T = TypeVar("T")

POLICY = re.compile(r"policy=\{'([\w-]+)': '(\w+)'\}")
"""How readers name a policy, as it is written in Python."""


_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Control characters but for tab and newline, those that change the direction of text, and lone surrogates."""


def safe(text: str) -> str:
    """Text from files and models as a terminal may print it: no escape sequences, nothing that reorders it.

    Each unsafe character becomes one that is seen, so that positions in styled text stay what they are.

    >>> safe("a\\x1b[31mb\\x9b\\u202ec")
    'a␛[31mb��c'
    """
    return _UNSAFE.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "�", text)


class SafeConsole(Console):
    """Prints what others wrote, names of files and layers among it, without obeying it."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As `Console.print`."""
        super().print(*(_safe_text(each) if isinstance(each, Text) else each for each in objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As `Console.render_str`, which every string goes through."""
        return super().render_str(safe(text), **options)


def _safe_text(text: Text) -> Text:
    plain = safe(text.plain)
    if plain == text.plain:
        return text
    found = text.copy()
    found.plain = plain
    found.spans = list(text.spans)
    return found


def stdout() -> Console:
    """Where results go. Long lines are not broken when a program reads them."""
    return SafeConsole(soft_wrap=not sys.stdout.isatty(), highlight=False)


def stderr() -> Console:
    """Where errors and progress go."""
    return SafeConsole(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    text = to_json(value, options, str).decode()
    sys.stdout.write(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")  # only strings have any


def show_error(error: FewbitError, *, as_json: bool) -> None:
    """An error with its four parts, its advice in the words of the command line."""
    error.try_ = error.try_ and POLICY.sub(r"--policy \1=\2", error.try_)
    if as_json:
        print_json({"error": {"kind": type(error).__name__, **error.to_dict()}})
        return
    head, _, rest = str(error).partition("\n")
    stderr().print(Text.assemble(("error: ", "bold red"), head, f"\n{rest}" if rest else ""))


def show_report(report: DataReport, *, places: int) -> None:
    """A report as people read it."""
    out = stdout()
    for line in report_text.lines(report, places):
        out.print(Text.assemble(*line))


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
    """`key=value` pairs from the command line as options; JSON is read as JSON, lists and mappings as YAML writes them.

    >>> parse_options(["delimiter=;", "workers=2", "rename={'a': 'b'}"])
    {'delimiter': ';', 'workers': 2, 'rename': {'a': 'b'}}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--option {pair!r} has no '='", where="--option", expected="--option name=value")
        options[name] = _value(text)
    return options


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if not text.startswith(("{", "[")):
            return text
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--option value {text!r} cannot be read", where="--option", expected="JSON") from error
