# SPDX-License-Identifier: Apache-2.0
"""What the command line shows: progress and errors on stderr, the result or one JSON document on stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import orjson

from fewbit import __version__
from fewbit.errors import FewbitError, escape
from fewbit.progress import Progress, Silent, for_stream

EXIT_CODES = {"ok": 0, "degraded": 0, "not-measured": 0, "broken": 1, None: 0}
REPORT_BUGS = "https://github.com/fewbit/fewbit/issues"


class Surface:
    """One run of the command line.

    Args:
        words: the command line; `--json`, `--quiet` and `--traceback` count even if the rest is wrong.
    """

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.json = "--json" in words
        self.quiet = "-q" in words or "--quiet" in words
        self.traceback = "--traceback" in words
        self.command = words[0] if words else ""
        self.output: str | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        try:
            return os.get_terminal_size().columns or 80
        except OSError:
            return 80

    def start(self, command: str, values: Mapping[str, Any]) -> None:
        """Show the start line at once, before anything heavy is imported."""
        self.command, self.output = command, values.get("output")
        names = ("data", "model") if command == "check" else ("model", "original", "data")
        subject = next((values[name] for name in names if values.get(name)), "")
        arrow = f" -> {self.output}" if self.output else ""
        if not self.quiet and command not in ("list",):
            self._write(sys.stderr, escape(f"fewbit {__version__}  {command} {subject}{arrow}".rstrip()))

    def progress(self) -> Progress:
        """The display for a verb."""
        return Silent() if self.quiet else for_stream(sys.stderr)

    def print(self, text: str) -> None:
        """Print a result."""
        self._write(sys.stdout, text)

    def print_json(self, document: Mapping[str, Any]) -> None:
        """Print the one JSON document of this run."""
        from fewbit.record.schema import plain

        sys.stdout.write(orjson.dumps(plain(document), option=orjson.OPT_INDENT_2).decode() + "\n")
        sys.stdout.flush()

    def document(self, exit_code: int, **fields: Any) -> dict[str, Any]:
        """The JSON document: the same keys for success, a broken result, an error and an interrupt."""
        empty: dict[str, Any] = {"verdict": None, "output": None, "size": {}, "quality": {}, "speed": {}}
        empty |= {"warnings": [], "error": None}
        head = {"schema": 1, "fewbit": __version__, "command": self.command, "exit_code": exit_code}
        return {**head, **empty, "record": None, **fields}

    def result(self, record: Any, *, verbose: int = 0) -> int:
        """Print the final screen, or the record as JSON; returns the exit code of its verdict."""
        from fewbit.record.screen import LABELS, details, screen

        code = EXIT_CODES[record.verdict]
        if self.json:
            fields = {
                name: getattr(record, name) for name in ("verdict", "output", "size", "quality", "speed", "warnings")
            }
            self.print_json(self.document(code, **fields, record=record.to_dict()))
            return code
        text = screen(record) + (f"\n\n{details(record)}" if verbose else "")
        if self._colored(sys.stdout) and record.verdict:
            color = {"ok": 32, "degraded": 33, "broken": 31, "not-measured": 33}[record.verdict]
            label = LABELS[record.verdict]
            text = f"\x1b[1;{color}m{label}\x1b[0m" + text[len(label) :]
        self.print(text)
        return code

    def error(self, error: FewbitError) -> int:
        """Print an error in the syntax of the command line."""
        if self.traceback:
            traceback.print_exception(error)
        if self.json:
            self.print_json(self.document(error.exit_code, error=error.to_dict("cli")))
            return error.exit_code
        label = "\x1b[1;31merror:\x1b[0m" if self._colored(sys.stderr) else "error:"
        self._write(sys.stderr, f"{label} {error.text('cli')}")
        return error.exit_code

    def interrupted(self, code: int) -> int:
        """Say what is kept and how to continue."""
        what = "interrupted"
        if self.output and os.path.isdir(f"{self.output}.partial"):
            what += f"; finished work is kept in {self.output}.partial; the same command continues"
        if self.json:
            self.print_json(self.document(code, error={"code": "interrupted", "what": what, "try": None}))
        else:
            self._write(sys.stderr, f"\n{escape(what)}")
        return code

    def bug(self, error: Exception) -> int:
        """An error that fewbit does not know is its own."""
        if self.traceback:
            traceback.print_exception(error)
        what = f"this is a bug in fewbit {__version__}: {type(error).__name__}: {error}"
        if self.json:
            self.print_json(self.document(4, error={"code": "bug", "what": escape(what), "try": "--traceback"}))
        else:
            self._write(sys.stderr, escape(f"error: {what}"))
            self._write(sys.stderr, f"  try:      --traceback shows where; please report it at {REPORT_BUGS}")
        return 4

    def _colored(self, stream: TextIO) -> bool:
        if os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
