# SPDX-License-Identifier: Apache-2.0
"""Tasks: what a sample must hold to be used for one, and the names other tools have for it."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.data.types import IssueType, Severity
from fewbit.errors import UsageError, nearest


@dataclass(frozen=True)
class Task:
    """One task: of each group of sample keys in `needs`, one must be there."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    aliases: tuple[str, ...] = ()


_IMAGE, _TEXT, _LABEL = ("image",), ("text",), ("label",)
TASKS = {
    name: Task(name, needs, aliases)
    for name, needs, aliases in (
        ("image-classification", (_IMAGE, _LABEL), ("ic", "cv-classification")),
        ("object-detection", (_IMAGE, ("boxes",)), ("od", "detection", "cv-detection")),
        ("segmentation", (_IMAGE, ("mask", "masks")), ("semantic-segmentation", "instance-segmentation")),
        ("text-classification", (_TEXT, _LABEL), ("sentiment-analysis", "sentiment", "tc")),
        ("token-classification", (("tokens",), ("tags",)), ("ner", "named-entity-recognition")),
        ("question-answering", (("question",), ("context",), ("answers",)), ("qa",)),
        ("text-generation", (("text", "messages", "prompt", "chosen"),), ("causal-lm", "language-modeling", "clm")),
        ("masked-language-modeling", (_TEXT,), ("mlm",)),
        ("information-retrieval", (_TEXT,), ("retrieval", "ir")),
        ("audio-classification", (("audio",), _LABEL), ()),
        ("arrays", (), ("features", "generic")),
    )
}

TASK_KEYS = IssueType(
    "task-key-missing", Severity.ERROR, "sample without what the task needs",
    "choose the columns with {text_column} and {label_column}, or another {task}", "raise", ("drop",),
    "leaves the sample out",
)  # fmt: skip


def find_task(name: str) -> Task:
    """A task by its name or one of its aliases; case, `-` and `_` do not matter."""
    key = name.lower().replace("_", "-")
    for task in TASKS.values():
        if key in (task.name, *task.aliases):
            return task
    raise UsageError(
        f"no task is called {name!r}", code="task-unknown", param="task",
        expected=", ".join(nearest(name, TASKS) or TASKS), hint="`fewbit list tasks` lists all",
    )  # fmt: skip
