# SPDX-License-Identifier: Apache-2.0
"""Algorithms by name: their stage, what they are asked, and the user's own."""

import pytest

from fewbit import registry
from fewbit.algorithms._base import (
    PROBLEMS,
    STAGES,
    BiasProblem,
    BlockProblem,
    LinkProblem,
    Problem,
    StreamProblem,
)
from fewbit.algorithms._members import algorithm, members
from fewbit.errors import UsageError


def test_every_member_has_a_stage():
    assert tuple(PROBLEMS) == STAGES == ("rotate", "prepare", "round", "prune", "tune", "correct")
    by_stage = {stage: members(stage) for stage in STAGES}
    assert sorted(name for names in by_stage.values() for name in names) == registry.names("algorithms")
    assert by_stage["rotate"] == ["rotation"]
    assert by_stage["prepare"] == ["awq", "equalization", "smooth_quant"]
    assert {"adaround", "rtn", "scale_search"} <= set(by_stage["round"])
    assert by_stage["prune"] == ["alps", "magnitude", "sparse_gpt", "stepwise", "wanda"]
    assert by_stage["correct"] == ["bias_correction", "fast_bias_correction"]


@pytest.mark.parametrize("name", registry.names("algorithms"))
def test_a_member_is_complete(name):
    found = algorithm(name)
    asked = {"rotate": StreamProblem, "prepare": LinkProblem, "round": Problem, "prune": Problem}
    assert found.problem is (asked | {"tune": BlockProblem, "correct": BiasProblem})[found.stage]
    assert "problem" not in found.parameters and found.solve.__doc__
    found.refuse_unknown({}, where="here")


@pytest.mark.parametrize(
    ("own", "stage", "needs", "problem"),
    [
        ("", "round", (), Problem),
        ("solve.needs = ('min_max',)", "round", ("min_max",), Problem),
        ("solve.stage = 'prepare'; solve.needs = ('low', 'count')", "prepare", ("low", "count"), LinkProblem),
        ("solve.stage = 'correct'; solve.needs = ['taps']", "correct", ("taps",), BiasProblem),
    ],
)
def test_the_users_own(tmp_path, own, stage, needs, problem):
    file = tmp_path / "mine.py"
    file.write_text(f"def solve(problem, *, size=1): ...\n{own}\n")
    found = algorithm(f"{file}:solve")
    assert (found.stage, found.needs, found.problem, found.parameters) == (stage, needs, problem, ("size",))


@pytest.mark.parametrize(
    ("own", "message", "expected"),
    [
        ("solve.stage = 'corect'", "stage 'corect'", "correct"),
        ("solve.stage = 'correct'; solve.needs = ('tap',)", "needs 'tap'", "taps"),
        ("solve.needs = ('momentss',)", "momentss", "moments"),
        ("solve = 3", "is a int", "a function"),
    ],
)
def test_the_users_own_that_cannot_be_used(tmp_path, own, message, expected):
    file = tmp_path / "mine.py"
    file.write_text(f"def solve(problem): ...\n{own}\n")
    with pytest.raises(UsageError, match=message) as error:
        algorithm(f"{file}:solve")
    assert expected in error.value.expected


def test_another_stage_than_the_one_asked_for():
    assert algorithm("rtn", stage="round").name == "rtn"
    with pytest.raises(UsageError, match="'equalization' runs at stage 'prepare'") as error:
        algorithm("equalization", stage="round")
    assert "scale_search" in error.value.expected and "equalization" not in error.value.expected
