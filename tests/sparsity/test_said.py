# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.errors import UsageError
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.said import Said
from fewbit.sparsity.train_options import with_training


def test_options_are_sorted_by_what_they_are_about():
    said = Said.read({"seqlen": 64, "columns": {"text": "body"}, "lr": 0.1, "batch_size": 4}, "training-aware")
    assert said.own["seqlen"] == 64 and said.own["batch_size"] == 4 and said.own["seed"] == 0
    assert said.data == {"columns": {"text": "body"}}
    assert said.training == {"lr": 0.1, "batch_size": 4}


def test_what_says_where_a_run_is_carried_out_is_not_in_a_recipe():
    assert Said.read({"device": "cpu", "workers": 2}, "training-aware").training == {}


def test_every_fault_is_told_at_once():
    with pytest.raises(UsageError) as error:
        Said.read({"seqlne": 3, "lr": "fast", "epochs": 2, "image_size": -1, "train_samples": 0}, "one-shot")
    for told in ("'seqlen'", "lr='fast'", "epochs: one-shot trains nothing", "image_size=-1", "train_samples=0"):
        assert told in str(error.value), told


def recipe(text="stages: [{train: {final: 0.5, epochs: 3}}]"):
    return Recipe.from_yaml(text)


def test_settings_of_training_go_into_the_recipe():
    changed = with_training(recipe(), {"lr": 0.1, "max_steps": 7, "warmup": 3}).stages[0][1]
    assert (changed.lr, changed.max_steps, changed.epochs) == (0.1, 7, None) and changed.options == {"warmup": 3}
    again = with_training(with_training(recipe(), {"warmup": 3}), {"clip": 2.0}).stages[0][1]
    assert again.options == {"warmup": 3, "clip": 2.0}


def test_a_teacher_is_learned_from_or_not():
    assert with_training(recipe(), {}, teacher="off").stages[0][1].distill is False
    assert with_training(recipe(), {}, teacher=False).stages[0][1].distill is False
    plain = recipe("stages: [{train: {distill: false}}]")
    assert with_training(plain, {}, teacher=object()).stages[0][1].distill is True
    assert with_training(plain, {}).stages[0][1].distill is False


def test_where_nothing_trains_settings_of_training_are_refused_and_where_nothing_is_done_they_are_idle():
    with pytest.raises(UsageError, match="nothing in the recipe trains"):
        with_training(recipe("stages: [{quantize: {}}]"), {"lr": 0.1})
    assert with_training(Recipe(), {"lr": 0.1}) == Recipe()
