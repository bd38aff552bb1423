# SPDX-License-Identifier: Apache-2.0
"""What rows are for, by the names and values of their columns: a chat, a pair of texts, a text and its label, an image.

Decided on the first rows, written into the report, and never binding: `text_column`, `label_column`, `columns` and
`task` choose otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.rows import chat
from fewbit.data.rows.table import Row, nested, union

_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "context"),
    ("question", "sentence"),
    ("question", "answer"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("query", "passage"),
    ("anchor", "positive"),
    ("source", "target"),
    ("input", "target"),
)
_PROMPTS = (
    ("prompt", "completion"), ("prompt", "response"), ("instruction", "response"), ("input", "output"),
    ("question", "answer"),
)  # fmt: skip
_TEXTS = ("text", "sentence", "content", "review", "document", "body", "comment", "tweet", "article")
_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "star", "stars")
_TOKENS, _TAGS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
_CAPTIONS = ("text", "caption", "captions", "prompt")
IMAGES = (
    "image",
    "images",
    "img",
    "image_path",
    "image_file",
    "file_name",
    "filename",
    "file",
    "path",
    "filepath",
    "picture",
)
AUDIO = ("audio", "audio_path", "wav", "file_name", "filename", "file", "path", "filepath")
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jfif", ".jpe", ".heic",
    ".avif",
)  # fmt: skip
AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")

TEXT_KEYS = (
    "text",
    "text_pair",
    "prompt",
    "completion",
    "instruction",
    "output",
    "chosen",
    "rejected",
    "question",
    "context",
)
"""Parts that must not be empty; an instruction may do without an input."""

Rows = Sequence[Row]


@dataclass(frozen=True)
class Layout:
    """What rows are.

    Args:
        name: `chat`, `text-label`, `image` and so on.
        roles: the column behind each key of a sample, such as `{"text": "review", "label": "stars"}`.
    """

    name: str
    roles: Mapping[str, str]

    def __str__(self) -> str:
        parts = ", ".join(key if key == column else f"{key} = {column}" for key, column in self.roles.items())
        return f"{self.name} ({parts})" if parts else self.name


def recognize(rows: Rows, *, text: str | None = None, label: str | None = None, task: str | None = None) -> Layout:
    """The layout of a table by its first rows.

    Args:
        rows: a few of them.
        text: the text column, if the user named it.
        label: the label column, if the user named it.
        task: narrows the choice; `text-generation` does not want a label.

    >>> str(recognize([{"text": "good", "label": 1}]))
    'text-label (text, label)'
    >>> str(recognize([{"conversations": [{"from": "human", "value": "hi"}]}]))
    'chat (messages = conversations)'
    """
    names = {name.lower(): name for name in reversed(union(row.keys() for row in rows))}
    known = _Columns(names, rows, label)
    if text is not None:
        roles = {"text": text, **known.label(text)}
        return Layout("text-label" if "label" in roles else "text", roles)
    for name, find in _FINDERS.items():
        roles_found = find(known)
        if roles_found is not None:
            return Layout(name, roles_found)
    return Layout("columns", known.label() if label else {})


class _Columns:
    """Columns by their names in small letters, and the first rows."""

    def __init__(self, names: Mapping[str, str], rows: Rows, label_column: str | None):
        self.names, self.rows, self.label_column = names, rows, label_column

    def values(self, column: str) -> list[Any]:
        values = (nested(row, column) for row in self.rows)
        return [value for value in values if value is not None]

    def is_text(self, column: str) -> bool:
        values = self.values(column)
        return bool(values) and all(isinstance(value, str) for value in values)

    def is_list(self, column: str) -> bool:
        values = self.values(column)
        return bool(values) and all(isinstance(value, list) for value in values)

    def first(self, candidates: Sequence[str], test: Callable[[str], bool] | None = None) -> str | None:
        columns = (self.names[name] for name in candidates if name in self.names)
        return next((column for column in columns if test is None or test(column)), None)

    def label(self, *taken: str) -> dict[str, str]:
        """The role of the label column, unless a column is taken."""
        if self.label_column is not None:
            return {"label": self.label_column}
        column = next(
            (self.names[name] for name in _LABELS if name in self.names and self.names[name] not in taken), None
        )
        return {"label": column} if column else {}

    def pair(self, pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        for first, second in pairs:
            if first in self.names and second in self.names:
                columns = self.names[first], self.names[second]
                if all(map(self.is_text, columns)):
                    return columns
        return None


def _chat(known: _Columns) -> dict[str, str] | None:
    column = known.first(chat.COLUMNS, lambda name: any(map(chat.is_chat, known.values(name))))
    return {"messages": column} if column else None


def _preference(known: _Columns) -> dict[str, str] | None:
    if "chosen" not in known.names or "rejected" not in known.names:
        return None
    prompt = known.first(("prompt", "question"))
    return {
        **({"prompt": prompt} if prompt else {}),
        "chosen": known.names["chosen"],
        "rejected": known.names["rejected"],
    }


def _token_tags(known: _Columns) -> dict[str, str] | None:
    tokens, tags = known.first(_TOKENS, known.is_list), known.first(_TAGS, known.is_list)
    return {"tokens": tokens, "tags": tags} if tokens and tags else None


def _question_answering(known: _Columns) -> dict[str, str] | None:
    if not all(name in known.names for name in ("question", "context", "answers")):
        return None
    return {name: known.names[name] for name in ("question", "context", "answers")}


def _media(known: _Columns, candidates: Sequence[str], suffixes: tuple[str, ...], key: str) -> dict[str, str] | None:
    """A column of file names; by its name, or the only column that holds such values."""
    column = known.first(candidates, lambda name: names_files(known.values(name), suffixes))
    if column is None:
        columns = [name for name in known.names.values() if names_files(known.values(name), suffixes)]
        column = columns[0] if len(columns) == 1 else None
    if column is None:
        return None
    caption = known.first(_CAPTIONS, lambda name: name != column and known.is_text(name))
    return {key: column, **known.label(column), **({"text": caption} if caption else {})}


def names_files(values: Sequence[Any], suffixes: tuple[str, ...]) -> bool:
    """Whether values are names of files, by their suffixes.

    >>> names_files(["a/1.jpg", "b.PNG"], IMAGE_SUFFIXES), names_files(["see a.jpg", "b"], IMAGE_SUFFIXES)
    (True, False)
    """
    texts = [value for value in values if isinstance(value, str) and value]
    return bool(texts) and len(texts) == len(values) and all(text.lower().endswith(suffixes) for text in texts)


def _image(known: _Columns) -> dict[str, str] | None:
    return _media(known, IMAGES, IMAGE_SUFFIXES, "image")


def _audio(known: _Columns) -> dict[str, str] | None:
    return _media(known, AUDIO, AUDIO_SUFFIXES, "audio")


def _labeled_pair(known: _Columns) -> dict[str, str] | None:
    pair = known.pair(_PAIRS)
    label = known.label(*pair) if pair else {}
    return {"text": pair[0], "text_pair": pair[1], **label} if pair and label else None


def _instruction(known: _Columns) -> dict[str, str] | None:
    if "instruction" not in known.names or "output" not in known.names:
        return None
    return {name: known.names[name] for name in ("instruction", "input", "output") if name in known.names}


def _prompt(known: _Columns) -> dict[str, str] | None:
    pair = known.pair(_PROMPTS)
    return {"prompt": pair[0], "completion": pair[1]} if pair else None


def _pair(known: _Columns) -> dict[str, str] | None:
    pair = known.pair(_PAIRS)
    return {"text": pair[0], "text_pair": pair[1]} if pair else None


def _text_label(known: _Columns) -> dict[str, str] | None:
    label = known.label()
    if not label:
        return None
    text = known.first(_TEXTS, lambda name: name != label["label"] and known.is_text(name))
    others = [name for name in known.names.values() if name != label["label"] and known.is_text(name)]
    text = text or max(others, key=lambda name: _mean_length(known.values(name)), default=None)
    # A column of numbers in a CSV is text too, but nobody classifies "3.5".
    return {"text": text, **label} if text and not _numeric(known.values(text)) else None


def _text(known: _Columns) -> dict[str, str] | None:
    text = known.first(_TEXTS, known.is_text)
    if text is None and len(known.names) == 1:
        text = next(iter(known.names.values()))
        text = text if known.is_text(text) and not _numeric(known.values(text)) else None
    return {"text": text} if text else None


def _mean_length(values: Sequence[str]) -> float:
    return sum(map(len, values)) / max(1, len(values))


def _numeric(values: Sequence[str]) -> bool:
    try:
        return bool([float(value) for value in values if value])
    except ValueError:
        return False


_FINDERS: dict[str, Callable[[_Columns], dict[str, str] | None]] = {
    "chat": _chat,
    "preference": _preference,
    "token-tags": _token_tags,
    "question-answering": _question_answering,
    "image": _image,
    "audio": _audio,
    "instruction": _instruction,
    "text-pair": _labeled_pair,
    "prompt-completion": _prompt,
    "unlabeled-pair": _pair,
    "text-label": _text_label,
    "text": _text,
}
