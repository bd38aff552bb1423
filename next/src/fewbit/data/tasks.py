# SPDX-License-Identifier: Apache-2.0
"""Tasks: what a sample must hold to be used for one, and the names other tools have for it."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.data.types import IssueType, Severity
from fewbit.errors import UsageError, nearest


@dataclass(frozen=True)
class Task:
    """One task.

    Args:
        name: `image-classification`.
        needs: groups of sample keys; of each group one must be there.
        aliases: other names for it.
    """

    name: str
    needs: tuple[tuple[str, ...], ...]
    aliases: tuple[str, ...] = ()


TASKS = {
    task.name: task
    for task in (
        Task("image-classification", (("image",), ("label",)), ("ic", "cv-classification", "image_classification")),
        Task("object-detection", (("image",), ("boxes",)), ("od", "detection", "cv-detection")),
        Task("segmentation", (("image",), ("mask", "masks")), ("semantic-segmentation", "instance-segmentation")),
        Task("text-classification", (("text",), ("label",)), ("sentiment-analysis", "sentiment", "tc")),
        Task("token-classification", (("tokens",), ("tags",)), ("ner", "named-entity-recognition")),
        Task("question-answering", (("question",), ("context",), ("answers",)), ("qa",)),
        Task("text-generation", (("text", "messages", "prompt", "chosen"),), ("causal-lm", "language-modeling", "clm")),
        Task("masked-language-modeling", (("text",),), ("mlm",)),
        Task("information-retrieval", (("text",),), ("retrieval", "ir")),
        Task("audio-classification", (("audio",), ("label",)), ()),
        Task("arrays", ((),), ("features", "generic")),
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
        if key in (task.name, *(alias.replace("_", "-") for alias in task.aliases)):
            return task
    raise UsageError(
        f"no task is called {name!r}", code="task-unknown", param="task",
        expected=", ".join(nearest(name, TASKS) or TASKS), hint="`fewbit list tasks` lists all",
    )  # fmt: skip
