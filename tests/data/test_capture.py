# SPDX-License-Identifier: Apache-2.0
"""The numbers are those of the guide's list of what the published export script gets wrong (data.md §4)."""

import json
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.arrays.npz_writer import write_npz
from fewbit.data.capture import capture, capture_dataset
from fewbit.data.capturing.batch_axis import BatchAxes, take
from fewbit.data.signature import InputSpec, Signature
from fewbit.errors import DataError, UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, mask=None, *, scale=1.0):
        return self.drop(self.layer(x)) * scale


class Free(nn.Module):
    """Takes anything, so that tests can look at bindings alone."""

    def forward(self, *args, **kwargs):
        return None


class Named(nn.Module):
    def forward(self, a=None, b=None, c=None, **rest):
        return None


def samples(folder):
    return [read_npz(path) for path in sorted(folder.rglob("*.npz")) if "outputs" not in str(path)]


def run(model, folder, *calls, **options):
    with capture(model, folder, **options) as cap:
        for call in calls:
            model(**call) if isinstance(call, dict) else model(*call)
    return cap


def notes(cap):
    return {(note["what"], note["where"]) for note in cap.manifest["notes"]}


def hooks(model):
    return [*model._forward_pre_hooks, *model._forward_hooks, *model._forward_hooks_always_called]


# the ladder


def test_1_a_positional_call_is_captured(tmp_path):
    x = torch.arange(12.0).reshape(3, 4)
    run(Net(), tmp_path / "d", (x,))
    assert np.array_equal(np.stack([sample["x"] for sample in samples(tmp_path / "d")]), x.numpy())


def test_2_a_call_with_keywords_only_is_captured(tmp_path):
    run(Net(), tmp_path / "d", {"x": torch.ones(2, 4), "mask": torch.zeros(2, 4)})
    assert [sorted(sample) for sample in samples(tmp_path / "d")] == [["mask", "x"]] * 2


def test_3_a_name_of_two_letters_is_a_name(tmp_path):
    run(Free(), tmp_path / "d", {"ab": torch.ones(2, 3)})
    assert samples(tmp_path / "d")[0]["ab"].tolist() == [1, 1, 1]


def test_4_inputs_of_a_call_stay_together_and_samples_apart(tmp_path):
    run(Named(), tmp_path / "d", {"a": torch.arange(6).reshape(3, 2), "b": torch.arange(3) * 10})
    found = [(sample["a"].tolist(), int(sample["b"])) for sample in samples(tmp_path / "d")]
    assert found == [([0, 1], 0), ([2, 3], 10), ([4, 5], 20)]


def test_5_gradients_bfloat16_and_views_are_converted(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4)
    call = {
        "a": base.clone().requires_grad_() * 2,
        "b": base.bfloat16(),
        "c": base.permute(0, 2, 1)[:, ::2],
        "conj": torch.tensor([[1 + 2j], [3j]]).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "half": base.half(),
        "flags": base > 3,
    }
    cap = run(Named(), tmp_path / "d", call)
    first = samples(tmp_path / "d")[0]
    assert first["b"].dtype == np.float32 and np.array_equal(first["b"], base[0].numpy())
    assert first["conj"].tolist() == [1 - 2j] and first["sparse"].tolist() == [1, 0]
    assert first["half"].dtype == np.float16 and first["flags"].dtype == bool
    assert np.array_equal(first["c"], base.permute(0, 2, 1)[0, ::2].numpy()) and first["c"].flags.c_contiguous
    assert cap.manifest["inputs"]["b"]["source_dtype"] == "bfloat16"


def test_5_bfloat16_can_be_kept_as_bits(tmp_path):
    values = torch.tensor([[1.5, -2.0], [3.0, 0.1]], dtype=torch.bfloat16)
    run(Free(), tmp_path / "d", {"x": values, "t": torch.tensor(1.5, dtype=torch.bfloat16)}, bfloat16="uint16")
    found = samples(tmp_path / "d")
    bits = np.stack([sample["x"] for sample in found])
    assert bits.dtype == np.uint16 and np.array_equal(bits, values.view(torch.uint16).numpy())
    assert found[0]["t"].shape == () and found[0]["t"] == bits[0, 0]


