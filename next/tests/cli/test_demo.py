# SPDX-License-Identifier: Apache-2.0
"""`fewbit demo`, and every example of `--help` on what it writes."""

import json
import os
import shlex
import shutil
import sys

import numpy as np
import pytest

from fewbit.cli import main
from fewbit.cli.help_text import built_commands
from fewbit.options import COMMANDS
from fewbit.record.schema import Record

pytest.importorskip("sklearn")

EXAMPLES = [example for command in COMMANDS if command.name in built_commands() for example in command.examples]


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """A folder in which `fewbit demo` was run once."""
    folder = tmp_path_factory.mktemp("demo")
    previous = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["demo", "-q"]) == 0
    finally:
        os.chdir(previous)
    return folder


@pytest.fixture
def here(demo, tmp_path, monkeypatch):
    """A folder of its own with the demo in it."""
    shutil.copytree(demo / "fewbit-demo", tmp_path / "fewbit-demo")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_run(here, example, capsys):
    if "model.py" in example:
        pytest.importorskip("torch")
    if "model.onnx" in example:
        pytest.importorskip("onnxruntime")
    assert main(shlex.split(example)[1:]) == 0, capsys.readouterr()


def test_quantizing_the_model_is_ok(here, capsys):
    pytest.importorskip("onnxruntime")
    assert main(shlex.split("quantize fewbit-demo/model.onnx --data fewbit-demo/npz --preset w8a16")) == 0
    record = Record.read("model-w8a16.onnx")
    assert record.verdict == "ok" and record.quality["samples"] >= 30 and capsys.readouterr().out.startswith("OK")


def test_the_model_recognizes_held_out_digits(here):
    from fewbit.demo.datasets import TRAINING, load_digits

    images, labels = load_digits()
    pixels = images[TRAINING:, ..., None]
    session = pytest.importorskip("onnxruntime").InferenceSession("fewbit-demo/model.onnx")
    logits = session.run(None, {"pixels": pixels})[0]
    assert np.mean(logits.argmax(1) == labels[TRAINING:]) >= 0.9
    torch = pytest.importorskip("torch")
    from fewbit.backends.torch.factory import build

    with torch.no_grad():
        result = build("fewbit-demo/model.py:build")(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(result, logits, atol=1e-4)


def test_the_damaged_folder_has_the_issues_it_was_given(here, capsys):
    assert main(["check", "fewbit-demo/damaged"]) == 1
    out = capsys.readouterr().out
    for text in (
        "splits    train 48, val 12", "classes   11: ", "[class-unseen-in-train]\n  val/sevn", "'seven'",
        "[image-empty]\n  train/eight/018.png", "[image-truncated]\n  train/eight/008.png",
        "[class-missing-in-split] (4)", "NOT READY  3 errors, ",
    ):  # fmt: skip
        assert text in out, out


def test_images_fit_the_model_too(here, capsys):
    pytest.importorskip("onnxruntime")
    assert main(["check", "fewbit-demo/image_folder", "--model", "fewbit-demo/model.onnx"]) == 0, capsys.readouterr()


def test_only_a_demo_is_replaced(here, fewbit):
    (here / "mine").mkdir()
    (here / "mine" / "file.txt").write_text("mine")
    code, _, err = fewbit("demo", "-o", "mine")
    assert code == 2 and "not written by fewbit" in err and (here / "mine" / "file.txt").is_file()
    (here / "result").mkdir()
    (here / "result" / "record.json").write_bytes(Record("finetune").to_json())
    code, _, err = fewbit("demo", "-o", "result")
    assert code == 2 and "written by finetune" in err and (here / "result" / "record.json").is_file()
    shutil.rmtree(here / "fewbit-demo" / "npz")
    code, out, err = fewbit("demo", "--json")
    rows = json.loads(out)["record"]["rows"]
    assert code == 0 and len(list((here / "fewbit-demo" / "npz").iterdir())) > 100, err
    results = {row["command"].split("/")[-1]: row["result"] for row in rows if row["command"]}
    assert results.pop("damaged").startswith("NOT READY")
    assert len(results) == 13 and all(result.startswith("OK  ") for result in results.values()), results
    assert sorted(path.name for path in here.iterdir()) == ["fewbit-demo", "mine", "result"]


def test_a_second_demo_leaves_files_of_the_user_alone(here, fewbit):
    folder = here / "fewbit-demo"
    mine = [folder / name for name in ("mine.csv", "yolo/my/a.txt", "captured/input0.npz")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (folder / "model.py").write_text("changed")
    names = json.loads((folder / ".fewbit-demo.json").read_text())
    (folder / "npz" / "stale.npz").write_text("of an older demo")
    (here / "outside.txt").write_text("mine")
    (folder / ".fewbit-demo.json").write_text(json.dumps([*names, "npz/stale.npz", "../outside.txt"]))
    code, _, err = fewbit("demo", "-q")
    assert code == 0, err
    assert [path.read_text() for path in mine] == ["mine"] * 3 and (here / "outside.txt").is_file()
    assert "Classifier" in (folder / "model.py").read_text() and not (folder / "npz" / "stale.npz").exists()
    assert sorted(path.name for path in here.iterdir()) == ["fewbit-demo", "outside.txt"]
    (folder / "model.py").unlink()
    (folder / "model.py").mkdir()
    code, _, err = fewbit("demo", "-q")
    assert code == 2 and "is in the way" in err and all(path.is_file() for path in mine)


def test_libraries_that_are_missing_are_named_with_their_extra(fewbit, monkeypatch):
    for library in ("onnx", "torch", "pyarrow"):
        monkeypatch.setitem(sys.modules, library, None)
    code, out, err = fewbit("demo")
    lines = {line[:15].strip(): line for line in out.splitlines()}
    assert code == 0, err
    for title, extra in (("ONNX model", "onnx"), ("PyTorch model", "torch"), ("Parquet", "parquet")):
        assert "left out" in lines[title] and f"fewbit[{extra}]" in lines[title]
    assert "OK" in lines["YOLO boxes"] and "NOT READY" in lines["damaged images"]
    assert max(map(len, out.splitlines())) <= 100
    for module in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    code, _, err = fewbit("demo", "-o", "other")
    assert code == 2 and "fewbit[demo]" in err
