# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captured import Free, Net, hooks, nn, notes, run, samples, torch
from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.capture import capture, capture_dataset
from fewbit.data.capturing.batch_axis import BatchAxes, Column
from fewbit.errors import DataError, UsageError


def compiled(model):
    return torch.compile(model, backend="eager")


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
        rows = [Column(axes[name], array).row(row) for row in range(count)]
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


def test_a_long_list_of_numbers_costs_no_quadratic_time(tmp_path):
    cap = run(Free(), tmp_path / "d", {"x": torch.ones(1, 2), "numbers": list(range(3000))})
    assert len(cap.manifest["inputs"]) == 3001


def test_text_that_is_no_unicode_does_not_cost_the_manifest(tmp_path):
    cap = run(Free(), tmp_path / "d", {"x": torch.ones(1, 2), "mode": "a\udcff"})
    assert cap.manifest["not_captured"]["mode"]["value"] == "a\\udcff"


def test_random_state_is_untouched(tmp_path):
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    run(Free(), tmp_path / "d", *[(torch.ones(1, 1),)] * 20, max_samples=3, seed=5)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]


@pytest.mark.parametrize("around", [nn.DataParallel, pytest.param(compiled, marks=pytest.mark.slow)])
def test_names_are_found_inside_what_is_put_round_a_model(tmp_path, around):
    cap = run(around(Net()), tmp_path / "d", (torch.ones(1, 4),))
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
