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


def test_save_refuses_a_filled_folder_and_can_be_told(here, capsys):
    wrapper = NumpyExportWrapper(Net(), max_samples=3)
    with pytest.raises(DataError, match="nothing to save"):
        wrapper.save()
    wrapper(torch.ones(2, 4))
    wrapper.save("a")
    wrapper(torch.ones(2, 4))
    with pytest.raises(UsageError, match="not empty"):
        wrapper.save("a")
    assert wrapper.save("a", overwrite=True) == Path("a") and len(list(Path("a").glob("*.npz"))) == 3
    assert all(read_npz(path)["x"].tolist() == [1] * 4 for path in Path("a").glob("*.npz"))


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
