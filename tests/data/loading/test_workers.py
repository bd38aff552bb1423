# SPDX-License-Identifier: Apache-2.0
"""Who prepares batches, by what was measured. What a clock would say is given."""

import pickle

import numpy as np
import pytest

import drawing_collator
from fewbit.data.collate import Collator
from fewbit.data.dataset import Dataset
from fewbit.data.loaders import workers
from fewbit.data.loaders.fetching import Fetch, Job
from fewbit.data.loaders.users_code import runs_users_code
from fewbit.data.loaders.workers import choose_workers, no_process

JOBS = [Job(0, step, [step]) for step in range(3)]
ROWS = Dataset([{"x": i} for i in range(3)], batched=False)


class Own:
    """A dataset of the user's."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"x": index}


def fetch(dataset=ROWS, collator=None):
    return Fetch(dataset.source, collator or Collator(), 0)


@pytest.fixture
def clock(monkeypatch):
    def says(batch, threads=1.0, cores=4):
        monkeypatch.setattr(workers, "_timed", lambda fetch, job: batch)
        monkeypatch.setattr(workers, "_in_threads", lambda fetch, jobs: threads)
        monkeypatch.setattr(workers, "cores", lambda: cores)

    return says


def chosen(*args, ahead=False, **more):
    return choose_workers(fetch(*args, **more), JOBS, ahead)[:2]


def test_what_is_cheap_needs_nobody(clock):
    clock(0.001)
    assert chosen() == (0, "none")
    assert chosen(ahead=True) == (1, "thread")  # while the device works


def test_threads_where_they_help_else_processes(clock):
    clock(0.05, threads=0.55)
    assert chosen() == (3, "thread")
    clock(0.05, threads=1.1)
    assert chosen() == (3, "process")
    clock(0.05, threads=1.1, cores=16)
    assert chosen() == (3, "process")  # as many as it takes
    clock(9.0, threads=1.1, cores=64)
    assert chosen() == (8, "process")
    clock(0.05, threads=1.1, cores=1)
    assert chosen() == (0, "none")


def test_code_of_the_users_never_runs_in_threads(clock):
    clock(0.05, threads=0.5)
    assert chosen(collator=drawing_collator.draw) == (3, "process")
    clock(0.001)
    assert chosen(collator=drawing_collator.draw, ahead=True) == (0, "none")
    assert runs_users_code(Dataset(Own(), batched=False).source)
    assert runs_users_code(Dataset(ROWS.source, lambda row: row, batched=False).subset(2).source)
    assert not runs_users_code(ROWS.subset(2).source)


def test_what_cannot_be_sent_stays_here_and_says_why(clock):
    clock(0.05, threads=1.1)
    data = Dataset(ROWS.source, lambda row: row, batched=False)
    found = choose_workers(fetch(data), JOBS, False)
    assert found[:2] == (0, "none") and "cannot be sent" in found.why


def test_a_script_without_a_guard_is_not_run_again(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import fewbit\n")
    monkeypatch.setattr("sys.modules", {"__main__": type("main", (), {"__file__": str(script)})})
    assert "train.py has no" in no_process(fetch())
    script.write_text("if __name__ == '__main__':\n    pass\n")
    assert no_process(fetch()) is None


def test_one_batch_is_not_measured(clock):
    assert choose_workers(fetch(), JOBS[:1], False)[:2] == (0, "none")


def test_cores_are_shared_by_the_processes_of_a_machine(monkeypatch):
    alone = workers.cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * alone))
    assert workers.cores() == 1


def test_fetching_goes_into_another_process():
    sent = pickle.loads(pickle.dumps(fetch()))
    assert np.array_equal(sent(JOBS[1]).batch["x"], [1])
