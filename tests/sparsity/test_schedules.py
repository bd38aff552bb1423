# SPDX-License-Identifier: Apache-2.0
"""How sparsity grows: exact at both ends, never down, never above the target."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.sparsity.schedules import SHAPES, Schedule

shares = st.floats(0, 0.99, allow_nan=False)


@st.composite
def schedules(draw):
    initial, final = sorted((draw(shares), draw(shares)))
    start, end = sorted((draw(st.floats(0, 1)), draw(st.floats(0, 1))))
    return Schedule(final, initial, draw(st.sampled_from(sorted(SHAPES))), start, end, draw(st.integers(1, 30)))


@given(schedules(), st.integers(1, 500))
def test_changes_go_up_within_the_run_and_end_exactly_at_the_target(schedule, total):
    changes = schedule.changes(total)
    steps, values = list(changes), list(changes.values())
    assert steps == sorted(steps) and steps[0] >= 0 and steps[-1] <= total
    assert steps[0] == round(schedule.start * total)
    assert values == sorted(values) and values[-1] == schedule.final
    assert all(schedule.initial <= value <= schedule.final for value in values)
    assert 1 <= len(changes) <= schedule.updates
    if schedule.shape != "constant" and len(changes) == schedule.updates > 1:
        assert values[0] == schedule.initial and steps[-1] == round(schedule.end * total)


@given(schedules(), st.floats(0, 1))
def test_at_no_time_is_it_above_the_target(schedule, t):
    """One that began with an exponent of its own at twice the target would be."""
    assert schedule.initial <= schedule.at(t) <= schedule.final
    assert schedule.at(1.0) == schedule.final
    assert schedule.at(0.0) == (schedule.final if schedule.shape == "constant" else schedule.initial)


def test_the_shapes_are_the_formulas():
    at = {shape: Schedule(0.9, 0.1, shape).at(0.25) for shape in SHAPES}
    assert at["cubic"] == pytest.approx(0.9 - 0.8 * 0.75**3)
    assert at["linear"] == pytest.approx(0.1 + 0.8 / 4)
    assert at["constant"] == 0.9
    exponential = Schedule(0.9, 0.1, "exponential", updates=5, end=1.0).changes(4)
    left = [1 - share for share in exponential.values()]
    assert [after / before for before, after in pairwise(left)] == pytest.approx([9**-0.25] * 4)


def test_changes_are_spread_evenly():
    assert list(Schedule(0.5, start=0.1, end=0.9, updates=9).changes(1000)) == list(range(100, 901, 100))


def test_every_fault_is_said_at_once():
    with pytest.raises(UsageError) as error:
        Schedule(0.5, 0.6, "cubik", start=0.8, end=0.2, updates=0)
    for part in ("from 0.6 to 0.5", "'cubik'", "cubic", "from 0.8 to 0.2 of the run", "updates=0"):
        assert part in str(error.value)
    with pytest.raises(UsageError, match="final < 1"):
        Schedule(1.0)
