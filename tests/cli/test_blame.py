# SPDX-License-Identifier: Apache-2.0
"""An error in the user's file or of the machine is told in a few lines; one of ours stays loud."""

import json

import pytest

from fewbit import cli

OWN = """\
from torch import nn


def build():
    return broken(nn.Linear(4, 4))


def broken(layer):
    raise ValueError(f"no checkpoint for {layer}")


def below():
    return nn.Linear(4, "four")


def reads():
    return open("nowhere.pt").read()


def silent():
    assert False


def long():
    raise KeyError("x" * 10_000)


def takes(width):
    return nn.Linear(width, 4)


network = nn.Linear(4, 4)
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "own.py").write_text(OWN)

    def run(*arguments):
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("function", "what", "line"),
    [
        ("build", "own.py:build raised ValueError: no checkpoint for Linear", 9),
        ("below", "own.py:below raised TypeError", 13),
        ("reads", "own.py:reads raised FileNotFoundError", 17),
        ("silent", "own.py:silent raised AssertionError\n", 21),
    ],
)
def test_a_factory_that_raises_is_told_with_its_line(run, tmp_path, function, what, line):
    code, out, err = run("plan", f"own.py:{function}")
    assert code == 1 and not out and what in err and f"{tmp_path}/own.py:{line}\n" in err and "Traceback" not in err
    code, out, _ = run("plan", f"own.py:{function}", "--json")
    assert code == 1 and what.strip() in json.loads(out)["error"]["what"]


def test_a_message_without_end(run):
    code, _, err = run("plan", "own.py:long")
    assert code == 1 and "own.py:long raised KeyError: 'xxx" in err and len(err) < 1000


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_traceback_is_there_for_the_asking(run, place):
    arguments = ["plan", "own.py:build"]
    arguments.insert(place, "--traceback")
    code, _, err = run(*arguments)
    assert code == 1 and "Traceback (most recent call last)" in err and "line 5, in build" in err
    assert "\nerror: own.py:build raised ValueError" in err


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("def build(:\n", "SyntaxError", 1),
        ("\nimport no_such_library\n", "f.py raised ModuleNotFoundError: No module named 'no_such_library'", 2),
        ("\n\n1 / 0\n", "f.py raised ZeroDivisionError", 3),
    ],
)
def test_a_file_that_does_not_load(run, tmp_path, text, what, line):
    (tmp_path / "f.py").write_text(text)
    code, _, err = run("plan", "f.py:build")
    assert code == 1 and what in err and f"{tmp_path}/f.py:{line}" in err and "Traceback" not in err


def test_a_file_beside_is_imported_and_its_errors_are_the_users(run, tmp_path):
    (tmp_path / "sibling_of_f.py").write_text(OWN + "\n\ndef good():\n    return nn.Linear(4, 4)\n")
    (tmp_path / "f.py").write_text("from sibling_of_f import build, good\n")
    code, _, err = run("plan", "f.py:good")
    assert code == 0, err
    code, _, err = run("plan", "f.py:build")
    assert code == 1 and "sibling_of_f.py:build raised ValueError" in err and f"{tmp_path}/sibling_of_f.py:9" in err
    (tmp_path / "broken_sibling.py").write_text("\n1 / 0\n")
    (tmp_path / "g.py").write_text("import broken_sibling\n")
    code, _, err = run("plan", "g.py:build")
    assert code == 1 and "g.py raised ZeroDivisionError" in err and f"{tmp_path}/broken_sibling.py:2" in err


@pytest.mark.parametrize("name", ["takes", "network", "nothing"])
def test_a_reference_that_is_no_factory(run, name):
    for arguments in (["plan", f"own.py:{name}"], ["capture", f"own.py:{name}", "--data", "x", "-o", "y"]):
        code, _, err = run(*arguments)
        assert code == 2 and "own.py" in err and name in err and "Traceback" not in err


def test_a_fault_of_the_machine_is_no_traceback(run, tmp_path, monkeypatch):
    from fewbit.engine import verbs

    def full(*_, **__):
        raise OSError(28, "No space left on device", "/disk/out")

    monkeypatch.setattr(verbs, "make_plan", full)
    (tmp_path / "good.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(4, 4)\n")
    code, out, err = run("plan", "good.py:build")
    assert code == 1 and not out and "error: OSError: No space left on device\n  where:    /disk/out" in err
    code, out, _ = run("plan", "good.py:build", "--json")
    assert code == 1 and json.loads(out)["error"]["where"] == "/disk/out"


def test_a_bug_stays_loud(run, tmp_path, monkeypatch):
    from fewbit.engine import verbs

    monkeypatch.setattr(verbs, "make_plan", lambda *_: 1 / 0)
    (tmp_path / "good.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(4, 4)\n")
    with pytest.raises(ZeroDivisionError):
        run("plan", "good.py:build")


def test_a_bug_below_the_users_file_stays_loud(run, tmp_path, monkeypatch):
    """The user's function is on the way to it, but what raised is ours."""
    import fewbit

    monkeypatch.setattr(fewbit, "load", lambda *_: registry_bug(), raising=False)
    (tmp_path / "f.py").write_text("import fewbit\n\n\ndef build():\n    return fewbit.load('x')\n")
    from fewbit import registry

    def registry_bug():
        return registry.get(["not", "a", "name"], 1)

    with pytest.raises(TypeError):
        run("plan", "f.py:build")
