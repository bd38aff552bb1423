# SPDX-License-Identifier: Apache-2.0
"""Messages of Python in the words of a line; what is no setting stays as it is."""

import shlex
import warnings

import pytest

from fewbit.cli import _output
from fewbit.cli._spoken import in_words_of_the_line, spoken
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
