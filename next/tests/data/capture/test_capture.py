# SPDX-License-Identifier: Apache-2.0
"""Recording what a module receives."""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest

from fewbit import check_dataset, open_dataset
from fewbit.api.capture import capture
from fewbit.data.capture.sample_folder import check_sample_folder
from fewbit.errors import DataError, UsageError
from fewbit.options import option

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    """Four features in, two out, with an optional mask and a scale."""

    def __init__(self):
        super().__init__()
        self.layer, self.noise = nn.Linear(4, 2), nn.Dropout(0.5)

    def forward(self, x, mask=None, *, scale=1.0):
        return scale * self.noise(self.layer(x))


class Named(nn.Module):
    def forward(self, a=None, b=None, c=None, **rest):
        """Takes anything by name."""


class Free(nn.Module):
    def forward(self, *args, **kwargs):
        """Takes anything."""


def record(model, folder, *calls, **options):
    """Positional calls as tuples, calls by keyword as dicts."""
    with capture(model, folder, **options) as recording:
        for call in calls:
            model(**call) if isinstance(call, dict) else model(*call)
    return recording


def read(folder):
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def hooks(model):
    return [*model._forward_pre_hooks, *model._forward_hooks, *model._forward_hooks_always_called]


def test_every_call_becomes_samples_under_the_names_of_forward(tmp_path):
    x = torch.randn(3, 4)
    recording = record(Net(), tmp_path / "new" / "d", (x[:2],), {"x": x[2:], "mask": torch.ones(1, 4), "scale": 2.0})
    samples = read(tmp_path / "new" / "d")
    assert np.array_equal(np.stack([sample["x"] for sample in samples]), x.numpy())
    assert [sorted(sample) for sample in samples] == [["x"], ["x"], ["mask", "scale", "x"]]
    assert recording.count == recording.manifest["samples"] == 3 and samples[2]["mask"].shape == (4,)
    assert json.loads((tmp_path / "new" / "d" / "manifest.json").read_bytes()) == recording.manifest
    assert recording.manifest["files"] == ["input0000.npz", "input0001.npz", "input0002.npz"]


def test_what_was_recorded_is_a_dataset_without_issues_that_fits_the_model(tmp_path):
    model = Net()
    record(model, tmp_path / "d", (torch.randn(1, 4),))
    report = check_dataset(str(tmp_path / "d"), model=model, progress=False)
    assert report.ok and not report.issues and report.data_format == "npz" and len(open_dataset(tmp_path / "d")) == 1


def test_inputs_are_copied_before_the_call(tmp_path):
    class InPlace(nn.Module):
        def forward(self, x):
            return x.zero_()

    record(InPlace(), tmp_path / "d", (torch.ones(2, 3),))
    assert all(sample["x"].tolist() == [1, 1, 1] for sample in read(tmp_path / "d"))


def test_a_call_that_fails_leaves_no_sample(tmp_path):
    model = Net()
    with capture(model, tmp_path / "d") as recording:
        model(torch.ones(1, 4))
        for wrong in ((torch.ones(1, 5),), (torch.ones(1, 4), None, "too many")):
            with pytest.raises((RuntimeError, TypeError)):
                model(*wrong)
        model(torch.zeros(1, 4))
    assert recording.count == 2 and [sample["x"][0] for sample in read(tmp_path / "d")] == [1, 0]


def test_only_the_outermost_call_counts(tmp_path):
    class Again(nn.Module):
        def forward(self, x, depth=2):
            return self(x + 1, depth=depth - 1) if depth else x

    record(Again(), tmp_path / "d", (torch.zeros(2, 1),), (torch.zeros(2, 1),))
    assert [sample["x"].item() for sample in read(tmp_path / "d")] == [0, 0, 0, 0]


def test_hooks_of_the_user_come_first_and_the_module_stays_as_it_was(tmp_path):
    model = Net().train()
    model.layer.eval()
    handle = model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    before = dict(model.__dict__)
    record(model, tmp_path / "d", (torch.zeros(1, 4),))
    assert read(tmp_path / "d")[0]["x"].tolist() == [1, 1, 1, 1]
    assert model.training and not model.layer.training and list(model.__dict__) == list(before)
    handle.remove()
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path / "e"):
        model(torch.zeros(1, 4))
        1 / 0
    assert not hooks(model) and not (tmp_path / "e").exists()


