# SPDX-License-Identifier: Apache-2.0
import gc
import json
from pathlib import Path

import numpy as np
import pytest

from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.export_wrapper import NumpyExportWrapper
from fewbit.errors import DataError, UsageError

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, mask=None):
        return self.drop(self.layer(x))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_guides_own_calling_sequence(here, capsys):
    inputs = torch.arange(20.0).reshape(5, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, torch.zeros(5)), batch_size=2)
    model = NumpyExportWrapper(Net())
    for data in loader:
        model(data[0])
    model.save()
    assert capsys.readouterr().out == "Saved 5 npz files to data\n"
    files = sorted(Path("data").glob("*.npz"))
    assert [file.name for file in files] == [f"input{number:04}.npz" for number in range(5)]
    assert np.array_equal(np.stack([np.load(file)["x"] for file in files]), inputs.numpy())
    manifest = json.loads(Path("data/manifest.json").read_bytes())
    assert manifest["complete"] and manifest["count"] == 5 and manifest["inputs"]["x"]["shape"] == [4]


def test_parameters_keep_their_names_and_attributes_are_the_models_own(here):
    model = Net()
    wrapper = NumpyExportWrapper(model)
    assert list(wrapper.state_dict()) == list(model.state_dict()) and wrapper.layer is model.layer
    assert not isinstance(wrapper, torch.nn.Module) and wrapper.model is model
    assert wrapper.eval() is wrapper and not model.training and wrapper.double() is wrapper
    wrapper.training = True
    assert model.training and "layer" in dir(wrapper) and "Net" in repr(wrapper)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        wrapper.nothing_like_it


def test_calls_run_in_evaluation_mode_without_gradients_and_restore(here):
    model = Net().train()
    model.layer.eval()
    x = torch.ones(2, 4)
    result = NumpyExportWrapper(model)(x)
    assert torch.equal(result, model.layer(x)) and not result.requires_grad
    assert model.training and model.drop.training and not model.layer.training
    wrapper = NumpyExportWrapper(model)
    with pytest.raises(RuntimeError):
        wrapper(torch.ones(2, 5))
    assert model.training and not model._forward_pre_hooks and len(wrapper.numpy_data) == 0


def test_numpy_data_is_a_sequence_of_dicts(here):
    wrapper = NumpyExportWrapper(Net())
    assert len(wrapper.numpy_data) == 0
    wrapper(torch.ones(2, 4))
    wrapper.forward(torch.zeros(1, 4))
    assert [sample["x"].tolist() for sample in wrapper.numpy_data] == [[1] * 4, [1] * 4, [0] * 4]
    assert len(wrapper.numpy_data[1:]) == 2 and wrapper.numpy_data[-1]["x"].sum() == 0


def test_dict_and_list_batches_are_spread_over_the_parameters(here):
    wrapper = NumpyExportWrapper(Net())
    wrapper({"x": torch.ones(1, 4), "mask": torch.zeros(1, 4)})
    assert sorted(wrapper.numpy_data[0]) == ["mask", "x"]

    class Two(torch.nn.Module):
        def forward(self, a, b):
            return a + b

    wrapper = NumpyExportWrapper(Two())
    wrapper([torch.ones(1, 4), torch.ones(1, 4)])
    assert sorted(wrapper.numpy_data[0]) == ["a", "b"]


def test_a_dict_the_model_takes_as_such_is_not_spread(here):
    class Whole(torch.nn.Module):
        def forward(self, batch):
            return batch["x"]

    wrapper = NumpyExportWrapper(Whole(), names=["x"])
    wrapper({"x": torch.ones(1, 4)})
    assert list(wrapper.numpy_data[0]) == ["x"]


def run_the_script(count, value=1.0):
    wrapper = NumpyExportWrapper(Net())
    wrapper(torch.full((count, 4), value))
    return wrapper.save()


def test_there_must_be_something_to_save(here):
    with pytest.raises(DataError, match="nothing to save"):
        NumpyExportWrapper(Net()).save()
    assert not Path("data").exists()


def test_the_script_can_be_run_again(here, capsys):
    """Its own samples are replaced, none of a longer run before stays, and notes beside them are left alone."""
    assert run_the_script(3) == Path("data")
    Path("data/notes.txt").write_text("mine")
    run_the_script(2, value=7.0)
    assert [read_npz(path)["x"][0] for path in sorted(Path("data").glob("*.npz"))] == [7, 7]
    assert Path("data/notes.txt").read_text() == "mine"
    assert json.loads(Path("data/manifest.json").read_bytes())["count"] == 2
    assert capsys.readouterr().out.splitlines() == ["Saved 3 npz files to data", "Saved 2 npz files to data"]


def test_one_wrapper_can_save_more_than_once(here):
    wrapper = NumpyExportWrapper(Net(), max_samples=3)
    for count in (2, 3):
        wrapper(torch.ones(2, 4))
        wrapper.save()
        assert len(list(Path("data").glob("*.npz"))) == count == len(wrapper.numpy_data)


def test_save_goes_on_after_a_run_that_was_cut_off(here, monkeypatch):
    monkeypatch.setattr("fewbit.data.capturing.manifest.digest", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_the_script(3)
    monkeypatch.undo()
    monkeypatch.chdir(here)
    run_the_script(1)
    assert [path.name for path in Path("data").glob("*.npz")] == ["input0000.npz"]


def test_save_never_replaces_what_is_not_its_own(here):
    Path("data").mkdir()
    np.savez("data/input0000.npz", x=np.zeros(4))
    for overwrite in (False, True):
        wrapper = NumpyExportWrapper(Net())
        wrapper(torch.ones(1, 4))
        with pytest.raises(UsageError, match=r"not empty: input0000\.npz"):
            wrapper.save(overwrite=overwrite)
        wrapper.save("own")
        np.savez("own/other.npz", x=np.zeros(4))
        with pytest.raises(UsageError, match=r"other\.npz"):
            wrapper.save("own", overwrite=overwrite)
        Path("own/other.npz").unlink()
    assert read_npz("data/input0000.npz")["x"].tolist() == [0] * 4


def test_save_asks_before_it_replaces_a_sample_that_was_changed_since(here):
    run_the_script(2)
    Path("data/input0001.npz").unlink()
    np.savez("data/input0001.npz", x=np.zeros(4))
    with pytest.raises(UsageError, match=r"input0001\.npz was changed"):
        run_the_script(1)
    wrapper = NumpyExportWrapper(Net())
    wrapper(torch.ones(1, 4))
    wrapper.save(overwrite=True)
    assert len(list(Path("data").glob("*.npz"))) == 1


def test_the_temporary_folder_goes_with_the_wrapper(here):
    wrapper = NumpyExportWrapper(Net())
    wrapper(torch.ones(1, 4))
    folder = wrapper._recorder.folder.folder
    assert folder.exists()
    del wrapper
    gc.collect()
    assert not folder.exists()


def test_inputs_are_moved_to_the_models_device(here):
    from fewbit.data.capturing.calling import on_device_of

    class Elsewhere:
        type = "cuda"

    class Tensor:
        shape, dtype, device = (1,), "float32", "cpu"

        def to(self, device):
            moved = Tensor()
            moved.device = device
            return moved

    class Model:
        def parameters(self):
            yield Tensor().to(place)

    place = Elsewhere()
    args, kwargs = on_device_of(Model(), (Tensor(), 3), {"past": [Tensor()]})
    assert args[0].device is place and args[1] == 3 and kwargs["past"][0].device is place


def test_what_is_no_model_is_refused():
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        NumpyExportWrapper("model.onnx")
