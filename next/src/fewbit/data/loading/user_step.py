# SPDX-License-Identifier: Apache-2.0
"""Functions of the user as steps: `FILE.py:FUNCTION`, called with each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fewbit.data.loading.views import Context, Selected, View, usable
from fewbit.data.types import Issue, IssueType, Sample, SampleError, Severity
from fewbit.data.user_code import load_function, user_code
from fewbit.errors import DataError

STEP_DROPPED = IssueType(
    "step-dropped", Severity.NOTE, "sample that a preprocessing step leaves out", "nothing, if that is meant", "drop"
)


def apply_function(view: View, reference: str, context: Context) -> View:
    """A step of the user: called with each sample; `None` leaves it out."""
    changed = UserStep(view, load_function(reference, param="preprocessing_steps"))
    positions = [index for index, _ in usable(changed, context.preparation)]
    return changed if len(positions) == len(view) else Selected(changed, positions)


class UserStep(View):
    """Every sample through a function of the user."""

    def __init__(self, inner: View, function: Callable[[Sample], Any]):
        super().__init__(inner)
        self._function = function

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample; `None` from the function leaves it out."""
        result = call_with_sample(self._function, dict(self.inner.get(index, epoch)), index)
        if result is None:
            reason = f"{name_of(self._function)} returned None"
            raise SampleError(Issue(STEP_DROPPED, reason, self.location(index)))
        if not isinstance(result, Mapping):
            raise DataError(
                f"{name_of(self._function)} returned {type(result).__name__}", code="user-step",
                where=str(self.location(index)), expected="a dict, or None to leave the sample out",
                hint="return the sample",
            )  # fmt: skip
        return dict(result)

    def lengths(self) -> None:
        """The function may change them."""
        return


def call_with_sample(function: Callable[[Sample], Any], sample: Sample, index: int) -> Any:
    """Call a function of the user; it draws the same random numbers for the same sample in every process."""
    with user_code(name_of(function), function, index):
        return function(sample)


def name_of(function: Any) -> str:
    """The name of a function, or the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__))
