# SPDX-License-Identifier: Apache-2.0
import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fewbit.errors import ResourceError, UsageError
from fewbit.output import open_output, write_atomic


def write(path, content="1", **options):
    with open_output(path, **options) as output:
        (output.work / "model.bin").write_text(content)
        (output.work / "record.json").write_text("{}")


def test_nothing_appears_before_the_end(tmp_path):
    with open_output(tmp_path / "out") as output:
        (output.work / "record.json").write_text("{}")
        assert not (tmp_path / "out").exists() and output.work.name == "out.partial"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["record.json"]
    assert not (tmp_path / "out.partial").exists()


def test_a_file_brings_its_companions(tmp_path):
    with open_output(tmp_path / "small.onnx") as output:
        (output.work / "small.onnx").write_text("model")
        (output.work / output.companion("record.json")).write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.onnx", "small.record.json"]


def test_finished_work_is_kept_after_an_error_and_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "out") as output:
        (output.work / "layer0").write_text("done")
        raise KeyboardInterrupt
    assert (tmp_path / "out.partial" / "layer0").exists() and not (tmp_path / "out").exists()
    with open_output(tmp_path / "out") as output:
        assert (output.work / "layer0").read_text() == "done"
        (output.work / "record.json").write_text("{}")
    assert (tmp_path / "out" / "layer0").exists()


def test_an_error_before_any_work_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), open_output(tmp_path / "out"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_only_results_of_fewbit_are_replaced(tmp_path):
    write(tmp_path / "out")
    with pytest.raises(UsageError, match="exists") as caught:
        write(tmp_path / "out")
    assert caught.value.code == "output-exists" and "--overwrite" in caught.value.text("cli")
    write(tmp_path / "out", "2", overwrite=True)
    assert (tmp_path / "out" / "model.bin").read_text() == "2"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not written by fewbit"):
        write(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("output", ["data/out", "data", "."])
def test_output_inside_or_around_the_input_is_refused(tmp_path, output):
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError) as caught:
        write(tmp_path / output, inputs=[tmp_path / "data"])
    assert caught.value.code == "output-in-input"


def test_two_runs_to_one_output(tmp_path):
    with open_output(tmp_path / "out"), pytest.raises(UsageError, match="another run"):
        write(tmp_path / "out")


def test_a_dead_process_holds_no_lock(tmp_path):
    program = f"""
        import os, pathlib
        from fewbit.output import open_output
        with open_output(pathlib.Path({str(tmp_path / "out")!r})) as output:
            (output.work / "layer0").write_text("done")
            os._exit(9)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)]).returncode == 9
    write(tmp_path / "out")
    assert (tmp_path / "out" / "layer0").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "weights.bin"),
        RuntimeError("x: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_names_file_and_space_and_keeps_work(tmp_path, error):
    with pytest.raises(ResourceError, match="the disk is full") as caught, open_output(tmp_path / "out") as output:
        (output.work / "layer0").write_text("done")
        raise error
    assert "MB are free" in str(caught.value) and "out.partial" in str(caught.value)
    assert (tmp_path / "out.partial" / "layer0").exists()


def test_write_atomic_replaces_or_leaves(tmp_path):
    path = tmp_path / "a.json"
    write_atomic(path, b"1")
    write_atomic(path, b"2")
    assert path.read_bytes() == b"2" and [p.name for p in Path(tmp_path).iterdir()] == ["a.json"]


def test_a_run_that_finishes_first_is_not_replaced(tmp_path, monkeypatch):
    import fewbit.output

    acquire = fewbit.output._acquire

    def finish_another_run_first(work):
        monkeypatch.setattr(fewbit.output, "_acquire", acquire)
        write(tmp_path / "out")
        work.mkdir()
        return acquire(work)

    monkeypatch.setattr(fewbit.output, "_acquire", finish_another_run_first)
    with pytest.raises(UsageError, match="exists"):
        write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "file" / "out")
    assert caught.value.code == "output-permission"
