# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

import pytest

from fewbit import cli


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def good(tmp_path):
    (tmp_path / "good.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    return "good.jsonl"


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "c"}\n')
    return "bad.jsonl"


def test_exit_0_fine(run, good):
    code, out, _ = run("check", good)
    assert code == 0 and "fine" in out and "rows" in out and "label" in out


def test_exit_1_faults_found_with_file_line_and_remedy(run, bad):
    code, out, _ = run("check", bad)
    assert code == 1 and "bad.jsonl:2" in out and "try:" in out and "not fit" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "nowhere.jsonl"],
        ["check", "good.jsonl", "--format", "jsnol"],
        ["check", "good.jsonl", "--option", "x"],
        ["check", "good.jsonl", "--option", "encodign=utf-8"],
        ["check", "good.jsonl", "--no-such-flag"],
        ["chekc", "good.jsonl"],
        ["list", "formatz"],
        ["list", "findings", "--format", "nzp"],
        ["list", "presets", "--format", "npz"],
        ["capture", "model.py", "--data", "x", "-o", "y"],
    ],
)
def test_exit_2_wrong_use(run, good, arguments):
    code, out, err = run(*arguments)
    assert code == 2 and "error:" in err and not out
    code, out, _ = run(*arguments, "--json")
    assert code == 2 and json.loads(out)["error"]["what"]


def test_json_is_one_document(run, bad):
    code, out, _ = run("check", bad, "--json")
    report = json.loads(out)
    assert code == 1 and report["ok"] is False and report["findings"][0]["line"] == 2


def test_fix_writes_a_copy_and_says_what_changed(run, bad, tmp_path):
    before = (tmp_path / bad).read_bytes()
    code, out, _ = run("check", bad, "--fix", "repaired")
    assert code == 1 and "repaired copy in repaired" in out and "1 × bad-json: row left out" in out
    assert (tmp_path / bad).read_bytes() == before
    assert run("check", "repaired")[0] == 0
    code, _, err = run("check", bad, "--fix", "repaired")
    assert code == 2 and "not empty" in err


def test_a_copy_inside_the_dataset_is_refused(run, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"x": 1}\n')
    code, _, err = run("check", "data", "--fix", "data/fixed")
    assert code == 2 and "inside the dataset" in err and not (tmp_path / "data" / "fixed").exists()


def test_an_interrupted_check_shows_what_it_found(run, good, monkeypatch):
    from fewbit.data.check import DataCheck

    def interrupted(self):
        self.report.complete = False
        raise KeyboardInterrupt

    monkeypatch.setattr(DataCheck, "run", interrupted)
    code, out, err = run("check", good)
    assert code == 130 and "stopped before the end" in out and err == "interrupted\n"


def test_list_reads_the_registry(run):
    code, out, _ = run("list", "formats", "--json")
    assert code == 0 and {"npz", "yolo"} <= {row["name"] for row in json.loads(out)}
    code, out, _ = run("list", "findings")
    assert code == 0 and "image-truncated" in out
    assert "signatures" in run("list")[1]


def test_an_unknown_format_of_findings_has_near_matches(run):
    assert "did you mean 'npz'" in run("list", "findings", "--format", "nzp")[2]
    code, out, _ = run("list", "findings", "--format", "npz", "--json")
    assert code == 0 and {row["format"] for row in json.loads(out)} == {"npz"}


def test_an_unknown_kind_is_held_against_all_there_is(run):
    err = run("list", "preset")[2]
    assert "did you mean 'presets'" in err and "findings" in err and "formats" in err


def test_a_format_of_the_users_own(run, tmp_path):
    (tmp_path / "mine.py").write_text("def read(path):\n    yield {'x': 1}\n")
    code, out, _ = run("check", "mine.py", "--format", "mine.py:read")
    assert code == 0 and "{x: 1}" in out


def test_version(run):
    from fewbit import __version__

    assert run("--version")[1].strip() == __version__


def test_the_demo_runs_and_does_not_overwrite_what_is_not_its_own(run, tmp_path):
    code, out, _ = run("demo", "--folder", "here")
    assert code == 0 and "a model gets" in out and "image-truncated" in out
    assert run("demo", "--folder", "here")[0] == 0
    (tmp_path / "mine").mkdir()
    code, _, err = run("demo", "--folder", "mine")
    assert code == 2 and "not made by the demo" in err


def in_a_terminal(command, folder):
    """What a command shows on a terminal, standard error included."""
    import pty
    import subprocess

    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    process.wait()
    os.close(ours)
    return shown.decode(errors="replace")


def test_progress_on_a_terminal_and_silence_in_a_pipe(run, good, tmp_path):
    shown = in_a_terminal([sys.executable, "-m", "fewbit", "check", good], tmp_path)
    assert "━" in shown and "fine" in shown
    code, out, err = run("check", good)
    assert code == 0 and err == "" and "━" not in out


def test_a_fix_that_cannot_be_made_does_not_hide_the_report(run, tmp_path):
    import numpy as np

    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz" / "a.npz", x=np.array([{}], dtype=object))
    code, out, err = run("check", "npz", "--fix", "fixed")
    assert code == 1 and "not fit" in out and "error:" in err and not (tmp_path / "fixed").exists()
    code, out, _ = run("check", "npz", "--fix", "fixed", "--json")
    assert code == 1 and json.loads(out)["fix_error"]["what"] and json.loads(out)["findings"]
