# SPDX-License-Identifier: Apache-2.0
"""A line that is stopped says how to go on, and does: with what is finished, or with nothing left."""

import shlex

import pytest

from drawn_shapes import write_folder
from fewbit import cli
from fewbit.engine.journal import Journal
from fewbit.sparsity import deployment, verb
from fewbit.sparsity.stages import quantize
from fewbit.tuning.checkpoints import Checkpoints
from sparse_examples import arrays, decoder, graph, pairs

pytest.importorskip("accelerate")


def stopped(*_, **__):
    raise KeyboardInterrupt


def after(function, times=1):
    """A function that is stopped when it has run so many times."""
    done = []

    def run(*args, **kwargs):
        found = function(*args, **kwargs)
        done.append(1)
        if len(done) >= times:
            raise KeyboardInterrupt
        return found

    return run


def goes_on(told):
    """The line that is told, run as it stands."""
    line = shlex.split(told.splitlines()[0].partition(": fewbit ")[2])
    assert cli.run(line) == 0
    return line


@pytest.mark.parametrize("place", [(quantize, "run"), (deployment, "samples_of"), (deployment, "readme")])
def test_where_nothing_is_finished_nothing_is_left(tmp_path, capsys, monkeypatch, place):
    graph(tmp_path / "model.onnx")
    data = arrays(tmp_path / "some data", 12)
    line = ["sparsify", "one-shot", "--model", str(tmp_path / "model.onnx"), "--data", str(data)]
    line += ["--optim-level", "0.2", "-o", str(tmp_path / "out")]
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr(*place, stopped)
        assert cli.run(line) == 130
    told = capsys.readouterr().err
    assert told.startswith("nothing was finished, and nothing is left; to start again: fewbit sparsify one-shot")
    assert sorted(tmp_path.rglob("*")) == before
    assert goes_on(told) == line


def test_an_empty_folder_of_the_users_stays(tmp_path, monkeypatch):
    graph(tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(quantize, "run", stopped)
    line = ["sparsify", "one-shot", "--model", str(tmp_path / "model.onnx"), "--data", str(arrays(tmp_path / "npz"))]
    assert cli.run([*line, "--optim-level", "0.2", "-o", str(tmp_path / "out")]) == 130
    assert list((tmp_path / "out").iterdir()) == []


def test_checkpoints_of_the_users_stay_when_a_line_is_stopped_before_it_looks(tmp_path, monkeypatch):
    mine = tmp_path / "out" / "checkpoints" / "epoch-3.pt"
    mine.parent.mkdir(parents=True)
    mine.write_text("weeks of work")
    monkeypatch.setattr(verb, "check_model", stopped)
    assert cli.run(["sparsify", "one-shot", "--model", "m.onnx", "--data", "npz", "-o", str(tmp_path / "out")]) == 130
    assert mine.read_text() == "weeks of work"


def test_layers_that_are_settled_are_not_settled_again(tmp_path, capsys, monkeypatch):
    line = ["sparsify", "one-shot", "--model", str(decoder(tmp_path / "llama")), "--samples", "4"]
    line += ["--data", str(pairs(tmp_path / "rows.jsonl", 12)), "--optim-level", "0.5", "-o", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "write", after(Journal.write, times=3))
        assert cli.run(line) == 130
    told = capsys.readouterr().err
    assert told.startswith(f"what is finished lies in {tmp_path / '.out.work'}; to go on from there: fewbit sparsify")
    written = []
    whole = Journal.write
    monkeypatch.setattr(Journal, "write", lambda self, name, *rest: written.append(name) or whole(self, name, *rest))
    goes_on(told)
    assert len(written) == 14 - 3 and not (tmp_path / ".out.work").exists()


def test_training_goes_on_from_its_checkpoint(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from sparse_examples import classifier\n\n\ndef build():\n    return classifier()\n"
    )
    data = write_folder(tmp_path / "shapes", 24, 12, size=16)
    line = ["sparsify", "training-aware", "--model", "net.py:build", "--data", str(data), "-o", "out"]
    for option in ("max_steps=4", "save_every=2", "device=cpu", "tensorboard=false", "batch_size=8"):
        line += ["--option", option]
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", after(Checkpoints.save))
        assert cli.run(line) == 130
    told = capsys.readouterr().err
    assert told.startswith("what is finished lies in out/checkpoints; to go on from there: fewbit sparsify")
    goes_on(told)
    assert "resumed: from step 2" in capsys.readouterr().out and (tmp_path / "out" / "record.json").is_file()
