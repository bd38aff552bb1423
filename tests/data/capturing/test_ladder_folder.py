# SPDX-License-Identifier: Apache-2.0
"""The numbers are those of the guide's list of what the published export script gets wrong (data.md §4)."""

import json
from random import Random

import numpy as np
import pytest

from captured import Free, Named, Net, hooks, nn, notes, run, samples, torch
from fewbit.data.arrays.npz_writer import write_npz
from fewbit.data.capture import capture
from fewbit.errors import DataError, UsageError


def test_10_a_model_that_changes_its_input_does_not_change_the_sample(tmp_path):
    class InPlace(nn.Module):
        def forward(self, x):
            return x.zero_()

    run(InPlace(), tmp_path / "d", (torch.ones(2, 3),))
    assert all(sample["x"].tolist() == [1, 1, 1] for sample in samples(tmp_path / "d"))


def test_11_samples_go_to_disk_as_they_come(tmp_path):
    model = Net()
    with capture(model, tmp_path / "d") as cap:
        for number in range(3):
            model(torch.full((2, 4), float(number)))
            assert len(list((tmp_path / "d").glob("*.npz"))) == cap.count == 2 * (number + 1)
            assert cap.samples[-1]["x"][0] == number


def test_11_max_samples_counts_samples_and_says_when_it_is_full(tmp_path):
    model, calls = Net(), 0
    with capture(model, tmp_path / "d", max_samples=5) as cap:
        for _ in range(10):
            calls += 1
            model(torch.randn(2, 4))
            if cap.full:
                break
    assert calls == 3 and cap.manifest["count"] == 5 and len(samples(tmp_path / "d")) == 5


def test_11_a_seed_draws_evenly_and_the_same_each_time(tmp_path):
    stream = [(torch.tensor([[float(number)]]),) for number in range(200)]
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        cap = run(Free(), tmp_path / folder, *stream, max_samples=20, seed=seed)
        assert not cap.full and cap.manifest["seen"] == 200
    drawn = {name: [sample["input_0"][0] for sample in samples(tmp_path / name)] for name in "abc"}
    assert drawn["a"] == drawn["b"] != drawn["c"] and len(set(drawn["a"])) == 20
    assert max(drawn["a"]) > 100 > min(drawn["a"])


def test_11_repeats_are_counted_and_left_out_on_demand(tmp_path):
    same = (torch.ones(3, 4),)
    assert run(Net(), tmp_path / "d", same).manifest["duplicates"] == 2
    cap = run(Net(), tmp_path / "e", same, (torch.zeros(1, 4),), unique=True)
    assert (cap.manifest["count"], cap.manifest["skipped_duplicates"]) == (2, 2)


def test_12_the_model_is_left_as_it_was(tmp_path):
    model = Net().train()
    model.drop.eval()
    before = list(model.state_dict()), dict(model.__dict__)
    run(model, tmp_path / "d", (torch.ones(1, 4),), evaluate=True)
    assert model.training and model.layer.training and not model.drop.training
    assert (list(model.state_dict()), model.__dict__) == before and not hooks(model)


@pytest.mark.parametrize("run_forward", [True, False])
def test_12_the_model_is_left_as_it_was_after_an_exception(tmp_path, run_forward):
    model = Net().train()
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path / "d", run_forward=run_forward):
        model.eval()
        model(torch.ones(2, 4))
        1 / 0
    assert model.training and not hooks(model) and "forward" not in model.__dict__
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    assert manifest["complete"] is False and manifest["count"] == 2 and "ZeroDivisionError" in manifest["error"]


def test_12_the_mode_is_not_changed_unless_asked(tmp_path):
    model = Net().train()
    with capture(model, tmp_path / "d"):
        assert model.training
        model(torch.ones(1, 4))


def test_12_the_forward_pass_can_be_saved(tmp_path):
    class Costly(Net):
        def forward(self, x):
            raise AssertionError("never run")

    model = Costly()
    with capture(model, tmp_path / "d", run_forward=False) as cap:
        assert model(torch.ones(2, 4)) is None
    assert list(cap.manifest["inputs"]) == ["x"] and cap.manifest["count"] == 2
    with pytest.raises(AssertionError):
        model(torch.ones(2, 4))


def test_13_names_sort_beyond_9999_samples(tmp_path):
    model = Free()
    with capture(model, tmp_path / "d"):
        model(torch.arange(2).reshape(2, 1))
    names = sorted(path.name for path in (tmp_path / "d").glob("*.npz"))
    assert len(names[0]) >= len("input00000000.npz")
    run(Free(), tmp_path / "e", (torch.ones(1, 1),), max_samples=100_000)
    assert (tmp_path / "e" / "input00000.npz").exists()


def test_13_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    for options in ({}, {"append": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match=r"photo\.jpg|no manifest"):
            run(Net(), tmp_path, (torch.ones(1, 4),), **options)
    assert (tmp_path / "photo.jpg").read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 1


def test_13_what_cannot_be_a_folder_is_wrong_use_and_system_files_are_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place, words in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "d", "cannot be made")):
        with pytest.raises(UsageError, match=words):
            run(Net(), place, (torch.ones(1, 4),))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ".DS_Store").write_bytes(b"x")
    run(Net(), tmp_path / "d", (torch.ones(1, 4),))
    with pytest.raises(UsageError, match="earlier capture"):
        run(Net(), tmp_path / "d", (torch.ones(1, 4),))


