# SPDX-License-Identifier: Apache-2.0
import orjson
import pytest
import yaml

from drawn_shapes import write_folder
from fewbit import cli
from fewbit.record import Record
from sparse_examples import arrays, digest, graph, rated

pytest.importorskip("accelerate")


@pytest.fixture
def files(tmp_path):
    graph(tmp_path / "model.onnx")
    arrays(tmp_path / "data", 12)
    return tmp_path


def line(files, *more, mode="one-shot"):
    return ["sparsify", mode, "--model", str(files / "model.onnx"), "--data", str(files / "data"), *more]


def test_show_recipe_prints_what_a_level_means_and_does_nothing_else(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["sparsify", "one-shot", "--optim-level", "0.8", "--show-recipe"]) == 0
    recipe = yaml.safe_load(capsys.readouterr().out)
    assert recipe["mode"] == "one-shot" and recipe["stages"][0]["prune"]["sparsity"] == 0.6857
    assert recipe["stages"][1] == {"quantize": {"preset": "w8a8"}}
    assert cli.run(["sparsify", "training-aware", "--optim-level", "100", "--show-recipe", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["stages"][0]["train"]["final"] == 0.95
    assert list(tmp_path.iterdir()) == []


def test_a_graph_and_samples_in_a_folder_to_deploy_out(files, capsys):
    before = digest(files / "data")
    assert cli.run(line(files, "-o", str(files / "out"), "--use-case", "custom")) == 0
    told = capsys.readouterr()
    assert "prune → quantize" in told.out and "of the weights are zero" in told.out and "deployment" in told.out
    assert told.err == ""  # quiet where nobody looks
    assert (files / "out" / "deployment" / "model.onnx").is_file() and digest(files / "data") == before
    record = Record.from_json((files / "out" / "record.json").read_bytes())
    assert record.facts["mode"] == "one-shot" and record.facts["optim_level"] == 0.5
    recipe = str(files / "out" / "deployment" / "recipe.yaml")
    assert cli.run(line(files, "--recipe", recipe, "-o", str(files / "again"), "--json")) == 0
    again = orjson.loads(capsys.readouterr().out)
    assert again["facts"]["fingerprint"] == record.facts["fingerprint"] and again["output"] == str(files / "again")
    models = [files / name / "deployment" / "model.onnx" for name in ("out", "again")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_without_a_place_the_result_lies_here_under_the_name_of_model_and_mode(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert cli.run(line(files, "--optim-level", "0")) == 0
    assert "nothing is changed" in capsys.readouterr().out
    assert (files / "model-one-shot" / "deployment").is_dir()
    assert cli.run(line(files, "--optim-level", "0")) == 2
    told = capsys.readouterr().err
    assert "has the result of an earlier call" in told and "-o FOLDER" in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--optim-level", "much"], "--optim-level much"),
        (["--optim-level", "101"], "--optim-level 101"),
        (["--use-case", "image_clasification"], "'image_classification'"),
        (["--use-case", "ic", "--eval-metric", "mAP"], "is not judged by 'mAP'"),
        (["--option", "seqlne=4"], "'seqlen'"),
        (["--option", "epochs=2"], "trains nothing"),
        (["--recipe", "nowhere.yaml"], "nowhere.yaml"),
        (["--recipe", "nowhere.yaml", "--optim-level", "0.3"], "--recipe and --optim-level"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(files, capsys, more, said):
    assert cli.run(line(files, *more, "-o", str(files / "out"))) == 2
    assert said in capsys.readouterr().err and not (files / "out").exists()


def test_a_mode_that_there_is_not_is_told_with_the_nearest(files, capsys):
    assert cli.run(line(files, mode="one-short")) == 2
    assert "'one-shot'" in capsys.readouterr().err
    assert cli.run(["sparsify", "one-shot", "--data", "x"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_recipe_for_another_mode_is_refused(files, capsys):
    (files / "recipe.yaml").write_text("mode: training-aware\nstages: [{train: {final: 0.5}}]\n")
    assert cli.run(line(files, "--recipe", str(files / "recipe.yaml"))) == 2
    assert "fewbit sparsify training-aware" in capsys.readouterr().err
    assert cli.run(line(files, "--recipe", str(files / "recipe.yaml"), "--show-recipe")) == 2
    told = capsys.readouterr()
    assert "fewbit sparsify training-aware" in told.err and not told.out


def test_the_policy_that_is_advised_goes_on(files, capsys):
    (files / "data" / "input0003.npz").write_bytes(b"not a file of arrays")
    assert cli.run(line(files, "-o", str(files / "out"))) == 1
    told = capsys.readouterr().err
    assert "--policy drop" in told and "--option policy" not in told
    assert cli.run(line(files, "-o", str(files / "out"), "--policy", "drop", "--option", "policy=drop")) == 2
    assert cli.run(line(files, "-o", str(files / "out"), "--policy", "drop")) == 0


def test_faulty_data_is_told_with_exit_code_1(files, capsys):
    (files / "data" / "input0003.npz").write_bytes(b"not a file of arrays")
    assert cli.run(line(files, "-o", str(files / "out"))) == 1
    assert "input0003.npz" in capsys.readouterr().err and not (files / "out").exists()


def test_all_faults_of_a_line_are_told_at_once_in_its_own_words(files, capsys):
    more = ["--optim-level", "3.5", "--use-case", "icc", "--option", "seqlne=4", "--validation", "nowhere"]
    assert cli.run(line(files, *more, "-o", str(files / "out"))) == 2
    told = capsys.readouterr().err
    assert "4 faults" in told and "--optim-level 3.5" in told and "did you mean 'ic'" in told and "'seqlen'" in told
    assert "where:    --validation" in told and "where:    --use-case" in told and "causal_lm" not in told


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [
        ("training-aware", [], ["cannot be trained: an ONNX model", "one-shot, which takes ONNX"]),
        ("one-shot", ["--eval-metric", "accuracy"], ["--use-case image_classification"]),
        ("one-shot", ["--use-case", "text_generation", "--data", "shapes"], ["does not read the format image_folder"]),
        ("one-shot", ["--data", "rows.jsonl"], ["data is texts", "columns label, text", "--option tokenizer=FOLDER"]),
        ("one-shot", ["--model", "net.py"], ["net.py:function"]),
        ("training-aware", ["--model", "net.py:build"], ["custom is for one-shot alone", "--use-case"]),
        ("sparse-transfer", ["--model", "net.py:build", "--data", "shapes"], ["no zeros that could stay", "finetune"]),
    ],
)
def test_what_newcomers_do(files, capsys, monkeypatch, mode, more, said):
    monkeypatch.chdir(files)
    write_folder(files / "shapes", 6, 3, size=16)
    rated(files / "rows.jsonl", 9)
    (files / "net.py").write_text("from sparse_examples import classifier\n\n\ndef build():\n    return classifier()\n")
    assert cli.run(line(files, *more, "-o", "out", mode=mode)) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert not (files / "out").exists() and "use_case=" not in told


def test_a_model_that_cannot_be_trained_is_refused_before_its_data_is_read(files, monkeypatch):
    monkeypatch.setattr("fewbit.sparsity.material.check_data", lambda *_, **__: pytest.fail("the data is read"))
    assert cli.run(line(files, mode="training-aware")) == 2
