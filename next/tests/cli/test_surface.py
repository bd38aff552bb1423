# SPDX-License-Identifier: Apache-2.0
"""What a person sees: terminals, pipes, signals, bugs, text from outside."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import numpy as np
import pytest

from fewbit.cli import main

FEWBIT = [sys.executable, "-m", "fewbit"]


def test_without_a_terminal_there_is_no_escape_code_and_no_carriage_return(tiny_onnx, npz_folder, tmp_path):
    words = ["quantize", str(tiny_onnx), "--data", str(npz_folder), "--preset", "w8a16", "-o", "s.onnx"]
    result = subprocess.run([*FEWBIT, *words], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\r" not in result.stdout + result.stderr and "\x1b" not in result.stdout + result.stderr
    assert re.search(r"\[\d/5\] measure", result.stderr)


def run_on_a_terminal(words, cwd, environment=None):
    """Everything a command writes to a pseudo-terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **(environment or {})}
    env.pop("CI", None)
    process = subprocess.Popen([*FEWBIT, *words], stdout=slave, stderr=slave, cwd=cwd, env=env)
    os.close(slave)
    content = b""
    while True:
        ready, _, _ = select.select([master], [], [], 30)
        try:
            part = os.read(master, 65536) if ready else b""
        except OSError:
            part = b""
        if not part:
            break
        content += part
    os.close(master)
    return process.wait(), content.decode()


def test_on_a_terminal_there_is_a_live_line_and_color(tiny_onnx, npz_folder, tmp_path):
    words = ["quantize", str(tiny_onnx), "--data", str(npz_folder), "--preset", "w8a16", "-o", "s.onnx"]
    code, text = run_on_a_terminal(words, tmp_path)
    assert code == 0 and text.startswith("fewbit 1") and "\r" in text and "\x1b[1;32mOK\x1b[0m" in text
    code, text = run_on_a_terminal([*words, "--overwrite"], tmp_path, {"NO_COLOR": "1"})
    assert code == 0 and "\x1b[1;32m" not in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_exit_code_and_say_what_is_kept(tmp_path, number, code):
    program = f"""
import os, pathlib, sys
from fewbit.cli import main
from fewbit.cli import check
from fewbit.output import open_output
def run(values, surface):
    surface.output = "out"
    with open_output(pathlib.Path("out")) as output:
        (output.work / "layer0").write_text("done")
        os.kill(os.getpid(), {int(number)})
        import time
        time.sleep(20)
check.run = run
sys.exit(main(["check", "data"]))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert "out.partial" in result.stderr and "the same command continues" in result.stderr
    assert (tmp_path / "out.partial" / "layer0").exists()


def test_a_bug_asks_for_a_report(fewbit, monkeypatch):
    monkeypatch.setattr("fewbit.cli.list.run", lambda values, surface: 1 / 0)
    code, _, err = fewbit("list")
    assert code == 4 and "this is a bug in fewbit" in err and "--traceback" in err and "Traceback" not in err
    code, out, _ = fewbit("list", "--json")
    assert code == 4 and json.loads(out)["error"]["code"] == "bug"
    code, _, err = fewbit("list", "--traceback")
    assert "ZeroDivisionError" in err and "Traceback" in err


def test_names_from_outside_never_reach_the_terminal_raw(fewbit, tmp_path):
    folder = tmp_path / "d\x1b[31m\u202e"
    folder.mkdir()
    np.savez(folder / "a\x07.npz", x=np.zeros(3))
    (folder / "broken\x1b]0;title.npz").write_bytes(b"not an archive")
    for words in (["check", folder], ["check", folder, "--json"], ["check", f"{folder}-missing"]):
        _, out, err = fewbit(*words)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out + err)


def test_names_that_are_not_utf8_survive_json(fewbit, tmp_path):
    name = os.fsdecode(b"cl\xff\xfe")
    folder = tmp_path / "data" / name
    folder.mkdir(parents=True)
    np.savez(folder / "a.npz", x=np.zeros(3))
    (folder / "b.npz").write_bytes(b"")
    code, out, _ = fewbit("check", tmp_path / "data", "--json")
    assert code in (0, 1, 3) and json.loads(out)


def test_version_and_help_words(fewbit):
    for words in (["version"], ["-V"], ["--version"]):
        code, out, _ = fewbit(*words)
        assert code == 0 and out.startswith("fewbit 1")
    assert fewbit("help")[1] == fewbit("--help")[1] == fewbit()[1]
    assert fewbit("help", "check")[1] == fewbit("check", "--help")[1]
    assert "Common options:" in fewbit("check", "-h")[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_into_the_home_folder(fewbit, tmp_path, monkeypatch, shell):
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    monkeypatch.setenv("HOME", str(tmp_path))
    if shell == "bash":
        monkeypatch.setattr(
            "click.shell_completion.BashComplete._check_version", staticmethod(lambda: None), raising=False
        )
    code, out, _ = fewbit("--install-completion")
    assert code == 0 and f"completion for {shell}" in out
    assert any("_FEWBIT_COMPLETE" in path.read_text() for path in tmp_path.rglob("*fewbit*") if path.is_file())


def test_a_shell_gets_the_commands_and_options(monkeypatch, capsys):
    monkeypatch.setenv("_FEWBIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fewbit check --imag")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert main([]) == 0
    assert "--image-size" in capsys.readouterr().out
