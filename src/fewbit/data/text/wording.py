# SPDX-License-Identifier: Apache-2.0
"""What a row says: a chat, two texts that belong together, or one text, by the names of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fewbit.data.tables import chat
from fewbit.data.tables.layout import recognise
from fewbit.errors import UsageError, nearest

TRY = (
    "--text-column NAME; in Python text_column='NAME', which quantize and compress_weights take as "
    "advanced_parameters={'text_column': 'NAME'}"
)
"""How somebody says where the text is."""
_ASKED = ("prompt", "instruction", "input")
_ANSWERED = ("completion", "output", "chosen")  # what was rejected is nothing the model should be good at


@dataclass(frozen=True)
class Said:
    """What one row says.

    Args:
        texts: the texts, one after the other; of a chat the contents of its messages.
        messages: the same as messages under our names, where there are turns.
        tools: what a chat says that may be called.
        label: which class the row is said to be of; none where no column says it in a whole number.
    """

    texts: tuple[str, ...]
    messages: list[dict[str, Any]] | None = None
    tools: Any = None
    label: int | None = None


class Wording:
    """Where rows keep their text, found once on the first of them.

    Args:
        first: the first rows.
        column: the column that holds the text, instead of those that look like it.
        answers: names of columns that may say which class a row is of.

    Attributes:
        columns: the columns that are read.
        unused: columns that hold text too, and are not read.

    Raises:
        UsageError: no such column, or none that looks like text.

    >>> Wording([{"prompt": "1 + 1?", "response": "2"}])({"prompt": "2 + 2?", "response": "4"}).texts
    ('2 + 2?', '4')
    """

    def __init__(
        self, first: Sequence[Mapping[str, Any]], column: str | None = None, answers: frozenset[str] = frozenset()
    ):
        self._parts = {"text": column} if column is not None else _parts(first)
        self.columns = list(self._parts.values())
        self._answers = answers - set(self.columns)
        names = list(dict.fromkeys(name for row in first for name in row))
        missing = [name for name in self.columns if name not in names]
        if missing or not self.columns:
            raise UsageError(
                f"the rows have no column {missing[0]!r}" if missing else "the rows do not say which column is text",
                where="rows of text",
                expected=nearest(missing[0] if missing else "text", names),
                try_=TRY,
            )
        self.unused = [
            name for name in names if name not in self.columns and any(isinstance(row.get(name), str) for row in first)
        ]

    def __call__(self, row: Mapping[str, Any]) -> Said:
        """What a row says; nothing, if its columns are empty."""
        found = {part: row.get(name) for part, name in self._parts.items()}
        messages, label = _turns(found), self._label(row)
        if messages is None:
            return Said(tuple(text for text in found.values() if isinstance(text, str) and text), label=label)
        texts = tuple(text for message in messages if (text := text_of(message["content"])))
        return Said(texts, messages, row.get("tools") or None, label)

    def _label(self, row: Mapping[str, Any]) -> int | None:
        """The class that the one column says which is called like an answer."""
        given = [row[name] for name in row if name in self._answers]
        whole = len(given) == 1 and isinstance(given[0], Integral) and not isinstance(given[0], bool)
        return int(given[0]) if whole else None


def text_of(content: Any) -> str:
    """The text of a message, also of one that is made of parts.

    >>> text_of([{"type": "image"}, {"type": "text", "text": "What is this?"}])
    'What is this?'
    """
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("text"))
    return content if isinstance(content, str) else ""


def _parts(first: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = recognise(first)
    if found.name in ("columns", "text-label") and "text" not in found.columns:
        texts = [name for name in first[0] if isinstance(first[0][name], str)]
        return {"text": texts[0]} if len(texts) == 1 else {}  # of several any may be an identifier
    return {part: name for part, name in found.columns.items() if part not in ("label", "rejected")}


def _turns(found: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a row that is a chat, or that asks and answers."""
    whole = next((value for part in ("messages", "text") if chat.is_chat(value := found.get(part))), None)
    if whole is not None:
        return chat.normalised(whole)[0]
    answers = [turn for part in _ANSWERED for turn in _as_turns(found.get(part), "assistant")]
    if not answers or any(turn["role"] == "user" for turn in answers):
        return answers or None
    asked = [found.get(part) for part in _ASKED]
    turns = [turn for value in asked if chat.is_chat(value) for turn in _as_turns(value, "user")]
    words = "\n\n".join(value for value in asked if isinstance(value, str) and value)
    return [*turns, *_as_turns(words, "user"), *answers]


def _as_turns(value: Any, role: str) -> list[dict[str, Any]]:
    if chat.is_chat(value):
        return chat.normalised(value)[0]
    return [{"role": role, "content": value}] if isinstance(value, str) and value else []