def test_6_the_folder_is_made_with_its_parents(tmp_path):
    run(Net(), tmp_path / "a" / "b" / "c", (torch.ones(1, 4),))
    assert (tmp_path / "a" / "b" / "c" / "manifest.json").exists()


def test_7_names_are_those_of_forward(tmp_path):
    cap = run(Net(), tmp_path / "d", (torch.ones(1, 4), torch.ones(1, 4)))
    assert list(cap.manifest["inputs"]) == ["x", "mask"] and cap.manifest["names_from"] == "forward"


def test_7_a_forward_without_names_gets_positions_and_keywords(tmp_path):
    model = Free()
    with capture(model, tmp_path / "d") as cap:
        model(torch.ones(1, 4), torch.ones(1, 4), mask=torch.ones(1, 4))
    assert list(cap.manifest["inputs"]) == ["input_0", "input_1", "mask"]


def test_7_names_and_dtypes_of_an_export_are_met(tmp_path):
    export = Signature(
        "onnx",
        (
            InputSpec("mask", ("n", 4), "bool"),
            InputSpec("pixels", ("n", 4), "float32"),
            InputSpec("extra", required=False),
        ),
        source="model.onnx",
    )
    call = {"x": torch.ones(2, 4, dtype=torch.float64), "mask": torch.ones(2, 4, dtype=torch.int64), "scale": 2.0}
    cap = run(Net().double(), tmp_path / "d", call, names=export)
    first = samples(tmp_path / "d")[0]
    assert list(first) == ["mask", "pixels"] and first["pixels"].dtype == np.float32
    assert first["mask"].dtype == bool
    assert {("name-by-position", "pixels"), ("dtype-cast", "pixels"), ("input-left-out", "scale")} <= notes(cap)


def test_7_names_of_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    kinds = onnx.TensorProto
    inputs = [
        make.make_tensor_value_info("input_ids", kinds.INT64, ["n", "s"]),
        make.make_tensor_value_info("pixels", kinds.FLOAT, ["n", 3]),
    ]
    output = make.make_tensor_value_info("y", kinds.FLOAT, ["n", 3])
    graph = make.make_graph([make.make_node("Identity", ["pixels"], ["y"])], "g", inputs, [output])
    onnx.save(make.make_model(graph), tmp_path / "model.onnx")
    call = {"a": torch.ones(2, 3), "input_ids": torch.ones(2, 5, dtype=torch.int32), "labels": torch.ones(2)}
    cap = run(Named(), tmp_path / "d", call, names=str(tmp_path / "model.onnx"))
    first = samples(tmp_path / "d")[0]
    assert {name: array.dtype.name for name, array in first.items()} == {"input_ids": "int64", "pixels": "float32"}
    assert ("input-left-out", "labels") in notes(cap)


def test_7_a_list_of_names_goes_by_name_then_by_position(tmp_path):
    cap = run(Net(), tmp_path / "d", (torch.ones(1, 4), torch.ones(1, 4)), names=["mask", "pixels"])
    assert cap.manifest["inputs"]["pixels"]["argument"] == "x" and list(cap.manifest["inputs"]) == ["mask", "pixels"]
    run(Net(), tmp_path / "e", (torch.ones(1, 4),), names={"x": "pixels"})
    assert list(samples(tmp_path / "e")[0]) == ["pixels"]


def test_7_a_missing_parameter_is_not_filled_by_another_argument(tmp_path):
    with pytest.raises(DataError, match="nothing for 'b'"):
        run(Named(), tmp_path / "d", {"a": torch.ones(1, 4), "labels": torch.ones(1)}, names=["a", "b"])


def test_7_what_cannot_be_cast_or_does_not_fit_is_refused(tmp_path):
    for number, (spec, value) in enumerate(
        [
            (InputSpec("ids", ("n", 4), "int64"), torch.ones(1, 4)),
            (InputSpec("x", ("n", 4), "int8"), torch.full((1, 4), 300)),
            (InputSpec("x", ("n", 4), "float16"), torch.full((1, 4), 1e30)),
            (InputSpec("image", ("n", 3, 8, 8), "float32"), torch.ones(1, 4)),
        ]
    ):
        with pytest.raises(DataError) as caught:
            run(Net(), tmp_path / str(number), (value,), names=Signature("onnx", (spec,)))
        assert str(spec) in str(caught.value)


