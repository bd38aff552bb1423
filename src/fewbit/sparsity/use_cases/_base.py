# SPDX-License-Identifier: Apache-2.0
"""What a use case is.

A member is a file with

- `KIND`: what its samples are made of: `"pictures"`, `"texts"`, or `"arrays"`, which are inputs of the model already;
- `TASK`: the task of `fewbit.tuning` that trains and judges such models; none if nothing does: one-shot all the same;
- `METRIC`: the number it is judged by if nobody says, one of those the task gives; none without a task;
- `METRICS`: those numbers, each with `"max"` or `"min"`, which way is better;
- `WORDS`: other names of them, in small letters, as people write them;
- `ALIASES`: other names of the use case;
- `FORMATS`: the formats of `fewbit.data` it reads (`fewbit list formats`); objects such as loaders always;
- `STEPS`: the steps of `fewbit.data` that make a row a model's input; the data's own if none.

All but `KIND` may be left out. A use case of the user's own is `"file.py:function"`: a function of one sample that
returns another, under the names of the model's inputs and without a batch axis, with the answer as `label`. What it is
trained and judged by, it says in attributes of these names: `function.TASK = "image_classification"`. A plug-in's entry
point in the group `fewbit.use_cases` loads a module as above, or such a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewbit import registry
from fewbit.errors import UsageError, nearest

KINDS = ("pictures", "texts", "arrays")


@dataclass(frozen=True)
class UseCase:
    """One use case, as its member says it; see above.

    Args:
        name: of the member, or `"file.py:function"`.
        kind: what samples are made of.
        task: that trains and judges.
        metric: the number to judge by.
        metrics: all numbers there are, each with which way is better.
        words: other names of these.
        aliases: other names of the use case.
        formats: of data.
        steps: that make a row an input.
    """

    name: str
    kind: str = "arrays"
    task: str | None = None
    metric: str | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    steps: tuple[str, ...] | None = None

    def number(self, said: str | None) -> str | None:
        """The number that somebody names, or the usual one.

        Raises:
            UsageError: there is no such number.
        """
        if said is None:
            return self.metric
        plain = said.strip().lower().replace("-", "_")
        found = self.words.get(plain, plain)
        if found not in self.metrics:
            raise UsageError(
                f"{self.name} is not judged by {said!r}",
                where="eval_metric",
                expected=nearest(found, self.metrics)
                if self.metrics
                else "no number: nothing says what its answers are",
                try_=None
                if self.metrics
                else "the use case it is, such as use_case='image_classification'; `fewbit list use_cases`",
            )
        return found


def read(name: str, member: Any) -> UseCase:
    """A use case from its member.

    Raises:
        UsageError: a plug-in that does not say what a use case says, with everything that is wrong.
    """
    task = getattr(member, "TASK", None)
    best = None if task not in registry.names("tasks") else registry.get("tasks", task).METRIC.BEST
    metric = getattr(member, "METRIC", None if best is None else best[0])
    metrics = dict(getattr(member, "METRICS", {} if best is None else {best[0]: best[1], "loss": "min"}))
    steps = getattr(member, "STEPS", (name,) if registry.is_reference(name) else None)
    made = UseCase(
        name,
        getattr(member, "KIND", "arrays"),
        task,
        metric,
        metrics,
        dict(getattr(member, "WORDS", {})),
        tuple(getattr(member, "ALIASES", ())),
        tuple(getattr(member, "FORMATS", ())),
        None if steps is None else tuple(steps),
    )
    faults = list(_faults(made, member))
    if faults:
        raise UsageError("; ".join(faults), where=name, expected="what fewbit.sparsity.use_cases._base says")
    return made


def _faults(made: UseCase, member: Any) -> list[str]:
    found = []
    if registry.is_reference(made.name) and not callable(member):
        found.append(f"it is a {type(member).__name__} and no function of a sample")
    if made.kind not in KINDS:
        found.append(f"KIND={made.kind!r}: {nearest(str(made.kind), KINDS)}")
    if made.task is not None and made.task not in registry.names("tasks"):
        found.append(f"TASK={made.task!r}: {nearest(str(made.task), registry.names('tasks'))}")
    if made.metric is not None and made.metric not in made.metrics:
        found.append(f"METRIC={made.metric!r} is not among METRICS: {', '.join(made.metrics) or 'there are none'}")
    return found
