# SPDX-License-Identifier: Apache-2.0
"""What rows are for, told by the names of their columns: a chat, an instruction, a pair of texts, a text and its label.

The choice is made on the first rows, always printed, and never binding: `layout=` names another, `label=` and
`columns=` name the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.tables import chat
from fewbit.errors import UsageError, nearest

_PAIRS = (
    ("sentence1", "sentence2"),
    ("question", "answer"),
    ("question", "context"),
    ("premise", "hypothesis"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("query", "passage"),
    ("anchor", "positive"),
    ("source", "target"),
    ("input", "target"),
)
_PROMPTS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "response"), ("input", "output"))
_TEXTS = ("text", "sentence", "content", "review", "document", "body", "comment", "tweet")
_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "star", "stars")

USUAL_NAMES = frozenset({*_TEXTS, *_LABELS}.union(*_PAIRS, *_PROMPTS, ("instruction", "chosen", "rejected")))
"""What the columns of datasets are called."""

LAYOUTS = ("chat", "preference", "instruction", "prompt-completion", "text-pair", "text-label", "text", "columns")

TEXT_PARTS = ("text", "first", "second", "prompt", "completion", "instruction", "output", "chosen", "rejected")
"""The parts a row must fill to be of use; an instruction may do without an input."""

Rows = Sequence[Mapping[str, Any]]
Parts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """What rows are.

    Args:
        name: one of `LAYOUTS`.
        columns: which column plays which part, such as `{"text": "review", "label": "stars"}`.
    """

    name: str
    columns: Mapping[str, str]

    def __str__(self) -> str:
        parts = ", ".join(part if part == column else f"{part} = {column}" for part, column in self.columns.items())
        return f"{self.name} ({parts})" if parts else self.name


def recognise(rows: Rows, *, label: str | None = None, layout: str | None = None) -> Layout:
    """The layout of a dataset by its first rows.

    Args:
        rows: a few of them.
        label: the user's own word about the label column.
        layout: the user's own word about the layout.

    >>> str(recognise([{"text": "good", "label": 1}]))
    'text-label (text, label)'
    >>> str(recognise([{"conversations": [{"from": "human", "value": "hi"}]}]))
    'chat (messages = conversations)'
    """
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}", where="layout", expected=nearest(layout, LAYOUTS))
    names = list(dict.fromkeys(name for row in rows for name in row))
    for wanted in LAYOUTS if layout is None else (layout,):
        found = _FINDERS[wanted](names, rows, label)
        if found is not None:
            return Layout(wanted, found)
    raise UsageError(
        f"the rows are not of the layout {layout!r}: their columns are {', '.join(names) or 'none'}",
        where="layout",
        try_="columns={'text': 'your_column', …} to name the parts",
    )


def _chat(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    for name in chat.COLUMNS:
        values = [row[name] for row in rows if row.get(name)]
        if values and any(map(chat.is_chat, values)):
            return {"messages": name}
    return None


def _preference(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    if "chosen" not in names or "rejected" not in names:
        return None
    prompt = next((name for name in ("prompt", "question") if name in names), None)
    return {**({"prompt": prompt} if prompt else {}), "chosen": "chosen", "rejected": "rejected"}


def _instruction(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    if "instruction" not in names or "output" not in names:
        return None
    return {name: name for name in ("instruction", "input", "output") if name in names}


def _prompt(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    for prompt, completion in _PROMPTS:
        if prompt in names and completion in names:
            return {"prompt": prompt, "completion": completion}
    return None


def _pair(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    for first, second in _PAIRS:
        if first in names and second in names and _is_text(first, rows) and _is_text(second, rows):
            return {"first": first, "second": second, **_label(names, label, (first, second))}
    return None


def _text_label(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    target = _label(names, label, ())
    if not target:
        return None
    text = _text_column(names, rows, target["label"])
    return {"text": text, **target} if text else None


def _text(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    text = _text_column([name for name in names if name in _TEXTS or len(names) == 1], rows, None)
    return {"text": text} if text else None


def _columns(names: list[str], rows: Rows, label: str | None) -> Parts | None:
    return _label(names, label, ()) if label else {}


def _label(names: list[str], label: str | None, taken: tuple[str, ...]) -> Parts:
    found = label or label_among([name for name in names if name not in taken])
    return {"label": found} if found else {}


def label_among(names: Sequence[str]) -> str | None:
    """The column that is called what label columns are called, if there is one.

    >>> label_among(["Text", "Stars"])
    'Stars'
    """
    lowered = {name.lower(): name for name in reversed(names)}
    return next((lowered[name] for name in _LABELS if name in lowered), None)


def _text_column(names: list[str], rows: Rows, label: str | None) -> str | None:
    lowered = {name.lower(): name for name in reversed(names)}
    known = [lowered[name] for name in _TEXTS if name in lowered]
    texts = [name for name in (*known, *names) if name != label and _is_text(name, rows)]
    return texts[0] if texts else None


def _is_text(name: str, rows: Rows) -> bool:
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)


_FINDERS = {
    "chat": _chat,
    "preference": _preference,
    "instruction": _instruction,
    "prompt-completion": _prompt,
    "text-pair": _pair,
    "text-label": _text_label,
    "text": _text,
    "columns": _columns,
}
