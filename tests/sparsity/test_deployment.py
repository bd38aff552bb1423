# SPDX-License-Identifier: Apache-2.0
"""A deployment is whole, checked, smaller, and its README's commands run."""

import json
import re
import runpy
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import fewbit
import sparsity_jobs as jobs
import tuning_runs
from fewbit.data.dataset import Dataset
from fewbit.errors import DataError, UsageError
from fewbit.modules.compact_header import contents
from fewbit.modules.freezing import unfreeze
from fewbit.modules.opening import open_model
from fewbit.sparsity import compact, deployment
from fewbit.sparsity.deploying import model_files, to_onnx
from fewbit.sparsity.deployment import deploy
from fewbit.sparsity.recipe import Recipe

RECIPE = Recipe.from_yaml("version: 1\nstages: []")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("fewbit.sparsity.latency._LEAST", 3)
    monkeypatch.setattr("fewbit.sparsity.latency._MOST", 3)


def _deployed(folder, model, job):
    return deploy(folder, model, dense=job.dense, recipe=RECIPE, use_case=job.use_case, job=job)


@pytest.fixture
def run_readme(tmp_path_factory, monkeypatch, capsys):
    """Does everything that a README says, in its folder; what was printed."""

    def run(folder):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        for language, code in re.findall(r"```(\w+)\n(.*?)```", Path("README.md").read_text(), re.DOTALL):
            if language == "bash":
                assert code.split()[:3] == ["python", "-m", "fewbit.sparsity.compact"]
                assert compact.main(code.split()[3:]) == 0  # in a process of its own: test_compact.py
            else:
                script = tmp_path_factory.mktemp("readme") / "script.py"
                script.write_text(code)
                runpy.run_path(str(script))
        return capsys.readouterr().out

    return run


def test_a_graph_is_deployed_with_everything(tmp_path, run_readme):
    dense = jobs.graph()
    sparse = onnx.ModelProto()
    sparse.CopyFrom(dense)
    weight = np.frombuffer(sparse.graph.initializer[0].raw_data, np.float32).copy()
    weight[np.abs(weight).argsort()[:1200]] = 0
    sparse.graph.initializer[0].raw_data = weight.tobytes()
    job = jobs.job(dense)
    job.preprocessing = {"kind": "pictures", "mean": [0.5]}
    before = sparse.SerializeToString()
    folder = _deployed(tmp_path, sparse, job)
    assert folder == tmp_path / "deployment" and sparse.SerializeToString() == before
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "labels.txt", "model.compact.safetensors", "model.onnx", "preprocessing.json", "recipe.yaml",
        "sample-inputs", "sample-outputs",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["deployment"]  # nothing is left beside it
    assert (folder / "labels.txt").read_text().split() == ["red", "green", "blue"]
    assert Recipe.load(folder / "recipe.yaml") == RECIPE
    said = json.loads((folder / "preprocessing.json").read_bytes())
    assert said["mean"] == [0.5] and said["inputs"]["pixel_values"] == {"shape": [1, 3, 8, 8], "dtype": "float32"}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for number in range(3):
        sample = dict(np.load(folder / f"sample-inputs/{number:03}.npz"))
        wanted = np.load(folder / f"sample-outputs/{number:03}.npz")
        np.testing.assert_allclose(session.run(None, sample)[0], wanted["logits"], rtol=1e-5)
    facts = job.record.facts
    assert facts["deployment"]["checks"]["model.onnx"]["largest"] < 1e-5
    sizes = facts["deployment"]["files"]
    assert sizes == {name: (folder / name).stat().st_size for name in sizes} and len(sizes) == 12
    assert facts["latency"]["runtime"] == "ONNX Runtime" and facts["latency"]["ratio"]["median"] > 0
    assert facts["before"]["metric"]["name"] == facts["after"]["metric"]["name"] == "accuracy"
    assert facts["after"]["sparsity"]["layers"]["conv"]["zeros"] == 1200
    text = (folder / "README.md").read_text()
    assert "62.5% of the weights are zero" in text and f"{sizes['model.onnx']:,}" in text
    printed = run_readme(folder)
    assert "differs by" in printed and "restored/model.onnx" in printed
    assert (folder / "restored/model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()


def test_a_module_is_deployed_as_tensors_and_as_onnx(tmp_path):
    dense = jobs.network()
    sparse = jobs.pruned(dense, 0.7)
    job = jobs.job(dense)
    folder = _deployed(tmp_path, sparse, job)
    x = torch.tensor(np.stack([row["pixel_values"] for row in jobs.pictures(5, seed=7)]))
    again = fewbit.load(folder, jobs.Network())
    assert torch.equal(again(x), sparse(x))
    found = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"pixel_values": x.numpy()})[0]
    np.testing.assert_allclose(found, sparse(x).detach().numpy(), atol=1e-5)
    checks = job.record.facts["deployment"]["checks"]
    assert checks["PyTorch"] == {"samples": 3, "largest": 0.0, "relative": 0.0}
    assert checks["model.onnx"]["relative"] < 1e-5
    kept = contents(folder / "fewbit.compact.safetensors")["conv.weight"]
    assert kept.stored_bytes < (0.3 + 1 / 32) * kept.dense_bytes + 20
    assert any(line["what"] == "onnx-written" and "any size" in line["reason"] for line in job.record.lines)
    assert "model=your_model" in (folder / "README.md").read_text()
    manifest = json.loads((folder / "fewbit.json").read_bytes())
    assert {"README.md", "model.onnx", "sample-inputs/000.npz"} <= manifest["files"].keys()


