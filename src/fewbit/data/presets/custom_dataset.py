# SPDX-License-Identifier: Apache-2.0
"""Rows of your own: prompts and answers, chats, texts with or without a label, pictures; by the names of the columns.

Also what paths, hub ids and objects are read as. Which columns are which is told by their names, and
`custom_config={"columns": {"prompt": "question", "answer": "solution"}}` says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fewbit.data.keys import Key, optional
from fewbit.data.preparing.class_names import Rows, numbered
from fewbit.data.preparing.picture_rows import one_known, read_pictures
from fewbit.data.presets import alpaca
from fewbit.data.presets._base import TEXT_STEPS, text_in
from fewbit.data.tables import chat
from fewbit.data.tables.labels import UNLABELED
from fewbit.data.tables.layout import Layout, recognise
from fewbit.errors import DataError, UsageError


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) == len(set(map(str, value)))


HUB = None
SPLITS = {"train": "train", "validation": "validation"}
TASK = None
STEPS = TEXT_STEPS
KEYS = (
    Key("separator", "\n", "a text", lambda value: isinstance(value, str), "between a prompt and an answer that touch"),
    Key("classes", None, "a list of names", optional(_are_names), "in the order of their numbers; sorted, if not said"),
)
COLUMNS: tuple[str, ...] = ()
FIELDS = ("prompt", "answer", "text", "label", "messages", "words", "tags", "question", "context", "answers", "image")
"""What columns can be."""

SAMPLE = [
    {"prompt": f"What is {a} {word} {b}?", "answer": f"{a} {word} {b} is {result}."}
    for a, word, b, result in (
        (2, "plus", 3, 5), (7, "minus", 4, 3), (6, "times", 2, 12), (9, "plus", 8, 17), (10, "minus", 1, 9),
        (3, "times", 3, 9), (5, "plus", 6, 11), (8, "minus", 8, 0), (4, "times", 5, 20), (1, "plus", 1, 2),
    )
]  # fmt: skip
"""Rows for whoever has none yet."""

Reader = Callable[[Mapping[str, Any]], dict[str, Any]]


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """One row by its own columns alone."""
    return fitted([row], options)(row)


def fitted(
    first: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    learned: Rows | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
) -> Reader:
    """What reads the rows of a dataset, chosen by the first of them.

    Args:
        first: the first rows, under our names where `columns` says which are which.
        options: `task`, `separator` and `classes` are read.
        learned: all rows to learn from, for the names of their classes.
        known: of columns whose numbers are classes with names, the names.

    Raises:
        UsageError: the columns do not say what they are.
    """
    task, separator = options.get("task"), options.get("separator", "\n")
    names = list(dict.fromkeys(name for row in first for name in row))
    classes, known = options.get("classes"), known or {}
    if "image" in names or "input_ids" in names or (first and all(map(are_numbers, first))):
        return read_pictures(first, task, classes, known)
    if task == "token_classification":
        words = next((name for name in ("words", "tokens") if name in names), "words")
        tags = next((name for name in ("tags", "ner_tags", "pos_tags", "labels") if name in names), "tags")
        return numbered(partial(_words, words=words, tags=tags), tags, first, learned, classes, known.get(tags))
    if task == "question_answering":
        return _answers_in_context
    if {"prompt", "answer"} <= set(names):
        return partial(_pair, asked="prompt", answered="answer", separator=separator)
    layout = recognise(first)
    if "label" not in layout.columns and (one := one_known(known, first)):
        layout = recognise(first, label=one)
    read = _by_layout(layout, names, task, separator)
    column = read.keywords.get("label") if isinstance(read, partial) else None
    return read if column is None else numbered(read, column, first, learned, classes, known.get(column))


def are_numbers(row: Mapping[str, Any]) -> bool:
    """Whether a row is numbers and arrays of them, and nothing that has to be prepared.

    >>> are_numbers({"pixels": [0.5, 1.0], "label": 3}), are_numbers({"text": "three"})
    (True, False)
    """
    return all(_kind(value) in "biuf" for value in row.values())


def _kind(value: Any) -> str:
    try:
        return np.asarray(value).dtype.kind
    except ValueError:  # lists of different lengths
        return "O"


def _by_layout(layout: Layout, names: list[str], task: str | None, separator: str) -> Reader:
    of = layout.columns
    labelled = "label" in of and task in (None, "sequence_classification")
    if layout.name == "chat":
        return partial(_messages, column=of["messages"])
    if layout.name == "instruction":
        return partial(alpaca.example, options={})
    for asked, answered in (("prompt", "completion"), ("prompt", "chosen"), ("first", "second")):
        if asked in of and answered in of and not (asked == "first" and labelled):
            return partial(_pair, asked=of[asked], answered=of[answered], separator=separator)
    if "first" in of:
        return partial(_text, texts=(of["first"], of["second"]), label=of["label"], separator=separator)
    if "text" not in of:
        raise UsageError(
            f"the columns {', '.join(names) or '(none)'} do not say which is the text",
            where="custom_config['columns']",
            expected=f"a name for one of {', '.join(FIELDS)}",
            try_="custom_config={'columns': {'prompt': 'your column', 'answer': 'another'}}",
        )
    return partial(_text, texts=(of["text"],), label=of["label"] if labelled else None, separator=separator)


def _text(row: Mapping[str, Any], texts: tuple[str, ...], label: str | None, separator: str) -> dict[str, Any]:
    text = separator.join(text_in(row, column) for column in texts)
    return {"text": text} if label is None else {"text": text, "label": _label(row, label)}


def _pair(row: Mapping[str, Any], asked: str, answered: str, separator: str) -> dict[str, Any]:
    prompt, answer = text_in(row, asked), text_in(row, answered)
    touch = not prompt[-1].isspace() and not answer[0].isspace()
    return {"prompt": prompt + separator if touch else prompt, "answer": answer}


def _label(row: Mapping[str, Any], column: str) -> int:
    value = row.get(column)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise DataError(
            f"the label in {column!r} is {'not there' if value in (None, '', UNLABELED) else repr(value)}",
            code="bad-row",
            expected="one class, by its name or its number",
        )
    return int(value)


def _messages(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    messages, faults = chat.normalised(row.get("messages", row.get(column)))
    if faults:
        raise DataError("; ".join(message for _, message in faults), code=faults[0][0])
    return {"messages": messages}


def _words(row: Mapping[str, Any], words: str, tags: str) -> dict[str, Any]:
    given, said = row.get(words), row.get(tags)
    if not isinstance(given, list) or not isinstance(said, list) or len(given) != len(said) or not given:
        raise DataError(f"{words!r} and {tags!r} are not lists of one length", code="bad-row")
    odd = next((tag for tag in said if not isinstance(tag, int) or tag < 0), None)
    if odd is not None:
        raise DataError(f"a tag in {tags!r} is {odd!r}", code="bad-row", expected="a class a word")
    return {"words": [str(word) for word in given], "tags": said}


def _answers_in_context(row: Mapping[str, Any]) -> dict[str, Any]:
    given = row.get("answers")
    given = given if isinstance(given, Mapping) else {"text": [row.get("answer")], "answer_start": [None]}
    context, texts = text_in(row, "context"), list(given.get("text") or [])
    if not texts or not isinstance(texts[0], str):
        raise DataError("there is no answer", code="bad-row", expected="a text that stands in the context")
    start = next(iter(given.get("answer_start") or [None]))
    start = context.find(texts[0]) if start is None else int(start)
    if start < 0 or context[start : start + len(texts[0])] != texts[0]:
        raise DataError(f"the answer {texts[0][:40]!r} is not where it is said to be", code="bad-row")
    return {"question": text_in(row, "question"), "context": context, "start": start, "end": start + len(texts[0])}
