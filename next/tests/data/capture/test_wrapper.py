# SPDX-License-Identifier: Apache-2.0
"""`NumpyExportWrapper`, as the guide of seed 004 uses it."""

import copy
from pathlib import Path

import numpy as np
import pytest

from fewbit import check_dataset
from fewbit.data.capture.wrapper import NumpyExportWrapper
from fewbit.errors import DataError, UsageError

torch = pytest.importorskip("torch")

# The script of the guide, with the printed class replaced by an import.
SCRIPT = """
model = NumpyExportWrapper(YOUR_MODEL)
for data in YOUR_DATA_LOADER:
    model(data[0])
model.save()
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)

    def forward(self, x, mask=None):
        return self.drop(self.layer(x))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_script(count=10, model=None):
    inputs = torch.arange(4.0 * count).reshape(count, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, torch.zeros(count)), batch_size=3)
    names = {"NumpyExportWrapper": NumpyExportWrapper, "YOUR_MODEL": model or Net(), "YOUR_DATA_LOADER": loader}
    exec(compile(SCRIPT, "guide", "exec"), names)  # noqa: S102 - the guide's own script
    return inputs.numpy()


def samples(folder="data"):
    return [dict(np.load(path)) for path in sorted(Path(folder).glob("*.npz"))]


def test_claim_4_17_the_script_of_the_guide_runs(capsys):
    model = Net().train()
    model.layer.eval()
    inputs = run_script(model=model)
    assert capsys.readouterr().out == "Saved 10 npz files to data\n"
    assert sorted(path.name for path in Path("data").glob("*.npz")) == [f"input{n:04}.npz" for n in range(10)]
    assert np.array_equal(np.stack([sample["x"] for sample in samples()]), inputs)
    assert model.training and model.drop.training and not model.layer.training
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_claim_4_17_files_of_others_are_never_overwritten():
    Path("data").mkdir()
    np.savez("data/input0000.npz", x=np.zeros(4))
    with pytest.raises(UsageError, match=r"input0000\.npz"):
        run_script()
    assert samples()[0]["x"].tolist() == [0] * 4 and len(samples()) == 1


def test_claim_4_18_names_are_those_of_forward_and_others_are_refused_with_the_right_one(tmp_path):
    run_script()
    assert [list(sample) for sample in samples()] == [["x"]] * 10
    Path("printed").mkdir()
    for index in range(3):
        np.savez(f"printed/input{index:04}.npz", input_0=np.ones(4, np.float32))  # as the printed class names them
    report = check_dataset("printed", model=Net(), progress=False)
    assert not report.ok and any("'x'" in issue.message for issue in report.issues)


def test_the_script_can_be_run_again():
    run_script(3)
    run_script(2)
    assert len(samples()) == 2


def test_calls_run_in_evaluation_mode_without_gradients():
    model = Net().train()
    x = torch.ones(2, 4)
    result = NumpyExportWrapper(model)(x)
    assert torch.equal(result, model.layer(x)) and not result.requires_grad and model.training
    wrapper = NumpyExportWrapper(model)
    with pytest.raises(RuntimeError):
        wrapper(torch.ones(2, 5))
    assert wrapper.numpy_data == [] and model.training and not model._forward_pre_hooks


def test_numpy_data_and_attributes():
    wrapper = NumpyExportWrapper(model := Net())
    wrapper(torch.ones(2, 4))
    wrapper.forward(x=torch.zeros(1, 4), mask=torch.ones(1, 4))
    assert [sample["x"].tolist() for sample in wrapper.numpy_data] == [[1] * 4, [1] * 4, [0] * 4]
    assert wrapper.model is model and wrapper.layer is model.layer and wrapper.eval() is wrapper and not model.training
    assert copy.copy(wrapper).model is model
    with pytest.raises(AttributeError, match="nothing_like_it"):
        wrapper.nothing_like_it


def test_there_must_be_something_to_save():
    run_script(3)
    with pytest.raises(DataError, match="no sample"):
        NumpyExportWrapper(Net()).save()
    assert len(samples()) == 3
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        NumpyExportWrapper("model.onnx")