def test_codes_are_deployed_as_tensors_and_as_onnx(tmp_path, run_readme):
    dense = jobs.network()
    job = jobs.job(dense)
    small = fewbit.quantize(jobs.pruned(dense, 0.8), job.calibration, preset="w8a8")
    folder = _deployed(tmp_path, small, job)
    x = torch.tensor(np.stack([row["pixel_values"] for row in jobs.pictures(5, seed=7)]))
    torch.testing.assert_close(fewbit.load(folder, jobs.Network(), freeze=True)(x), small(x))
    found = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"pixel_values": x.numpy()})[0]
    wanted = small(x).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())
    facts = job.record.facts["deployment"]
    assert facts["onnx"]["integer"] == {"QGemm": 1, "QLinearConv": 1} and facts["onnx"]["untrained"] == ["conv"]
    assert facts["checks"]["model.onnx"]["relative"] < 0.05
    sizes = facts["files"]
    assert sizes["model.compact.safetensors"] < sizes["model.onnx"]
    lines = {line["what"]: line["reason"] for line in job.record.lines}
    assert "any size" in lines["onnx-written"] and "what conv gives" in lines["onnx-rounds-more"]
    assert facts["onnx"]["latency"]["runtime"] == "ONNX Runtime" and facts["onnx"]["latency"]["turns"] == 3
    text = (folder / "README.md").read_text()
    assert "- model.onnx: In ONNX Runtime here it is" in text
    assert "holds the codes of 2 layers, and ONNX Runtime multiplies them as integers (QGemm 1, QLinearConv 1)" in text
    (folder / "README.md").write_text(text.replace("model=your_model", "model=__import__('sparsity_jobs').Network()"))
    assert "restored/model.onnx" in run_readme(folder)
    assert (folder / "restored/model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()


def _language_job():
    model = tuning_runs.language_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight[:, ::2] = 0
    job = jobs.job(model, labelled=False)
    job.calibration = Dataset(
        [{"input_ids": np.array(row["input_ids"])} for row in tuning_runs.texts(6)], batched=False
    )
    return model, job


def test_a_hugging_face_model_is_loaded_without_code(tmp_path, run_readme):
    model, job = _language_job()
    folder = _deployed(tmp_path, model, job)
    assert (folder / "config.json").is_file() and (folder / "fewbit.compact.safetensors").is_file()
    printed = run_readme(folder)
    assert "logits differs by 0.0" in printed
    assert "save_pretrained" in (folder / "README.md").read_text()
    fewbit.load(folder).save_pretrained(tmp_path / "dense")
    again = type(model).from_pretrained(tmp_path / "dense")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_codes_of_a_hugging_face_model_run_as_the_readme_says(tmp_path, run_readme):
    model, job = _language_job()
    small = fewbit.compress_weights(model, mode="int8_sym")
    folder = _deployed(tmp_path, small, job)
    text = (folder / "README.md").read_text()
    assert "freeze=True" in text and "save_pretrained" not in text
    assert float(re.search(r"logits differs by (\S+)", run_readme(folder))[1]) < 1e-5


def test_of_long_texts_the_first_tokens_are_kept_and_the_whole_is_timed(tmp_path, monkeypatch):
    model, job = _language_job()
    job.dense = deepcopy(model)
    model.lm_head.weight.data[0] = 0
    model.config.max_position_embeddings = 64
    job.calibration = Dataset([{"input_ids": np.arange(4, 44) % 40}] * 2, batched=False)
    timed = []
    monkeypatch.setattr(deployment, "latency", lambda dense, model, item: timed.append(item))
    folder = _deployed(tmp_path, model, job)
    assert np.load(folder / "sample-inputs/001.npz")["input_ids"].shape == (1, 32)
    assert np.load(folder / "sample-outputs/001.npz")["logits"].shape == (1, 32, 40)
    assert timed[0][1]["input_ids"].shape == (1, 40)


def test_a_hugging_face_folder_is_written_where_it_is_asked_for(tmp_path, run_readme):
    model, job = _language_job()
    job.options["compact"] = False
    folder = _deployed(tmp_path, model, job)
    assert (folder / "model.safetensors").is_file() and not (folder / "fewbit.json").exists()
    assert job.record.facts["deployment"]["kind"] == "huggingface"
    run_readme(folder)


def test_without_data_there_are_no_samples_and_it_is_said(tmp_path):
    dense = jobs.network()
    job = jobs.job(dense, labelled=False)
    job.data = job.calibration = None
    folder = _deployed(tmp_path, jobs.pruned(dense), job)
    assert not (folder / "sample-inputs").exists() and job.record.facts["latency"] is None
    assert {"no-samples", "onnx-not-written"} <= {line["what"] for line in job.record.lines}
    assert "no samples to check it by" in (folder / "README.md").read_text()


_BUILT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return {answers}

def build():
    torch.manual_seed(0)
    return Net(){dtype}
"""


@pytest.mark.parametrize("answers", ["y", "(y, y + 1)", "{'output': y}", "{'scores': y}"])
@pytest.mark.parametrize("dtype", ["", ".half()", ".bfloat16()"])
@pytest.mark.parametrize("codes", [False, True], ids=["floats", "codes"])
def test_a_readme_with_a_factory_runs_from_its_folder(tmp_path, run_readme, monkeypatch, answers, dtype, codes):
    """The user said where the code is from where they stood, which is not the folder of the README."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/made.py").write_text(_BUILT.replace("{answers}", answers).replace("{dtype}", dtype))
    monkeypatch.chdir(tmp_path)
    factory = "code/made.py:build"
    dense = open_model(factory)
    model = fewbit.compress_weights(dense, mode="int8_sym") if codes else dense
    job = jobs.job(dense, labelled=False, factory=factory)
    job.calibration = Dataset([{"x": np.ones(8, np.float32) * n} for n in range(1, 4)], batched=False)
    folder = _deployed(tmp_path / "out", model, job)
    found = dict(re.findall(r"^(\w+) differs by (\S+)$", run_readme(folder), re.MULTILINE))
    wanted = np.load(folder / "sample-outputs/000.npz")
    assert set(wanted.files) <= found.keys() and max(map(float, found.values())) < 0.05
    assert f"{tmp_path / 'code/made.py'}:build" in (folder / "README.md").read_text()


