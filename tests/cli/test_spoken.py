# SPDX-License-Identifier: Apache-2.0
"""Messages of Python in the words of a line; what is no setting stays as it is."""

import shlex
import warnings

import pytest

from fewbit.cli import _output
from fewbit.cli._sparse_words import in_words_of_sparsify
from fewbit.cli._spoken import in_words_of_the_line, spoken
from fewbit.data.text.wording import TRY
from fewbit.errors import DataError

OPTIONS = {
    "lr": "--lr {}",
    "gradient_checkpointing": "--option gradient_checkpointing={}",
    "targets": "--option targets={}",
    "resume": "--no-resume",
    "task": "--task {}",
}


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("custom_config={'validation_ratio': 0} learns", "--data-option validation_ratio=0 learns"),
        ("custom_config={'path': …} reads", "--data-option path=… reads"),
        ("custom_config={'require_device': True}", "--data-option require_device=true"),
        ("where custom_config['classes']", "where --data-option classes"),
        ("preprocessing_steps=['a', 'b'] (--step a --step b) and", "--step a --step b and"),
        ("task=NAME (--task NAME), one of these", "--task NAME, one of these"),
        ("another output, or resume=False (--no-resume), which", "another output, or --no-resume, which"),
        ("lr=0.1: too high", "--lr 0.1: too high"),
        ("runs/lr=0.1/rows.jsonl, 'lr=0.1', dlr=3", "runs/lr=0.1/rows.jsonl, 'lr=0.1', dlr=3"),
        ("a folder of custom_config={", "a folder of --data-option={"),
        ("the model's own: custom_config is empty.", "the model's own: --data-option is empty."),
        ("my_custom_config, custom_config.yaml", "my_custom_config, custom_config.yaml"),
        ("/home/me/custom_config/rows.csv:3: dataset_name", "/home/me/custom_config/rows.csv:3: --data"),
        ("dataset_name='a/dataset_name': there is none", "--data 'a/dataset_name': there is none"),
        ("no column 'custom_config' or \"a dataset_name\"", "no column 'custom_config' or \"a dataset_name\""),
        ("no column 'custom_config={'", "no column 'custom_config={'"),
        (
            "faults:\n  where:    my custom_config rows\n  try: lr=1",
            "faults:\n  where:    my custom_config rows\n  try: --lr 1",
        ),
        ("faults:\n  where:    custom_config['a']", "faults:\n  where:    --data-option a"),
        ("mend it, or policy={'bad-json': 'drop'}", "mend it, or --policy bad-json=drop"),
        ("pass `delimiter=` to be sure", """--data-option 'reading={"delimiter": "…"}' to be sure"""),
    ],
)
def test_words(python, line):
    assert spoken(python, OPTIONS) == line


@pytest.mark.parametrize(
    ("python", "wanted"),
    [
        ("custom_config={'columns': {'prompt': 'a b', 'label': 'c'}}", {"columns": {"prompt": "a b", "label": "c"}}),
        ("custom_config={'classes': ['a', 'b c']}", {"classes": ["a", "b c"]}),
        ("custom_config={'tokenizer': 'a folder'}", {"tokenizer": "a folder"}),
        ("gradient_checkpointing=True", {"gradient_checkpointing": True}),
        ("targets=['q_proj', 'v_proj']", {"targets": ["q_proj", "v_proj"]}),
    ],
)
def test_what_is_said_can_be_typed(python, wanted):
    _, option = shlex.split(spoken(python, OPTIONS))
    assert _output.parse_options([option]) == wanted


def test_errors_and_warnings_of_a_block(capsys):
    with pytest.raises(DataError) as told, in_words_of_the_line(OPTIONS):
        raise DataError("lr=3", where="preprocessing_steps", expected=None, try_="custom_config={'seed': 1}", code="x")
    error = told.value
    assert (error.what, error.where, error.expected) == ("--lr 3", "--step", None)
    assert (error.try_, error.code) == ("--data-option seed=1", "x")
    before = warnings.showwarning
    with warnings.catch_warnings(), in_words_of_the_line(OPTIONS) as words:
        warnings.simplefilter("always")
        warnings.warn("custom_config={'seed': 1} helps", UserWarning, stacklevel=1)
        assert words("lr=1") == "--lr 1"
    assert warnings.showwarning is before
    assert "UserWarning: --data-option seed=1 helps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("/home/me/custom_config/rows.csv", "/home/me/custom_config/rows.csv"),
        ("my custom_config.csv, lr=0.1", "my custom_config.csv, lr=0.1"),
        ("--data-options/rows.csv", "--data-options/rows.csv"),
        ("custom_config['classes']", "--option classes"),
        ("optim_level", "--optim-level"),
    ],
)
def test_a_place_is_the_users_unless_it_is_a_settings_name(where, told):
    with pytest.raises(DataError) as found, in_words_of_sparsify():
        raise DataError(
            f"faults:\n  where:    {where}", where=where, try_="custom_config={'seed': 1} in 'a --step file'"
        )
    assert found.value.where == told and found.value.what == f"faults:\n  where:    {told}"
    assert found.value.try_ == "--option seed=1 in 'a --step file'"


def test_advice_of_other_commands_is_said_as_sparsify_has_it():
    for python, told in ((TRY, "--option text_column=NAME"), ("policy='drop' (--option policy=drop)", "--policy drop")):
        with pytest.raises(DataError) as found, in_words_of_sparsify():
            raise DataError("faults", try_=python)
        assert found.value.try_ == told
