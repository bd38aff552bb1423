# SPDX-License-Identifier: Apache-2.0
import onnx
import pytest
import torch

from fewbit.errors import DataError, UsageError
from fewbit.record import Record
from fewbit.sparsity import output_folder
from fewbit.sparsity.opening import open_network, own_copy
from fewbit.sparsity.picture_range import picture_range
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.verb import sparsify
from sparse_examples import classifier, graph


def test_a_model_from_whatever_there_is(tmp_path):
    model = classifier()
    assert open_network(model).model is model and open_network(model).home is None
    torch.save(model.state_dict(), tmp_path / "state.pt")
    (tmp_path / "net.py").write_text(
        "from sparse_examples import classifier\n\ndef build():\n    return classifier()\n"
    )
    build = f"{tmp_path / 'net.py'}:build"
    opened = open_network(tmp_path / "state.pt", build)
    assert opened.factory == build and torch.equal(opened.model[0].weight, model[0].weight)
    assert open_network(build).factory == build and not open_network(build).is_graph
    path = graph(tmp_path / "model.onnx")
    assert open_network(path).is_graph and open_network(str(path)).home == str(path)
    assert open_network(onnx.load(path)).is_graph


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no model"):
        open_network([1, 2])
    with pytest.raises(UsageError, match="no file or folder"):
        open_network(tmp_path / "nowhere.onnx")
    (tmp_path / "cut.onnx").write_bytes(graph(tmp_path / "model.onnx").read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        open_network(tmp_path / "cut.onnx")


def test_a_copy_is_nobody_elses(tmp_path):
    model = classifier()
    twin = own_copy(model)
    twin.train()
    twin.mark = 1
    assert not model.training and not hasattr(model, "mark")
    proto = onnx.load(graph(tmp_path / "model.onnx"))
    copy = own_copy(proto)
    copy.graph.name = "other"
    assert proto.graph.name == "g"


def test_the_range_of_pictures_is_said_or_in_the_models_files_or_its_graph(tmp_path):
    model = open_network(graph(tmp_path / "model.onnx", side=24))
    assert picture_range(model.model, model.home, {}) == {"image_size": [24, 24]}
    (tmp_path / "preprocessor_config.json").write_text(
        '{"size": {"height": 32, "width": 40}, "do_normalize": true, "image_mean": [0.5], "image_std": [0.25]}'
    )
    found = picture_range(model.model, model.home, {"image_mean": [0.1]})
    assert found == {"image_size": [32, 40], "image_mean": [0.1], "image_std": [0.25]}
    assert picture_range(classifier(), None, {}) == {}


def test_an_output_is_new_or_has_the_checkpoints_of_a_run_that_was_stopped(tmp_path):
    assert output_folder.check(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "stopped" / "checkpoints" / "train" / "all").mkdir(parents=True)
    assert output_folder.check(tmp_path / "stopped") == tmp_path / "stopped"
    (tmp_path / "stopped" / "checkpoints" / "train" / "all" / "run.json").write_text("")
    assert output_folder.check(tmp_path / "stopped") == tmp_path / "stopped"
    (tmp_path / "stopped" / "record.json").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        output_folder.check(tmp_path / "stopped")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        output_folder.check(tmp_path / "file")


def test_a_call_that_was_stopped_while_it_wrote_its_result_goes_on(tmp_path, monkeypatch):
    data, recipe = [torch.zeros(1, 3, 8, 8)], Recipe.from_dict({"stages": [{"prune": {"sparsity": 0.5}}]})
    folder = tmp_path / "out"

    def killed(self, path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Record, "save", killed)
        sparsify(classifier(), data, recipe=recipe, output=folder)
    assert {path.name for path in folder.iterdir()} == {"deployment", "recipe.yaml"}
    (folder / ".deployment.0a1b2c3d").mkdir()  # of another that was killed before that
    (folder / ".recipe.yaml.0a1b2c3d4e5f").write_text("")
    sparsify(classifier(), data, recipe=recipe, output=folder)
    assert {path.name for path in folder.iterdir()} == {"deployment", "recipe.yaml", "record.json"}


def test_a_folder_of_the_users_is_not_taken_for_what_a_call_has_left(tmp_path):
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        output_folder.check(tmp_path)
    (tmp_path / "deployment" / "mine.txt").unlink()
    assert output_folder.check(tmp_path) == tmp_path
    (tmp_path / "recipe.yaml").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        output_folder.check(tmp_path)


@pytest.mark.parametrize("mine", ["epoch-3.pt", "train/epoch-3.pt", "prune/all/epoch-3.pt"])
def test_checkpoints_of_the_users_are_not_taken_for_ours(tmp_path, mine):
    path = tmp_path / "out" / "checkpoints" / mine
    path.parent.mkdir(parents=True)
    path.write_text("weeks of work")
    with pytest.raises(UsageError, match="not empty"):
        output_folder.check(tmp_path / "out")
    for was in (output_folder.before(tmp_path / "out"), frozenset()):
        assert output_folder.leave(tmp_path / "out", was) is None
        assert path.read_text() == "weeks of work"


def test_a_call_that_is_stopped_takes_away_what_it_made_and_nothing_else(tmp_path):
    ours = ("out/checkpoints/train/all/run.json", ".out.work/prune/" + "0a" * 16 + "/a.part", "out/.recipe.yaml.0a1b")
    was = output_folder.before(tmp_path / "out")
    for number in range(2):
        for path in (tmp_path / each for each in ours):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        there = sorted(tmp_path.rglob("*"))
        if number == 0:
            assert output_folder.leave(tmp_path / "out", was) is None
            assert list(tmp_path.iterdir()) == []
    assert output_folder.leave(tmp_path / "out", output_folder.before(tmp_path / "out")) is None
    assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.parametrize("stage", ["train/all/checkpoints/step-00000001/state.json", f"prune/{'0a' * 16}/a.json"])
def test_what_a_stage_has_finished_stays(tmp_path, stage):
    path = tmp_path / "out" / "checkpoints" / stage
    path.parent.mkdir(parents=True)
    path.write_text("")
    (tmp_path / "out" / "checkpoints" / "train" / "all").mkdir(parents=True, exist_ok=True)
    if stage.startswith("train"):
        (tmp_path / "out" / "checkpoints" / "train" / "all" / "run.json").write_text("")
    assert output_folder.leave(tmp_path / "out", frozenset()) == tmp_path / "out" / "checkpoints"
    assert path.is_file()


def test_training_keeps_its_work_in_the_output_and_pruning_beside_it(tmp_path):
    trained, pruned = (Recipe.from_yaml(f"stages: [{{{text}}}]") for text in ("train: {}", "prune: {sparsity: 0.5}"))
    assert output_folder.work_of(tmp_path / "out", trained) == tmp_path / "out" / "checkpoints"
    assert output_folder.work_of(tmp_path / "out", pruned) == tmp_path / ".out.work"
    assert output_folder.work_of(None, trained) is None
