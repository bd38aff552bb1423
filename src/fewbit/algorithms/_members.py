# SPDX-License-Identifier: Apache-2.0
"""Algorithms by name: members of the registry, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, overload

from fewbit import registry
from fewbit.algorithms._base import (
    PROBLEMS,
    STAGES,
    BiasProblem,
    BlockProblem,
    LinkProblem,
    Problem,
    Rescaling,
    Rotation,
    Shift,
    Solution,
    StreamProblem,
    Tuned,
)
from fewbit.errors import UsageError, nearest
from fewbit.model import watch
from fewbit.observers._base import observer_class


class Solve(Protocol):
    """The function of an algorithm: what it gives follows from what it is asked."""

    @overload
    def __call__(self, problem: Problem, /, **parameters: Any) -> Solution: ...
    @overload
    def __call__(self, problem: StreamProblem, /, **parameters: Any) -> Rotation: ...
    @overload
    def __call__(self, problem: LinkProblem, /, **parameters: Any) -> Rescaling: ...
    @overload
    def __call__(self, problem: BlockProblem, /, **parameters: Any) -> Tuned: ...
    @overload
    def __call__(self, problem: BiasProblem, /, **parameters: Any) -> Shift: ...


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that is known to be complete.

    Args:
        name: as a configuration says it.
        stage: when it runs, one of `STAGES`.
        needs: the statistics it can use; see `fewbit.algorithms._base`.
        solve: the function itself.
    """

    name: str
    stage: str
    needs: tuple[str, ...]
    solve: Solve

    @property
    def problem(
        self,
    ) -> type[Problem] | type[StreamProblem] | type[LinkProblem] | type[BlockProblem] | type[BiasProblem]:
        """What `solve` is asked; one that tunes is asked a `Problem` for each weight before."""
        return PROBLEMS[self.stage]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What `solve` takes beside the problem."""
        return tuple(inspect.signature(self.solve).parameters)[1:]

    def refuse_unknown(self, parameters: Mapping[str, Any], where: str) -> None:
        """Refuse parameters it does not have.

        Raises:
            UsageError: with the nearest one it has.
        """
        unknown = [name for name in parameters if name not in self.parameters]
        if unknown:
            raise UsageError(
                f"the algorithm {self.name!r} has no parameter {', '.join(map(repr, unknown))}",
                where=where,
                expected=nearest(unknown[0], self.parameters) if self.parameters else "no parameters",
            )


def algorithm(name: str, stage: str | None = None) -> Algorithm:
    """The algorithm a name stands for: a member, or the user's own `"file.py:solve"`.

    A function of the user's may say `needs` (a tuple of names) and `stage` (else `"round"`) as attributes.

    Args:
        name: as a configuration says it.
        stage: when it has to run; whenever it likes, if none is given.

    Raises:
        UsageError: there is none of this name; its stage or something it needs is not known, or it is another stage
            than the one asked for.

    >>> algorithm("scale_search").needs
    ('moments',)
    >>> algorithm("fast_bias_correction").problem.__name__
    'BiasProblem'
    """
    if registry.is_reference(name):
        own = registry.load_reference(name)
        if not callable(own):
            raise UsageError(f"{name} is a {type(own).__name__}", where=name, expected="a function solve(problem)")
        found = Algorithm(name, getattr(own, "stage", "round"), tuple(getattr(own, "needs", ())), own)
    else:
        member = registry.get("algorithms", name)
        found = Algorithm(name, member.STAGE, tuple(member.NEEDS), member.solve)
    runs = f"the algorithm {name!r} runs at stage {found.stage!r}"
    if found.stage not in STAGES:
        raise UsageError(runs, where=name, expected=nearest(str(found.stage), STAGES))
    if stage is not None and found.stage != stage:
        raise UsageError(runs, where=name, expected=f"one of stage {stage!r}: {', '.join(members(stage))}")
    _refuse_unknown_needs(found)
    return found


def members(stage: str) -> list[str]:
    """The members that run at a stage; those that cannot be imported here are left out.

    >>> members("prepare")
    ['awq', 'equalization', 'smooth_quant']
    """
    found = []
    for name in registry.names("algorithms"):
        with suppress(Exception):
            if stage == registry.get("algorithms", name).STAGE:
                found.append(name)
    return found


def _refuse_unknown_needs(found: Algorithm) -> None:
    for need in found.needs:
        if found.stage in ("round", "prune", "tune"):
            observer_class(need)
        elif need not in watch.NEEDS:
            what = f"the algorithm {found.name!r} needs {need!r}"
            raise UsageError(what, where=found.name, expected=nearest(need, watch.NEEDS))
