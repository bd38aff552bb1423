# SPDX-License-Identifier: Apache-2.0
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.sparsity.recipe import Recipe

WHOLE = """
version: 1
mode: one-shot
use_case: text_generation
stages:
- prune: {sparsity: 0.5, structure: '2:4', ignore: [lm_head]}
- quantize: {preset: w8a8_dynamic, samples: 16}
"""


def refused(text):
    with pytest.raises(UsageError) as error:
        Recipe.from_yaml(text)
    return str(error.value)


def test_a_recipe_goes_to_yaml_and_back():
    recipe = Recipe.from_yaml(WHOLE)
    (prune, pruning), (quantize, codes) = recipe.stages
    assert (prune, pruning.sparsity, pruning.structure, pruning.ignore) == ("prune", 0.5, "2:4", ("lm_head",))
    assert (quantize, codes.preset, codes.samples) == ("quantize", "w8a8_dynamic", 16)
    again = Recipe.from_yaml(recipe.to_yaml())
    assert again == recipe and again.fingerprint == recipe.fingerprint
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    plain = yaml.safe_load(recipe.to_yaml())
    assert plain["version"] == 1 and [list(stage) for stage in plain["stages"]] == [["prune"], ["quantize"]]


@settings(max_examples=25, deadline=None)
@given(sparsity=st.floats(0.01, 0.99), preset=st.sampled_from(["w8a8", "w8a8_dynamic", "w4a16"]), ignore=st.lists(
    st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), max_size=3))  # fmt: skip
def test_whatever_a_recipe_says_it_says_after_a_round_trip(sparsity, preset, ignore):
    values = {"stages": [{"prune": {"sparsity": sparsity, "ignore": ignore}}, {"quantize": {"preset": preset}}]}
    recipe = Recipe.from_dict(values)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert Recipe.from_yaml(recipe.to_yaml()).fingerprint == recipe.fingerprint


def test_equal_recipes_have_one_fingerprint_however_they_are_written():
    short = Recipe.from_yaml("stages: [{quantize: {}}]")
    long = Recipe.from_yaml("version: 1\nmode: one-shot\nstages:\n- quantize:\n    preset: w8a8\n")
    assert short == long and short.fingerprint == long.fingerprint
    assert short.fingerprint != Recipe.from_yaml("stages: [{quantize: {preset: w4a16}}]").fingerprint


def test_what_a_recipe_does_not_say_about_its_mode_its_stages_do():
    assert Recipe.from_yaml("stages: [{train: {final: 0.8}}]").mode == "training-aware"
    assert Recipe.from_yaml("stages: [{prune: {sparsity: 0.8}}]").mode == "one-shot"


def test_every_fault_is_told_at_once_with_what_was_meant():
    told = refused(
        "version: 2\nmode: oneshot\nstagse: []\nstages:\n- pruen: {sparsity: 0.5}\n"
        "- prune: {sparsity: much, strcture: '2:4'}\n- quantize: {preset: w8a88}\n- [prune]\n"
    )
    for said in ("version 2", "'one-shot'", "'stages'", "'prune'", "'structure'", "a number", "'w8a8'", "one stage"):
        assert said in told, said


@pytest.mark.parametrize("value", ["calc(0.5 + 0.1)", "eval(init)", "${sparsity}", "__import__('os')", "{{ share }}"])
def test_nothing_in_a_recipe_is_computed(value):
    told = refused(yaml.safe_dump({"stages": [{"prune": {"sparsity": value}}]}))
    assert "is an expression" in told and "stages[0].prune.sparsity" in told


@pytest.mark.parametrize(
    "text",
    [
        "stages: !!python/object/apply:os.system ['true']",
        "stages: [{prune: {sparsity: 0.5}}]\nstages: []",
        "a: &a [1]\nb: &b [*a, *a]\nstages: [*b, *b]",
        "just words",
        "stages: {prune: {}}",
        "stages: [{prune: {sparsity: 0.5}",
    ],
)
def test_tags_double_keys_and_what_is_no_recipe_are_refused(text):
    assert refused(text)


def test_a_recipe_of_another_tool_is_told_from_ours():
    told = refused("test_stage:\n  pruning_modifiers:\n    SparseGPTModifier: {sparsity: 0.5}\nmodifiers: []\n")
    assert "SparseML" in told


def test_codes_are_made_last():
    assert "as the last stage" in refused("stages: [{quantize: {}}, {prune: {sparsity: 0.5}}]")


@pytest.mark.parametrize("first", ["train: {quantize: w8a8}", "prune: {sparsity: 0.5, quantize: int4_sym}"])
@pytest.mark.parametrize("then", ["prune: {sparsity: 0.5}", "shrink: {channels: 0.1}", "train: {}", "quantize: {}"])
def test_nothing_that_needs_floats_follows_codes(first, then):
    name = then.partition(":")[0]
    assert f"{name} after {first.partition(':')[0]} with quantize" in refused(f"stages: [{{{first}}}, {{{then}}}]")


def test_a_recipe_that_trains_is_not_one_shot():
    assert "one-shot with the stage train" in refused("mode: one-shot\nstages: [{train: {}}]")


def test_what_was_looked_at_goes_to_yaml_and_back():
    text = "samples: 8\nseqlen: 64\npack: pad\nstages: [{prune: {sparsity: 0.5}}]"
    recipe = Recipe.from_yaml(text)
    assert (recipe.samples, recipe.seqlen, recipe.pack) == (8, 64, "pad")
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert recipe.fingerprint != Recipe.from_yaml(text.replace("8", "9")).fingerprint
    told = refused("samples: 0\nseqlen: long\npack: tight\nstages: []")
    assert "samples: 0" in told and "seqlen: 'long'" in told and "pack: 'tight'" in told


def test_a_file_says_where_its_faults_are(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        Recipe.load(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("stages: [{prun: {}}]")
    with pytest.raises(UsageError) as error:
        Recipe.load(tmp_path / "recipe.yaml")
    assert str(tmp_path / "recipe.yaml") in error.value.where and "'prune'" in error.value.expected
    (tmp_path / "good.json").write_text('{"stages": [{"quantize": {}}]}')
    assert Recipe.load(tmp_path / "good.json").stages[0][0] == "quantize"


def test_what_is_wrong_with_values_is_told_beside_what_is_wrong_with_keys():
    values = {"sparcity": 0.5, "structure": 124, "algorithm": "wandda", "budget": "even"}
    with pytest.raises(UsageError) as error:
        Recipe.from_dict({"stages": [{"prune": values}, {"quantise": {}}]})
    told = error.value.what
    assert told.startswith("5 faults in the recipe")
    for part in ("'sparsity'", "'2:4', with quotes", "prune.algorithm: there is no member 'wandda'", "'quantize'"):
        assert part in told
    assert "without a share" not in told  # which only seems to be missing


def test_several_faults_of_one_stage_are_each_its_own():
    with pytest.raises(UsageError) as error:
        Recipe.from_dict({"stages": [{"prune": {"sparsity": 50, "algorithm": "wandda", "group_size": 8}}]})
    assert error.value.what.startswith("3 faults in the recipe")


def test_text_that_is_no_yaml_is_told_with_where_recipes_come_from(tmp_path):
    (tmp_path / "r.yaml").write_text("mode: [one-shot\n")
    with pytest.raises(UsageError, match="not plain YAML") as error:
        Recipe.load(tmp_path / "r.yaml")
    assert "--show-recipe" in error.value.expected and "r.yaml" in error.value.where
