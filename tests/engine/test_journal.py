# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped goes on, and ends with the bytes of one that was not."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fewbit
from fewbit.algorithms import scale_search
from fewbit.algorithms._base import Problem
from fewbit.engine import delivery
from fewbit.engine.journal import Journal, job_digest
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import transformer

JOB = """
import sys, torch, fewbit
sys.path.insert(0, {tests!r})
from tiny_models import transformer
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
items = [{{"input_ids": torch.randint(3, 40, (2, 24), generator=draw)}} for _ in range(10)]
model = transformer("llama", num_hidden_layers=4).eval()
print("begin", flush=True)
fewbit.compress_weights(model, mode="int4_sym", group_size=8, dataset=items, algorithm="gptq", output=sys.argv[1])
"""


def items(count=6):
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(3, 40, (2, 24), generator=draw)} for _ in range(count)]


def weights(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def compress(folder, **more):
    model = transformer("llama").eval()
    return fewbit.compress_weights(
        model, mode="int4_sym", group_size=8, dataset=items(), algorithm="gptq", output=folder, **more
    )


def test_a_weight_comes_back_as_it_was(tmp_path):
    grid = Grid(Dtype.uint4, symmetric=False)
    solution = scale_search.solve(Problem(torch.randn(6, 10), grid, (6, 10)))
    journal = Journal(tmp_path, "a" * 64)
    assert journal.read("x", grid, (6, 10), (6, 10)) is None
    journal.write("x", solution)
    found = Journal(tmp_path, "a" * 64).read("x", grid, (6, 10), (6, 10))
    assert found.facts == solution.facts
    assert all(torch.equal(a, found.qtensor.tensors()[name]) for name, a in solution.qtensor.tensors().items())
    assert Journal(tmp_path, "b" * 64).read("x", grid, (6, 10), (6, 10)) is None
    codes = next(tmp_path.rglob("*.safetensors"))
    codes.write_bytes(codes.read_bytes()[:-3])
    assert journal.read("x", grid, (6, 10), (6, 10)) is None  # half of it counts as nothing


def test_a_digest_is_of_everything():
    same = job_digest("m", items(), {"a": 1})
    assert same == job_digest("m", items(), {"a": 1})
    others = [
        job_digest("n", items(), {"a": 1}),
        job_digest("m", items(5), {"a": 1}),
        job_digest("m", items(), {"a": 2}),
    ]
    assert len({same, *others}) == 4


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    whole = compress(tmp_path / "whole")
    written = Journal.write

    def fail(self, name, solution):
        written(self, name, solution)
        if "layers.1.self_attn.o_proj" in name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        compress(tmp_path / "stopped")
    assert not (tmp_path / "stopped").exists()
    again = []
    monkeypatch.setattr(
        Journal, "write", lambda self, name, solution: (again.append(name), written(self, name, solution))
    )
    second = compress(tmp_path / "stopped")
    assert weights(second) == weights(whole)
    assert again and not any("layers.0" in name for name in again)  # what was finished was not done again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped", "whole"]


def test_formats_are_there_all_or_none(tmp_path, monkeypatch):
    formats = ("safetensors", "compressed_tensors")
    exported = delivery.export

    def fail(model, folder, *, format, **more):
        if format == formats[1]:
            raise KeyboardInterrupt
        return exported(model, folder, format=format, **more)

    def work(name):
        return fewbit.compress_weights(
            transformer("llama", hidden_size=32, intermediate_size=64, head_dim=8).eval(), mode="int4_sym",
            group_size=32, dataset=items(), algorithm="gptq", format=formats, output=tmp_path / name,
        )  # fmt: skip

    monkeypatch.setattr(delivery, "export", fail)
    with pytest.raises(KeyboardInterrupt):
        work("stopped")
    assert not (tmp_path / "stopped").exists()
    monkeypatch.undo()
    work("stopped"), work("whole")
    for name in formats:
        assert weights(tmp_path / "stopped" / name) == weights(tmp_path / "whole" / name) != {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped", "whole"]


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_bytes(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB.format(tests=str(Path(__file__).parents[1])))

    def work(folder, seconds=None):
        """Whether it came to its end in so many seconds; killed if not."""
        with subprocess.Popen([sys.executable, script, tmp_path / folder], stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout.readline() == "begin\n"
            try:
                assert job.wait(seconds) == 0
                return True
            except subprocess.TimeoutExpired:
                job.kill()
                return False

    began = time.perf_counter()
    assert work("whole")
    lasted = time.perf_counter() - began
    kills = 0
    while kills < 20 and not work("killed", lasted * (0.02 + 0.3 * ((kills * 0.37) % 1))):
        kills += 1
        if (tmp_path / "killed").exists():  # killed when all was done
            break
    assert (tmp_path / "killed").exists() or work("killed")
    assert kills > 1
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
