# SPDX-License-Identifier: Apache-2.0
"""Progress of a run: phases with bars and time left, on a terminal, in a notebook, or as plain lines in a log.

    with progress.phase("calibrate", total=88, unit="sample") as bar:
        for sample in bar.track(samples): ...

A finished phase leaves a permanent line. Under it one live line shows the phase, a bar, the time left in the phase and
in the whole run. Without a terminal each phase prints its start and end, and a line every 30 seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeVar

from fewbit.errors import FewbitWarning, UsageError, escape, plural

_WIDTH = 20
_REFRESH = 0.25
_LOG_EVERY = 30.0
Item = TypeVar("Item")


class Bar:
    """One phase that is running.

    Attributes:
        detail: shown at the end of its permanent line, such as "88 samples".
    """

    def __init__(self, name: str, total: int | None, unit: str):
        self.name, self.total, self.unit = name, total, unit
        self.done, self.detail = 0, ""
        self.started = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count finished items."""
        self.done += count

    def track(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass items on and count each when the next one is asked for."""
        for item in items:
            yield item
            self.advance()

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """An estimate; `None` before three items or two seconds, and without a total."""
        if not self.total or not self.done or (self.done < 3 and self.seconds < 2):
            return None
        return self.seconds / self.done * max(self.total - self.done, 0)


class Progress(Protocol):
    """What a run reports to; give an object of your own as `progress=` to show it elsewhere."""

    def begin(self, phases: Sequence[tuple[str, float]]) -> None:
        """Announce the phases of a run with their expected seconds."""
        ...

    def line(self, text: str) -> None:
        """Print one permanent line."""
        ...

    def warn(self, warning: FewbitWarning) -> None:
        """Show a warning."""
        ...

    def start(self, bar: Bar) -> None:
        """A phase begins."""
        ...

    def finish(self, bar: Bar) -> None:
        """A phase has ended."""
        ...

    def close(self) -> None:
        """The run is over, by success or by an error."""
        ...


class Run:
    """The progress of one run: what a verb holds. Measures seconds and peak memory of each phase for the record."""

    def __init__(self, progress: Progress | None = None):
        self._progress = progress or Silent()
        self.phases: list[dict[str, Any]] = []
        self.warnings: list[FewbitWarning] = []

    def begin(self, phases: Sequence[tuple[str, float]]) -> None:
        """Announce the phases with their expected seconds."""
        self._progress.begin(phases)

    def line(self, text: str) -> None:
        """Print one permanent line; text from outside is escaped."""
        self._progress.line(escape(text))

    def warn(self, what: str, *, code: str, hint: str | None = None) -> None:
        """Show a warning and keep it for the record."""
        self.warnings.append(FewbitWarning(what, code=code, hint=hint))
        self._progress.warn(self.warnings[-1])

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "item") -> Iterator[Bar]:
        """A phase with a bar."""
        bar = Bar(name, total, unit)
        self._progress.start(bar)
        yield bar
        if not bar.detail and bar.done:
            bar.detail = plural(bar.done, bar.unit)
        self._progress.finish(bar)
        self.phases.append({"name": name, "seconds": round(bar.seconds, 3), "peak_memory": peak_memory()})

    def close(self) -> None:
        """End the display."""
        self._progress.close()


def make_progress(progress: Any = None) -> Progress:
    """The display for `progress=`: None (automatic), True, False, or an object with the methods of `Progress`."""
    if progress is False:
        return Silent()
    if progress is None or progress is True:
        if "ipykernel" in sys.modules:
            return Notebook()
        if progress is None and not _is_terminal(sys.stderr):
            return Silent()
        return for_stream(sys.stderr, interface="python")
    missing = [name for name in ("begin", "line", "warn", "start", "finish", "close") if not hasattr(progress, name)]
    if missing:
        raise UsageError(
            f"an object of type {type(progress).__name__} does not show progress: it has no {', '.join(missing)}",
            code="progress-object",
            expected="None, True, False, or an object with the methods of fewbit.progress.Progress",
            hint="leave progress out",
        )
    shown: Progress = progress
    return shown


def for_stream(stream: TextIO, *, interface: str = "cli", quiet: bool = False) -> Progress:
    """The display for a terminal, or plain lines for anything else."""
    if quiet:
        return Silent()
    return Terminal(stream, interface) if _is_terminal(stream) else Log(stream, interface)


class Silent:
    """Shows nothing; warnings become Python warnings."""

    def begin(self, phases: Sequence[tuple[str, float]]) -> None: ...
    def line(self, text: str) -> None: ...
    def warn(self, warning: FewbitWarning) -> None:
        """Hand it to Python's own warnings."""
        import warnings

        warnings.warn(warning, stacklevel=2)

    def start(self, bar: Bar) -> None: ...
    def finish(self, bar: Bar) -> None: ...
    def close(self) -> None: ...


class Log:
    """Plain lines: start and end of each phase, and one every 30 seconds."""

    def __init__(self, stream: TextIO, interface: str = "cli"):
        self.stream, self.interface = stream, interface
        self._expected: dict[str, float] = {}
        self._finished: list[tuple[str, float]] = []
        self._bar: Bar | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._interval = _LOG_EVERY

    def begin(self, phases: Sequence[tuple[str, float]]) -> None:
        """Remember what is to come."""
        self._expected = dict(phases)

    def line(self, text: str) -> None:
        """Print it."""
        with self._lock:
            self._write(f"{text}\n")

    def warn(self, warning: FewbitWarning) -> None:
        """Print it with its code."""
        self.line(f"warning: {warning.text(self.interface)}")  # type: ignore[arg-type]

    def start(self, bar: Bar) -> None:
        """Print the name, and repeat where it stands while it runs."""
        with self._lock:
            self._bar = bar
            self._show_start(bar)
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def finish(self, bar: Bar) -> None:
        """Print how long it took."""
        with self._lock:
            self._bar = None
            self._finished.append((bar.name, bar.seconds))
            self.line(f"  {self._mark()} {bar.name:<14}{duration(bar.seconds):>9}   {bar.detail}".rstrip())

    def close(self) -> None:
        """Stop the ticker."""
        self._stop.set()

    def _show_start(self, bar: Bar) -> None:
        self.line(f"  {self._position(bar)}{bar.name}")

    def _position(self, bar: Bar) -> str:
        if bar.name not in self._expected:
            return ""
        return f"[{list(self._expected).index(bar.name) + 1}/{len(self._expected)}] "

    def _mark(self) -> str:
        return "✓" if (getattr(self.stream, "encoding", "") or "").lower().startswith("utf") else "*"

    def _tick(self) -> None:
        while not self._stop.wait(self._interval):
            with self._lock:
                if self._bar is not None:
                    self._redraw(self._bar)

    def _redraw(self, bar: Bar) -> None:
        left = bar.seconds_left
        count = f"  {bar.done:,}/{bar.total:,}" if bar.total else f"  {bar.done:,}" if bar.done else ""
        eta = f", about {duration(left)} left" if left is not None else f", {duration(bar.seconds)}"
        self.line(f"  {self._position(bar)}{bar.name}{count}{eta}")

    def seconds_left(self, bar: Bar) -> float | None:
        """Of the whole run: what is to come, at the pace of what is finished compared with what was expected."""
        names = list(self._expected)
        if bar.name not in names or bar.seconds_left is None:
            return None
        expected = sum(self._expected.get(name, 0.0) for name, _ in self._finished)
        pace = sum(seconds for _, seconds in self._finished) / expected if expected else 1.0
        return bar.seconds_left + pace * sum(self._expected[name] for name in names[names.index(bar.name) + 1 :])

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            encoding = getattr(self.stream, "encoding", None) or "ascii"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()


class Terminal(Log):
    """Permanent lines, and under them one live line that changes at least every second."""

    def __init__(self, stream: TextIO, interface: str = "cli"):
        super().__init__(stream, interface)
        self._interval = _REFRESH
        self._live = False

    def line(self, text: str) -> None:
        """Print it above the live line."""
        with self._lock:
            self._clear()
            self._write(f"{text}\n")
            if self._bar is not None:
                self._redraw(self._bar)

    def close(self) -> None:
        """Remove the live line."""
        super().close()
        with self._lock:
            self._bar = None
            self._clear()

    def _show_start(self, bar: Bar) -> None:
        self._redraw(bar)

    def _redraw(self, bar: Bar) -> None:
        left, total = bar.seconds_left, self.seconds_left(bar)
        if bar.total:
            filled = min(_WIDTH * bar.done // bar.total, _WIDTH)
            shown = f"{self._blocks(filled)}  {bar.done:,}/{plural(bar.total, bar.unit)}"
        else:
            shown = plural(bar.done, bar.unit) if bar.done else "..."
        text = f"    {bar.name:<14}{shown}   {duration(bar.seconds) if left is None else f'{duration(left)} left'}"
        if total is not None and len(self._expected) > 1:
            position = list(self._expected).index(bar.name) + 1
            text += f"   ({position} of {len(self._expected)}, about {duration(total)} in all)"
        width = _terminal_width(self.stream)
        self._write(f"\r{text[: width - 1]}\x1b[K")
        self._live = True

    def _blocks(self, filled: int) -> str:
        full, empty = ("━", "─") if self._mark() == "✓" else ("#", "-")
        return full * filled + empty * (_WIDTH - filled)

    def _clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")
            self._live = False


class Notebook(Log):
    """The same lines in a notebook cell, updated through one display handle."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, "python")
        self._interval = 1.0
        self._lines: list[str] = []
        self._handle: Any = None

    def line(self, text: str) -> None:
        """Keep it and show all."""
        with self._lock:
            self._lines.append(text)
            self._display("")

    def _show_start(self, bar: Bar) -> None:
        self._redraw(bar)

    def _redraw(self, bar: Bar) -> None:
        left = bar.seconds_left
        count = f"{bar.done:,}/{plural(bar.total, bar.unit)}" if bar.total else ""
        self._display(
            f"    {bar.name:<14}{count}   {duration(bar.seconds) if left is None else duration(left) + ' left'}"
        )

    def _display(self, live: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found]

        data = {"text/plain": "\n".join([*self._lines, live]).rstrip()}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.84), duration(65), duration(4000)
    ('0.8 s', '1 min 5 s', '1 h 6 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def peak_memory() -> int | None:
    """The largest resident memory of this process so far, in bytes; `None` if the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
    except (AttributeError, ValueError):
        return False


def _terminal_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
