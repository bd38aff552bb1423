# SPDX-License-Identifier: Apache-2.0
"""How a sample meets a model: every problem, and the steps that make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.casts import Cast, apply_cast
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.findings import Severity

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit.

    Args:
        code: a name in `FIT_CODES`.
        message: input, expected and found, in words.
        input: the model's input, or the array where no input is concerned.
        fix: what to try.
    """

    code: str
    message: str
    input: str
    fix: str


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one array: which input it is, and how its first axis, its layout and its dtype change."""

    key: str
    name: str
    rows: int = 0
    transpose: tuple[int, ...] | None = None
    cast: Cast | None = None

    @property
    def changes(self) -> bool:
        """Whether the array itself becomes another, and not only its name."""
        return bool(self.rows or self.transpose or (self.cast and not self.cast.refused))

    def apply(self, array: Array, row: int = 0) -> Array:
        """The array as its input takes it; `row` picks one of several samples."""
        if self.rows:
            array = array[row if self.rows > 1 else 0]
        if self.transpose:
            array = np.ascontiguousarray(array.transpose(self.transpose))
        return array if self.cast is None or self.cast.refused else apply_cast(array, self.cast, self.name)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a sample meets a model.

    Args:
        problems: everything worth saying, errors and remarks alike.
        steps: what to do, one an input; arrays without a step are left out. An array whose name only resembles an
            input's (`input-name`) has the step that following the advice would take.
        rows: how many samples the arrays hold: more than 1 when they carry a batch axis to be split.
        whole: the arrays are a model input as they are, batch axis included, though samples have none elsewhere.
    """

    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    rows: int = 1
    whole: bool = False

    @property
    def errors(self) -> list[Problem]:
        """The problems that keep the sample from being fed."""
        return [problem for problem in self.problems if FIT_CODES[problem.code].severity is Severity.ERROR]

    def apply(self, arrays: Mapping[str, Array], row: int = 0) -> dict[str, Array]:
        """The arrays under the model's input names, in the shape and dtype it takes.

        Args:
            arrays: under the names that `fit` was shown.
            row: which of the `rows` samples.

        Raises:
            DataError: a value does not fit the input's dtype.
        """
        return {step.name: step.apply(arrays[step.key], row) for step in self.steps}
