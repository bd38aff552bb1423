# SPDX-License-Identifier: Apache-2.0
"""Classes whose names the data itself knows: of a Hugging Face dataset by its columns, of pictures by their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.sample import Sample
from fewbit.data.tables.labels import Labels
from fewbit.errors import UsageError

_PICTURES = ("image_folder", "yolo")


def known_classes(facts: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, list[str]]:
    """What the numbers in columns mean, by our names of the columns.

    Args:
        facts: what the format understood.
        columns: the files' name of each of our columns, if somebody says.

    >>> known_classes({"class_names": {"mood": ["bad", "good"]}}, {"label": "mood"})
    {'mood': ['bad', 'good'], 'label': ['bad', 'good']}
    """
    if "class_names" in facts:
        named = {**{name: name for name in facts["class_names"]}, **columns}
        return {ours: facts["class_names"][own] for ours, own in named.items() if own in facts["class_names"]}
    classes = facts.get("classes")
    return {"label": classes, "classes": classes} if classes and facts.get("format") in _PICTURES else {}


def refuse_differing(facts: Mapping[str, Any], columns: Mapping[str, str], used: str) -> None:
    """Hold the splits against each other.

    Args:
        facts: what the format understood.
        columns: the files' name of each of our columns.
        used: our name of the column that classes are learned from.

    Raises:
        UsageError: a number in it means one class in one split and another in the next.
    """
    own = columns.get(used, used)
    if own in facts.get("class_names_differ", ()):
        raise UsageError(
            f"the classes of {own!r} have other names or numbers in another split",
            where=f"column {own!r}",
            expected="one ClassLabel for all splits: what is learned is the number",
            try_=f"dataset.cast_column({own!r}, ClassLabel(names={facts['class_names'][own][:12]}))",
        )


def renumbered(known: list[str], said: list[str] | None, column: str) -> Labels:
    """Labels whose numbers the data explains: as they are, in another order, or under other names.

    Args:
        known: what the data calls its numbers.
        said: the user's own word, in the order the numbers shall have.
        column: where they are.

    Raises:
        UsageError: some of what is said are names of the data, and others of the data's are not said.
    """
    if said is None or said == known:
        return Labels(tuple(known), {number: number for number in range(len(known))})
    if set(known) <= set(said):
        return Labels(tuple(said), {number: said.index(name) for number, name in enumerate(known)})
    if set(known) & set(said) or len(known) != len(said):
        raise UsageError(
            f"the classes of {column!r} are {', '.join(known[:12])} there, and {', '.join(said[:12])} here",
            where="custom_config['classes']",
            expected="all names of the data in any order, or as many others",
            try_=f"custom_config={{'classes': {known}}}",
        )
    remark = ("classes-renamed", ", ".join(f"{old} is {new}" for old, new in zip(known, said)))
    return Labels(tuple(said), {number: number for number in range(len(known))}, (remark,))


@dataclass(frozen=True)
class Spelled:
    """Reads a row with the names of its classes in the place of their numbers.

    Args:
        read: reads a row whose classes are names.
        known: what the numbers of a column mean.
    """

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    known: Mapping[str, Sequence[str]]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row; what is no number of a class stays as it is."""
        named = {
            column: names[row[column]]
            for column, names in self.known.items()
            if isinstance(row.get(column), int) and 0 <= row[column] < len(names)
        }
        return self.read(Sample({**row, **named}, place=getattr(row, "place", None)))
