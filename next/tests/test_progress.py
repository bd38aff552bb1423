# SPDX-License-Identifier: Apache-2.0
import io
import re
import warnings

import pytest

from fewbit import progress as module
from fewbit.errors import FewbitWarning, UsageError
from fewbit.progress import Log, Run, Terminal, duration, make_progress


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when told to."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_start_and_end_of_each_phase_and_no_escape_codes(clock):
    stream = io.StringIO()
    run = Run(Log(stream))
    run.begin([("load", 1), ("measure", 9)])
    for name in ("load", "measure"):
        with run.phase(name, 3, "sample") as bar:
            for _ in bar.track(range(3)):
                clock[0] += 1
    run.close()
    text = stream.getvalue()
    assert "[1/2] load" in text and "[2/2] measure" in text and text.count("3 samples") == 2
    assert "\r" not in text and "\x1b" not in text
    assert [phase["name"] for phase in run.phases] == ["load", "measure"] and run.phases[0]["seconds"] == 3


def test_a_log_repeats_where_it_stands(clock):
    stream = io.StringIO()
    log = Log(stream)
    bar = module.Bar("calibrate", 300, "sample")
    log.begin([("load", 1), ("calibrate", 9)])
    log._bar = bar
    clock[0] = 20
    bar.advance(100)
    log._redraw(bar)
    assert stream.getvalue() == "  [2/2] calibrate  100/300, about 40 s left\n"


def test_a_terminal_has_permanent_lines_and_one_live_line(clock):
    stream = FakeTerminal()
    run = Run(Terminal(stream))
    run.begin([("load", 1), ("quantize", 2)])
    with run.phase("load"):
        clock[0] += 1
    with run.phase("quantize", 61, "layer") as bar:
        bar.advance(38)
        clock[0] += 8
        run.line("a line in between")
    run.close()
    shown = re.sub(r"\r[^\n]*?\x1b\[K", "", stream.getvalue())  # what stays on the screen
    assert shown.splitlines() == [
        "  ✓ load              1.0 s",
        "a line in between",
        "  ✓ quantize          8.0 s   38 layers",
    ]
    assert "38/61 layers" in stream.getvalue() and "4.8 s left" in stream.getvalue()


def test_no_estimate_before_three_items_or_two_seconds(clock):
    bar = module.Bar("x", 10, "item")
    bar.advance(2)
    clock[0] = 1
    assert bar.seconds_left is None
    bar.advance()
    assert bar.seconds_left == pytest.approx(7 / 3)


def test_the_rest_of_the_run_is_scaled_by_what_finished_phases_took(clock):
    log = Log(io.StringIO())
    log.begin([("load", 1), ("measure", 10), ("write", 5)])
    log._finished = [("load", 2.0)]  # twice as long as expected
    bar = module.Bar("measure", 10, "sample")
    bar.advance(5)
    clock[0] = 10
    assert log.seconds_left(bar) == pytest.approx(10 + 2 * 5)


def test_warnings_go_to_the_display_and_the_record():
    stream = io.StringIO()
    run = Run(Log(stream))
    run.warn("few samples", code="few-samples", hint="{samples=300}")
    assert stream.getvalue() == "warning: few samples [few-samples]\n  try: --samples 300\n"
    assert run.warnings[0].to_dict()["hint"] == "--samples 300"


def test_without_a_display_warnings_are_python_warnings():
    with pytest.warns(FewbitWarning, match="samples=300"):
        Run().warn("few samples", code="few-samples", hint="{samples=300}")


def test_what_progress_takes():
    assert isinstance(make_progress(False), module.Silent)
    assert isinstance(make_progress(None), module.Silent)  # no terminal in a test
    assert isinstance(make_progress(True), Log)
    own = module.Silent()
    assert make_progress(own) is own
    with pytest.raises(UsageError, match="does not show progress"):
        make_progress(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(own).line("text")


def test_marks_are_ascii_where_the_terminal_is_not_utf8():
    class Latin(FakeTerminal):
        encoding = "latin-1"

    stream = Latin()
    run = Run(Terminal(stream))
    with run.phase("load", 2, "layer"):
        pass
    stream.getvalue().encode("ascii")


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (59.6, "60 s"), (61, "1 min 1 s"), (7325, "2 h 2 min")])
def test_durations(seconds, text):
    assert duration(seconds) == text or (seconds == 59.6 and duration(seconds) == "1 min 0 s")