@pytest.mark.parametrize("frozen", [False, True])
def test_what_the_readme_runs_is_what_was_checked(tmp_path, run_readme, frozen):
    """Frozen, as the README loads them, codes of four bits are multiplied in bfloat16: it says what comes of that."""
    (tmp_path / "made.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(64, 64))\n"
    )
    factory = f"{tmp_path / 'made.py'}:build"
    dense = open_model(factory)
    small = fewbit.compress_weights(dense, mode="int4_sym", group_size=32)
    if not frozen:
        unfreeze(small)
    job = jobs.job(dense, labelled=False, factory=factory)
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    job.calibration = Dataset([{"input": row} for row in rows], batched=False)
    folder = _deployed(tmp_path / "out", small, job)
    checks = job.record.facts["deployment"]["checks"]
    assert checks["PyTorch"]["largest"] == 0
    differs = float(re.search(r"output differs by (\S+)", run_readme(folder))[1])
    assert differs <= checks["PyTorch, freeze=True"]["largest"] * 1.01
    assert (differs > 0) != frozen  # the test would show nothing otherwise
    assert "- PyTorch, freeze=True: the answers to 3 samples" in (folder / "README.md").read_text()


@pytest.mark.parametrize("codes", [False, True])
def test_a_model_that_shrank_is_deployed_as_a_program(tmp_path, run_readme, codes):
    dense = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    small = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 4)).eval()
    small = fewbit.compress_weights(small, mode="int8_sym") if codes else small
    job = jobs.job(dense, labelled=False)
    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    job.calibration = Dataset([{"input": row} for row in rows], batched=False)
    folder = _deployed(tmp_path, small, job)
    x = torch.from_numpy(rows)
    torch.testing.assert_close(torch.export.load(folder / "model.pt2").module()(input=x), small(x))
    assert (folder / "model.onnx").is_file()
    assert any(line["what"] == "program-written" and "any size" in line["reason"] for line in job.record.lines)
    run_readme(folder)


def test_what_is_there_is_not_replaced(tmp_path):
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "mine.txt").write_text("mine")
    dense = jobs.network()
    with pytest.raises(UsageError, match="not empty"):
        _deployed(tmp_path, jobs.pruned(dense), jobs.job(dense))
    assert [path.name for path in tmp_path.rglob("*")] == ["deployment", "mine.txt"]


def test_an_interrupted_deployment_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "readme", lambda *args: 1 / 0)
    dense = jobs.network()
    with pytest.raises(ZeroDivisionError):
        _deployed(tmp_path / "new", jobs.pruned(dense), jobs.job(dense))
    assert not (tmp_path / "new").exists()


def test_other_answers_are_refused(tmp_path, monkeypatch):
    dense = jobs.network()
    monkeypatch.setattr(model_files, "load", lambda folder, like: jobs.network(5))
    with pytest.raises(DataError, match="answers otherwise"):
        _deployed(tmp_path, jobs.pruned(dense), jobs.job(dense))
    assert not list(tmp_path.iterdir())


def test_onnx_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch):
    dense = jobs.network()
    job = jobs.job(dense)
    monkeypatch.setattr(to_onnx, "copied", lambda model: jobs.network(5))
    folder = _deployed(tmp_path, jobs.pruned(dense), job)
    assert not (folder / "model.onnx").exists()
    assert any(line["what"] == "onnx-not-written" and "differ" in line["reason"] for line in job.record.lines)