def test_7_bytes_into_a_float_input_are_noted(tmp_path):
    names = Signature("onnx", (InputSpec("x", ("n", 4), "float32"),))
    cap = run(Free(), tmp_path / "d", {"x": torch.ones(1, 4, dtype=torch.uint8)}, names=names)
    assert ("image-not-scaled", "x") in notes(cap)


def test_8_nested_containers_are_flattened_by_path(tmp_path):
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    batch = transformers.BatchEncoding({"ids": torch.ones(2, 3)})
    model = Named()
    with capture(model, tmp_path / "d") as cap:
        model(batch, [torch.ones(2, 3), (torch.ones(2),)], past=cache)
    assert list(cap.manifest["inputs"]) == ["a.ids", "b.0", "b.1.0", "past.0.key", "past.0.value"]


def test_8_numbers_are_kept_and_the_rest_is_told(tmp_path):
    call = {
        "a": torch.ones(2, 3),
        "b": 7,
        "c": None,
        "mode": "fast",
        "use_cache": True,
        "scale": 0.5,
        "x": np.zeros((2, 1)),
    }
    cap = run(Named(), tmp_path / "d", call, {**call, "mode": "slow"})
    first = samples(tmp_path / "d")[0]
    assert first["b"].shape == () and first["b"] == 7 and first["scale"] == 0.5 and first["x"].shape == (1,)
    told = cap.manifest["not_captured"]
    assert told["c"] == {"type": "NoneType", "value": None, "varies": False}
    assert told["mode"]["varies"] and told["use_cache"]["value"] is True


def test_8_a_call_without_tensors_says_what_it_got(tmp_path):
    with pytest.raises(DataError, match="without a tensor") as caught:
        run(Free(), tmp_path / "d", {"n": 3, "mode": "fast"})
    assert "n=int 3, mode=str 'fast'" in str(caught.value)


def test_9_masks_and_scalars_beside_a_batch(tmp_path):
    call = {
        "mask": torch.arange(9).reshape(1, 1, 3, 3),
        "a": torch.arange(8).reshape(4, 2),
        "positions": torch.arange(3),
        "scale": torch.tensor(2.0),
    }
    cap = run(Named(), tmp_path / "d", call)
    found = samples(tmp_path / "d")
    assert len(found) == 4 and {sample["mask"].shape for sample in found} == {(1, 3, 3)}
    assert all(sample["positions"].tolist() == [0, 1, 2] and sample["scale"] == 2 for sample in found)
    assert {("axis-broadcast", "mask"), ("axis-shared", "positions")} <= notes(cap)


def test_9_samples_stacked_again_give_the_model_the_same_input(tmp_path):
    model = Net().eval()
    x, mask = torch.randn(4, 3, 4), torch.randn(1, 3, 2)

    class Masked(nn.Module):
        def forward(self, x, mask):
            return model(x) * mask

    run(masked := Masked(), tmp_path / "d", (x, mask))
    again = [torch.from_numpy(np.stack([sample[name] for sample in samples(tmp_path / "d")])) for name in ("x", "mask")]
    assert torch.equal(masked(*again), masked(x, mask))


def test_9_a_batch_of_one_with_other_sizes_beside_it(tmp_path):
    run(
        Named(),
        tmp_path / "d",
        {"a": torch.ones(1, 5), "b": torch.ones(1, 5), "patches": torch.ones(60, 3), "c": torch.arange(5)},
    )
    (only,) = samples(tmp_path / "d")
    assert [only[name].shape for name in ("a", "b", "c", "patches")] == [(5,), (5,), (5,), (60, 3)]


