# SPDX-License-Identifier: Apache-2.0
"""Steps by their names, and whether they can follow one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit import registry
from fewbit.data.keys import Key
from fewbit.errors import UsageError, nearest


@dataclass(frozen=True)
class Step:
    """One step.

    Args:
        name: as the user wrote it.
        member: its module, or the user's own function.
    """

    name: str
    member: Any

    @property
    def of_user(self) -> bool:
        """Whether it is a function that is called with a sample, and nothing else."""
        return not (hasattr(self.member, "make") or hasattr(self.member, "apply"))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys it reads."""
        return tuple(getattr(self.member, "KEYS", ()))

    def __call__(self, sample: Any) -> Any:
        """What the user's own function makes of a sample."""
        return self.member(sample)

    def __reduce__(self) -> Any:
        return _found, (self.name,)  # modules and functions of the user's files are found again by their names

    def says(self, name: str, default: Any = ()) -> Any:
        """What the member says of itself."""
        return getattr(self.member, name, default)


def find_steps(names: Any) -> tuple[list[Step], list[str]]:
    """The steps, and what is wrong with the list, one line each.

    An error inside a user's own file comes out as it is.

    >>> find_steps(["padding", "tokenization"])[1]
    ["'padding' comes before 'tokenization', which has to come first"]
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        return [], [f"preprocessing_steps={names!r}: expected a list of steps, such as ['tokenization', 'padding']"]
    steps: list[Step] = []
    faults: list[str] = []
    for name in names:
        try:
            steps.append(Step(str(name), _member(name)))
        except UsageError as error:
            faults.append(error.what if error.expected is None else f"{error.what}; {error.expected}")
    return steps, [*faults, *_order(steps)]


def step_keys() -> dict[str, list[str]]:
    """Which steps read which keys, of all steps there are."""
    found: dict[str, list[str]] = {}
    for name in registry.names("steps"):
        for key in getattr(registry.get("steps", name), "KEYS", ()):
            found.setdefault(key.name, []).append(name)
    return found


def faults_of(steps: Iterable[Step], options: Mapping[str, Any]) -> list[str]:
    """What steps have against options that each fit for themselves."""
    asks = (step.says("faults", None) for step in steps if not step.of_user)
    return [fault for ask in asks if ask is not None for fault in ask(options)]


def _found(name: str) -> Step:
    return Step(name, _member(name))


def _member(name: Any) -> Any:
    if not isinstance(name, str):
        raise UsageError(f"the step {name!r} is no text", expected="a step's name, or 'file.py:function'")
    if registry.is_reference(name):
        member = registry.load_reference(name)
        if not callable(member):
            raise UsageError(f"{name!r} is no function", expected="a function that takes a sample and returns one")
        return member
    known = registry.names("steps")
    if name not in known:
        raise UsageError(f"there is no step {name!r}", expected=nearest(name, known))
    return registry.get("steps", name)


def _order(steps: Sequence[Step]) -> list[str]:
    faults = []
    names = [step.name for step in steps]
    for place, step in enumerate(steps):
        if step.name in names[:place] and not step.of_user:
            faults.append(f"{step.name!r} is there twice")
        late = [other for other in step.says("AFTER") if other in names[place + 1 :]]
        faults += [f"{step.name!r} comes before {other!r}, which has to come first" for other in late]
        missing = [other for other in step.says("NEEDS") if other not in names]
        faults += [f"{step.name!r} needs {other!r}, which is not among the steps" for other in missing]
    return faults