def test_a_compiled_call_is_set_aside_and_comes_back(tmp_path):
    model = Net()
    model.__dict__["_compiled_call_impl"] = compiled = lambda *args: pytest.fail("the compiled call ran")
    record(model, tmp_path / "d", (torch.ones(1, 4),))
    assert model.__dict__["_compiled_call_impl"] is compiled and len(read(tmp_path / "d")) == 1


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, pytest.param(compiled, marks=pytest.mark.slow)])
def test_names_are_those_of_the_module_inside_a_wrapper(tmp_path, wrap):
    recording = record(wrap(Net()), tmp_path / "d", (torch.ones(1, 4),))
    assert list(recording.manifest["inputs"]) == ["x"]


def test_inputs_of_a_sample_stay_together(tmp_path):
    record(Named(), tmp_path / "d", {"a": torch.arange(6).reshape(3, 2), "b": torch.arange(3) * 10})
    pairs = [(sample["a"].tolist(), int(sample["b"])) for sample in read(tmp_path / "d")]
    assert pairs == [([0, 1], 0), ([2, 3], 10), ([4, 5], 20)]


def test_an_axis_of_one_is_broadcast_and_other_sizes_are_copied_whole(tmp_path):
    call = {
        "mask": torch.arange(9).reshape(1, 1, 3, 3),
        "a": torch.arange(8).reshape(4, 2),
        "positions": torch.arange(3),
        "scale": torch.tensor(2.0),
    }
    record(Named(), tmp_path / "d", call)
    samples = read(tmp_path / "d")
    assert len(samples) == 4 and {sample["mask"].shape for sample in samples} == {(1, 3, 3)}
    assert all(sample["positions"].tolist() == [0, 1, 2] and sample["scale"] == 2 for sample in samples)


def test_a_batch_of_one_next_to_other_sizes(tmp_path):
    call = {"a": torch.ones(1, 5), "b": torch.ones(1, 5), "patches": torch.ones(60, 3), "c": torch.arange(5)}
    record(Named(), tmp_path / "d", call)
    (sample,) = read(tmp_path / "d")
    assert [sample[name].shape for name in ("a", "b", "c", "patches")] == [(5,), (5,), (5,), (60, 3)]


def test_a_batch_as_long_as_the_sequence_changes_no_role(tmp_path):
    def call(batch):
        return {"a": torch.ones(batch, 5), "positions": torch.arange(5)}

    record(Named(), tmp_path / "d", call(4), call(5))
    assert {sample["positions"].shape for sample in read(tmp_path / "d")} == {(5,)} and len(read(tmp_path / "d")) == 9
    with pytest.raises(DataError, match="batch size") as caught:
        record(Named(), tmp_path / "e", call(5), call(4))
    assert "a: 4, positions: 5" in str(caught.value)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_of_every_kind_become_arrays(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4)
    call = {
        "gradient": base.clone().requires_grad_() * 2,
        "bfloat16": base.bfloat16(),
        "float8": base.to(torch.float8_e4m3fn),
        "view": base.permute(0, 2, 1)[:, ::2],
        "conj": torch.tensor([[1 + 2j], [3j]]).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "quantized": torch.quantize_per_tensor(base, 0.5, 0, torch.qint8),
        "half": base.half(),
        "flags": base > 3,
    }
    record(Free(), tmp_path / "d", call)
    sample = read(tmp_path / "d")[0]
    for name in ("bfloat16", "float8", "quantized"):
        assert sample[name].dtype == np.float32 and np.array_equal(sample[name], base[0].numpy()), name
    assert sample["conj"].tolist() == [1 - 2j] and sample["sparse"].tolist() == [1, 0]
    assert sample["half"].dtype == np.float16 and sample["flags"].dtype == bool
    assert np.array_equal(sample["view"], base.permute(0, 2, 1)[0, ::2].numpy())


@pytest.mark.parametrize("kind", ["meta", "nested"])
def test_tensors_without_an_array_are_refused(tmp_path, kind):
    if kind == "meta":
        tensor = torch.ones(1, 4, device="meta")
    else:
        tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(DataError, match=kind):
        record(Free(), tmp_path / "d", {"x": tensor})


def test_nested_values_have_dotted_names_and_the_rest_is_named_as_left_out(tmp_path):
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    call = {"past": [{"key": torch.ones(2, 3)}], "mode": "a\udcff", "none": None, "fast": True, "packed": packed}
    recording = record(Free(), tmp_path / "d", (torch.ones(2, 1),), call)
    assert [sorted(sample) for sample in read(tmp_path / "d")] == [["input_0"]] * 2 + [["past.0.key"]] * 2
    assert list(recording.manifest["left_out"]) == ["mode", "fast", "packed"]
    with pytest.raises(DataError, match="without tensors"):
        record(Free(), tmp_path / "e", {"mode": "x", "number": 3})