def test_9_other_axes_are_declared(tmp_path):
    call = {
        "a": torch.arange(6).reshape(3, 2),
        "past": (torch.arange(6).reshape(3, 2), torch.zeros(1, 2)),
        "b": torch.ones(2),
    }
    run(Named(), tmp_path / "d", call, batch_dim={"a": 1, "past": -1, "b": None})
    found = samples(tmp_path / "d")
    assert [sample["a"].tolist() for sample in found] == [[0, 2, 4], [1, 3, 5]]
    assert found[1]["past.0"].tolist() == [1, 3, 5] and found[0]["b"].shape == (2,)
    run(Free(), tmp_path / "e", {"x": torch.ones(3, 2)}, batch_dim=None)
    assert samples(tmp_path / "e")[0]["x"].shape == (3, 2)


def test_9_a_list_can_be_the_batch(tmp_path):
    images = [torch.ones(3, 5, 6), torch.ones(3, 7, 8)]
    targets = [{"labels": torch.tensor([1])}, {"labels": torch.tensor([2, 3])}]
    run(Named(), tmp_path / "d", {"a": images, "b": targets}, batch_dim={"a": "list", "b": "list"})
    found = samples(tmp_path / "d")
    assert [sample["a"].shape for sample in found] == [(3, 5, 6), (3, 7, 8)]
    assert found[1]["b.labels"].tolist() == [2, 3]


def test_9_a_batch_as_long_as_the_sequence_does_not_change_the_reading(tmp_path):
    def call(batch):
        return {"a": torch.ones(batch, 5), "positions": torch.arange(5)}

    cap = run(Named(), tmp_path / "d", call(4), call(5))
    assert {sample["positions"].shape for sample in samples(tmp_path / "d")} == {(5,)}
    assert ("axis-coincidence", "positions") in notes(cap)
    with pytest.raises(DataError, match="positions") as caught:
        run(Named(), tmp_path / "e", call(5), call(4))
    assert "batch_dim={'positions': None}" in str(caught.value)


def test_9_declared_inputs_that_disagree_are_an_error(tmp_path):
    with pytest.raises(DataError, match="do not agree") as caught:
        run(Named(), tmp_path / "d", {"a": torch.ones(3, 2), "b": torch.ones(4, 2)}, batch_dim={"a": 0, "b": 0})
    assert "a: 3, b: 4" in str(caught.value)
    with pytest.raises(UsageError, match="'typo'"):
        run(Net(), tmp_path / "e", (torch.ones(1, 4),), batch_dim={"typo": 1})
    with pytest.raises(UsageError, match="PackedSequence"):
        run(Free(), tmp_path / "f", (nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),))


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
            continue


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


# beyond the ladder


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(2, 5), st.integers(0, 2))
def test_splitting_and_stacking_give_the_batch_back(data, count, axis):
    inner = [data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=3)) for _ in range(3)]
    arrays = {str(n): np.random.default_rng(n).normal(size=[*s[:axis], count, *s[axis:]]) for n, s in enumerate(inner)}
    found, axes = BatchAxes(dict.fromkeys(arrays, axis), lambda *words: None).assign(
        {n: a.shape for n, a in arrays.items()}
    )
    assert found == count
    for name, array in arrays.items():
        rows = [take(array, axes[name], row) for row in range(count)]
        assert np.array_equal(np.stack(rows, axis=axis), array)


def test_outputs_are_paired_with_inputs(tmp_path):
    class Two(nn.Module):
        def forward(self, x):
            return x * 2, {"mean": x.mean(), "none": None}

    cap = run(Two(), tmp_path / "d", (torch.arange(4.0).reshape(2, 2),), outputs=True)
    entry = cap.manifest["files"][1]
    given, returned = read_npz(tmp_path / "d" / entry["file"]), read_npz(tmp_path / "d" / entry["output"])
    assert np.array_equal(given["x"] * 2, returned["output_0"]) and returned["output_1.mean"] == 1.5
    assert list(cap.manifest["outputs"]) == ["output_0", "output_1.mean"]
    assert "output output_1.none" in cap.manifest["not_captured"]


def test_a_call_that_fails_leaves_no_sample(tmp_path):
    model = Net()
    with capture(model, tmp_path / "d") as cap:
        model(torch.ones(1, 4))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 5))
        model(torch.ones(1, 4))
    assert cap.manifest["count"] == 2 and ("call-failed", "model") in notes(cap)


