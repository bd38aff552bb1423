# SPDX-License-Identifier: Apache-2.0
"""Several processes do one job: the files are those of one, and none waits for one that failed."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.engine.joining import by_the_first, is_first
from fewbit.engine.shares import dealt
from fewbit.engine.workers import Workers

JOB = Path(__file__).with_name("worker_job.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def start(count, *arguments, command=(str(JOB),)):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [*TORCHRUN, str(count), *command, *map(str, arguments)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)


def hashes(folder):
    """Every file by its hash, but for what says when a run was made."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name in ("record.json", "fewbit.json"):
            told = json.loads(content)
            told.pop("made", None)
            told.get("files", {}).pop("record.json", None)
            content = json.dumps(told).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "items"), [("llama", 20), ("mixtral", 9), ("blocks", 5), ("blocks", 4)])
def test_the_files_are_those_of_one_worker(tmp_path, name, items):
    found = {}
    for count in (1, 2, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        ran = start(count, folder, name, "plain", items)
        assert ran.returncode == 0, ran.stderr
        found[count] = hashes(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["out", "sums"]
    assert {"out/fewbit.safetensors", "out/record.json", "sums/store.json"} <= found[1].keys()
    assert found[1] == found[2] == found[3]


@pytest.mark.slow
def test_another_number_of_workers_goes_on(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder, count, what in ((whole, 1, "plain"), (stopped, 2, "stop")):
        folder.mkdir()
        assert (start(count, folder, "blocks", what, 9).returncode == 0) == (what == "plain")
    assert list(stopped.glob(".out.work/*/*.json")) and not (stopped / "out").exists()
    (stopped / "error1").unlink(missing_ok=True)  # what the other one said, if torchrun let it
    assert start(3, stopped, "blocks", "plain", 9).returncode == 0
    assert hashes(stopped) == hashes(whole)


@pytest.mark.parametrize(
    ("what", "errors"),
    [
        ("error", {"error0": "worker 1 of 2 stopped: ZeroDivisionError: division by zero", "error1": "ZeroDivision"}),
        pytest.param("death", {"error0": "gone, without a word"}, marks=pytest.mark.slow),
        pytest.param(
            "other",
            {"error0": "different models, data or options", "error1": "where:    worker 1, beside worker 0"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_that_fails_ends_all(tmp_path, what, errors):
    """Started by hand: torchrun would end the others itself, at some moment or other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, JOB, tmp_path, "blocks", what, "9"]
    jobs = [
        subprocess.Popen(line, env={**os.environ, **group, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "01"
    ]
    assert all(job.wait(300) for job in jobs)
    assert not (tmp_path / "out").exists()
    for name, text in errors.items():
        assert text in (tmp_path / name).read_text()


@pytest.mark.slow
def test_the_command_line_under_torchrun(tmp_path):
    """Without data each of them does all of it; the first one writes and prints."""
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(64, 64))\n"
    )
    command = ("-m", "fewbit", "compress", f"{tmp_path / 'net.py'}:build", "--mode", "int4_sym")
    ran = start(2, "-o", tmp_path / "out", "--all-layers", command=command)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("1 weights quantized") == 1
    assert (tmp_path / "out" / "fewbit.json").is_file()


def test_who_is_alone_starts_nothing():
    import torch.distributed as dist

    alone = Workers()
    with pytest.raises(ZeroDivisionError), alone.together():
        alone.first(lambda: 1 / 0)
    assert by_the_first(lambda: "made")() == "made"
    assert is_first() and alone.say(3) == [3] and not dist.is_initialized()


def test_work_is_dealt_by_its_cost():
    assert dealt([], 3) == []
    assert dealt([1, 1, 1, 1], 2) == [0, 1, 0, 1]
    assert dealt([5, 1, 1, 1, 1, 1], 2) == [0, 1, 1, 1, 1, 1]
    assert dealt([2, 3], 4) == [1, 0]
