# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is there whole or not at all, and there is always one."""

import pytest
import torch

from fewbit.errors import DataError
from fewbit.tuning import checkpoints
from fewbit.tuning.checkpoints import Checkpoints


def test_what_is_read_is_what_was_written_and_older_ones_go(tmp_path):
    kept = Checkpoints(tmp_path / "checkpoints", keep=2)
    shared = torch.randn(4, 3)
    for step in (1, 2, 3):
        kept.save(step, {"a": shared, "b": shared, "c": shared.T[1:], "n": torch.tensor(step)}, {"step": step})
    assert [path.name for path in kept.steps()] == ["step-00000002", "step-00000003"]
    tensors, state = checkpoints.read(kept.last())
    assert state == {"step": 3} and tensors["n"] == 3
    assert torch.equal(tensors["b"], shared) and torch.equal(tensors["c"], shared.T[1:])


@pytest.mark.parametrize("broken", ["save_file", "_to_disk"])
def test_one_that_is_not_complete_leaves_the_one_before(tmp_path, monkeypatch, broken):
    kept = Checkpoints(tmp_path)
    kept.save(1, {"a": torch.ones(2)}, {"step": 1})
    kept.save_best({"a": torch.ones(2)}, {"step": 1})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, broken, killed)
    for save in (lambda: kept.save(2, {"a": torch.zeros(2)}, {}), lambda: kept.save_best({"a": torch.zeros(2)}, {})):
        with pytest.raises(KeyboardInterrupt):
            save()
    kept.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "step-00000001"]
    assert checkpoints.read(kept.last())[0]["a"].sum() == checkpoints.read(kept.best)[0]["a"].sum() == 2


def test_a_kill_between_two_renames_loses_nothing(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save_best({"a": torch.ones(2)}, {})
    kept.best.rename(tmp_path / ".old-best")  # the new one was to come now
    kept.sweep()
    assert checkpoints.read(kept.best)[0]["a"].sum() == 2


def test_a_damaged_one_says_so(tmp_path):
    kept = Checkpoints(tmp_path)
    place = kept.save(1, {"a": torch.ones(2)}, {})
    (place / "state.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(DataError, match="cannot be read"):
        checkpoints.read(place)