def test_13_overwrite_removes_our_files_and_no_others(tmp_path):
    run(Net(), tmp_path / "d", (torch.ones(5, 4),))
    (tmp_path / "d" / "notes.txt").write_text("mine")
    run(Net(), tmp_path / "d", (torch.zeros(2, 4),), overwrite=True)
    assert len(samples(tmp_path / "d")) == 2 and (tmp_path / "d" / "notes.txt").exists()
    np.savez(tmp_path / "d" / "other.npz", x=np.zeros(4))
    with pytest.raises(UsageError, match=r"other\.npz"):
        run(Net(), tmp_path / "d", (torch.zeros(2, 4),), overwrite=True)


def test_13_a_manifest_cannot_lead_overwrite_out_of_its_folder(tmp_path):
    run(Net(), tmp_path / "d", (torch.ones(1, 4),))
    (tmp_path / "mine.npz").write_bytes(b"mine")
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    manifest["files"].append({"file": "../mine.npz"})
    (tmp_path / "d" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="no manifest"):
        run(Net(), tmp_path / "d", (torch.ones(1, 4),), overwrite=True)
    assert (tmp_path / "mine.npz").read_bytes() == b"mine"


def test_13_a_damaged_manifest_ends_in_an_error_or_a_run(tmp_path):
    run(Net(), folder := tmp_path / "d", (torch.ones(1, 4),))
    good, random = (folder / "manifest.json").read_bytes(), Random(0)
    refused = 0
    for number in range(150):
        for path in folder.iterdir():
            path.unlink()
        write_npz(folder / "input00000000.npz", {"x": np.ones(4, np.float32)})
        bad, at = bytearray(good), random.randrange(len(good))
        bad[at : at + random.choice((0, 1, 5))] = random.choice((b"", b"7", b'"', b"null", b"../", b"\0"))
        (folder / "manifest.json").write_bytes(bad)
        try:
            run(Net(), folder, (torch.ones(1, 4),), **{"overwrite" if number % 2 else "append": True})
        except (UsageError, DataError):
            refused += 1
    assert 0 < refused < 150


def test_13_a_run_that_was_cut_off_can_be_replaced_and_not_appended_to(tmp_path):
    cap = capture(model := Net(), tmp_path / "d").__enter__()
    model(torch.ones(3, 4))
    cap._held.close()  # as if the process had been killed: no manifest is written
    with pytest.raises(UsageError, match="cut off"):
        run(Net(), tmp_path / "d", (torch.ones(1, 4),), append=True)
    run(Net(), tmp_path / "d", (torch.zeros(1, 4),), overwrite=True)
    assert len(samples(tmp_path / "d")) == 1


def test_13_append_goes_on(tmp_path):
    run(Net(), tmp_path / "d", (torch.ones(2, 4),), max_samples=2)
    cap = run(Net(), tmp_path / "d", (torch.zeros(3, 4),), append=True)
    assert cap.manifest["count"] == 5 and cap.manifest["files"][4]["file"] == "input0004.npz"
    assert [sample["x"][0] for sample in samples(tmp_path / "d")] == [1, 1, 0, 0, 0]
    with pytest.raises(DataError, match="x, mask"):
        run(Net(), tmp_path / "d", (torch.zeros(3, 4), torch.ones(3, 4)), append=True)
    with pytest.raises(UsageError, match="contradict"):
        run(Net(), tmp_path / "d", (torch.zeros(3, 4),), append=True, overwrite=True)


def test_13_no_half_written_file_stays(tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array", full_disk)
    with pytest.raises(OSError, match="No space"):
        run(Net(), tmp_path / "d", (torch.ones(2, 4),))
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["manifest.json"]


def test_14_an_input_may_be_called_file(tmp_path):
    run(Free(), tmp_path / "d", {"file": torch.ones(1, 2), "arr_0": torch.ones(1, 2), "allow_pickle": torch.ones(1)})
    assert sorted(samples(tmp_path / "d")[0]) == ["allow_pickle", "arr_0", "file"]


def test_15_the_manifest_says_what_is_there(tmp_path):
    import hashlib

    cap = run(Net(), tmp_path / "d", (torch.ones(2, 4),), (torch.ones(1, 4),))
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    assert manifest == cap.manifest and manifest["complete"] and manifest["count"] == 3
    assert manifest["inputs"]["x"]["shape"] == [4] and manifest["inputs"]["x"]["dtype"] == "float32"
    assert manifest["model"].endswith(".Net") and manifest["versions"]["torch"] == torch.__version__
    for entry in manifest["files"]:
        assert hashlib.sha256((tmp_path / "d" / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


def test_15_the_same_run_gives_the_same_bytes(tmp_path):
    for name in "ab":
        run(Net(), tmp_path / name, (torch.ones(3, 4).to(memory_format=torch.contiguous_format),))
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]


def test_15_lengths_that_vary_are_shown_as_such(tmp_path):
    cap = run(Named(), tmp_path / "d", {"a": torch.ones(1, 4)}, {"a": torch.ones(1, 7), "b": torch.ones(1, 1)})
    assert cap.manifest["inputs"]["a"]["shape"] == [None]
    assert ("input-not-in-all", "b") in notes(cap)


def test_15_a_call_without_its_batch_axis_shows_in_the_notes(tmp_path):
    cap = run(Free(), tmp_path / "d", (torch.ones(2, 3, 8, 8),), (torch.ones(3, 8, 8),))
    assert cap.manifest["inputs"]["input_0"]["shape"] is None and ("rank-varies", "input_0") in notes(cap)