def test_only_the_outermost_call_counts(tmp_path):
    class Again(nn.Module):
        def forward(self, x, depth=2):
            return self(x + 1, depth=depth - 1) if depth else x

    cap = run(Again(), tmp_path / "d", (torch.zeros(2, 1),), (torch.zeros(2, 1),))
    assert cap.manifest["count"] == 4 and all(sample["x"] == 0 for sample in samples(tmp_path / "d"))


def test_layers_get_folders_of_their_own(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    cap = run(model, tmp_path / "d", (torch.ones(2, 4),), layers=["0", "2"])
    assert samples(tmp_path / "d" / "0")[0]["input"].shape == (4,)
    assert samples(tmp_path / "d" / "2")[0]["input"].shape == (3,)
    assert cap.manifest["2"]["layer"] == "2" and not hooks(model[0]) and not hooks(model[2])
    with pytest.raises(UsageError, match="no layer 'linear'"):
        run(model, tmp_path / "e", layers=["linear"])
    with pytest.raises(UsageError, match="not empty"):
        run(model, tmp_path / "d", (torch.ones(2, 4),), layers=["0", "2"])
    run(model, tmp_path / "d", (torch.ones(1, 4),), layers=["0", "2"], overwrite=True)
    with pytest.raises(UsageError, match="something else"):
        run(model, tmp_path / "d", (torch.ones(1, 4),), layers=["0"], overwrite=True)


def test_nothing_captured_is_an_error(tmp_path):
    model = Net()
    with pytest.raises(DataError, match="no sample was captured") as caught, capture(model, tmp_path / "d"):
        model.forward(torch.ones(1, 4))
    assert "model.forward" in str(caught.value)
    run(model, tmp_path / "d", (torch.ones(1, 4),))  # what is left of the empty run is no obstacle
    assert len(samples(tmp_path / "d")) == 1


def test_random_state_is_untouched(tmp_path):
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    run(Free(), tmp_path / "d", *[(torch.ones(1, 1),)] * 20, max_samples=3, seed=5)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]


def test_compiled_models_keep_their_names(tmp_path):
    class Wide(nn.DataParallel):
        pass

    Wide.__name__ = "DataParallel"
    cap = run(Wide(Net()), tmp_path / "d", (torch.ones(1, 4),))
    assert list(cap.manifest["inputs"]) == ["x"] and cap.manifest["model"].endswith(".Net")


def test_a_call_that_forward_cannot_take_is_explained(tmp_path):
    with pytest.raises(UsageError, match="typo") as caught:
        run(Net(), tmp_path / "d", {"x": torch.ones(1, 4), "typo": 1})
    assert "forward(x, mask=None, *, scale=1.0)" in str(caught.value)


def test_options_that_contradict_and_wrong_models_are_refused(tmp_path):
    for options in (
        {"run_forward": False, "outputs": True},
        {"run_forward": False, "layers": ["layer"]},
        {"seed": 1},
        {"max_samples": 0},
        {"bfloat16": "float16"},
    ):
        with pytest.raises(UsageError):
            capture(Net(), tmp_path / "d", **options)
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        capture("model.onnx", tmp_path / "d")
    with pytest.raises(DataError, match="meta device"):
        run(Free(), tmp_path / "e", (torch.ones(1, 4, device="meta"),))
    assert not (tmp_path / "d").exists()


def test_a_transformer_is_captured_as_it_is_called(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 50, (3, 8))
    batch = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    cap = run(model, tmp_path / "d", dict(batch, labels=torch.tensor([0, 1, 0])), outputs=True)
    assert list(cap.manifest["inputs"]) == ["input_ids", "attention_mask", "labels"]
    assert cap.manifest["outputs"]["logits"]["shape"] == [2]


def test_capture_dataset_runs_the_model_over_ready_inputs(tmp_path):
    model = Net().train()
    inputs = (((torch.ones(2, 4),), {"scale": 2.0}) for _ in range(100))
    manifest = capture_dataset(model, inputs, tmp_path / "d", max_samples=3)
    assert manifest["count"] == 3 and model.training and next(inputs)


def test_importing_capture_does_not_import_torch():
    code = "import sys, fewbit.data.capture, fewbit.data.export_wrapper; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