def test_names_can_be_given(tmp_path, tiny_onnx):
    record(Net(), tmp_path / "list", (torch.ones(1, 4), torch.ones(1, 2)), names=["pixels", "mask"])
    assert sorted(read(tmp_path / "list")[0]) == ["mask", "pixels"]
    recording = record(Named(), tmp_path / "onnx", {"x": torch.ones(1, 4), "labels": torch.ones(1)}, names=tiny_onnx)
    assert list(read(tmp_path / "onnx")[0]) == ["x"] and list(recording.manifest["left_out"]) == ["labels"]
    with pytest.raises(UsageError, match=r"1 name \(pixels\) for 2 inputs \(x, mask\)"):
        record(Net(), tmp_path / "wrong", (torch.ones(1, 4), torch.ones(1, 2)), names="pixels")
    record(Free(), tmp_path / "file", {"file": torch.ones(1, 2)})
    assert list(read(tmp_path / "file")[0]) == ["file"]


def test_samples_limits_samples_and_says_when_it_is_full(tmp_path):
    model, calls = Net(), 0
    with capture(model, tmp_path / "d", samples=5) as recording:
        for _ in range(10):
            calls += 1
            model(torch.randn(2, 4))
            if recording.full:
                break
        model(torch.randn(2, 4))
    assert calls == 3 and recording.count == 5 and len(read(tmp_path / "d")) == 5
    with pytest.raises(UsageError, match="samples"):
        record(model, tmp_path / "e", samples=0)


def test_nothing_recorded_is_an_error_that_leaves_nothing(tmp_path):
    model = Net()
    with pytest.raises(DataError, match=r"not model\.forward"), capture(model, tmp_path / "d"):
        model.forward(torch.ones(1, 4))
    assert not list(tmp_path.iterdir())


def test_only_an_earlier_recording_is_replaced_and_only_if_asked(tmp_path):
    folder = tmp_path / "d"
    record(Net(), folder, (torch.ones(3, 4),))
    with pytest.raises(UsageError, match="overwrite"):
        record(Net(), folder, (torch.ones(1, 4),))
    record(Net(), folder, (torch.zeros(2, 4),), overwrite=True)
    assert [sample["x"][0] for sample in read(folder)] == [0, 0]
    with pytest.raises(ZeroDivisionError), capture(model := Net(), folder, overwrite=True):
        model(torch.ones(1, 4))
        1 / 0
    assert len(read(folder)) == 2  # it came back
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        record(Net(), folder, (torch.ones(1, 4),), overwrite=True)
    assert len(read(folder)) == 2 and (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("manifest", [None, b"{", b"[]", b'{"files": ["a.npz"]}', b'{"written_by": "x", "files": []}'])
def test_a_folder_of_others_is_never_replaced(tmp_path, manifest):
    folder = tmp_path / "d"
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.zeros(4))
    if manifest is not None:
        (folder / "manifest.json").write_bytes(manifest)
    with pytest.raises(UsageError, match="which is not of an earlier recording"):
        record(Net(), folder, (torch.ones(1, 4),), overwrite=True)
    assert read(folder)[0]["x"].shape == (4,)


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path):
    folder, outside = tmp_path / "d", tmp_path / "outside.npz"
    record(Net(), folder, (torch.ones(1, 4),))
    outside.write_bytes(b"mine")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": [*manifest["files"], "../outside.npz"]}))
    record(Net(), folder, (torch.ones(1, 4),), overwrite=True)
    assert outside.read_bytes() == b"mine"


def test_a_run_that_was_killed_is_replaced(tmp_path):
    partial = tmp_path / "d.partial"
    partial.mkdir()
    for index in range(5):
        np.savez(partial / f"input{index:04}.npz", x=np.zeros(4))
    record(Net(), tmp_path / "d", (torch.ones(2, 4),))
    assert len(read(tmp_path / "d")) == 2 and not partial.exists()


def test_the_same_calls_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        record(Net(), tmp_path / name, (torch.arange(8.0).reshape(2, 4),))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_what_is_no_module_is_refused(tmp_path):
    for model in ("model.onnx", torch.jit.script(nn.Linear(2, 2))):
        with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
            record(model, tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_importing_capture_does_not_import_torch():
    code = "import sys, fewbit.api.capture, fewbit.data.capture.wrapper; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_options_are_those_of_the_table():
    parameters = inspect.signature(capture).parameters
    assert list(parameters) == ["model", "output", "names", "samples", "overwrite"]
    assert all(parameters[name].default == option(name).default for name in ("names", "overwrite"))


def test_a_recording_is_not_replaced_while_it_is_read(tmp_path):
    folder = tmp_path / "data"
    record(Net(), folder, (torch.zeros(2, 4),))
    with pytest.raises(UsageError) as caught:
        check_sample_folder(folder, overwrite=True, inputs=[folder])
    assert caught.value.code == "output-in-input"
