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
"""Keys that must not be empty; an instruction may do without an input."""

Rows = Sequence[Row]


@dataclass(frozen=True)
class RowLayout:
    """What rows are.

    Args:
        name: `chat`, `text-label`, `image` and so on.
        roles: the column of each key of a sample, such as `{"text": "review", "label": "stars"}`.
    """

    name: str
    roles: Mapping[str, str]

    def __str__(self) -> str:
        roles = ", ".join(key if key == column else f"{key} = {column}" for key, column in self.roles.items())
        return f"{self.name} ({roles})" if roles else self.name


def recognize(rows: Rows, *, text: str | None = None, label: str | None = None) -> RowLayout:
    """The layout of a table by its first rows.

    Args:
        rows: a few of them.
        text: the text column, if the user named it.
        label: the label column, if the user named it.

    >>> str(recognize([{"text": "good", "label": 1}]))
    'text-label (text, label)'
    >>> str(recognize([{"conversations": [{"from": "human", "value": "hi"}]}]))
    'chat (messages = conversations)'
    """
    names = {name.lower(): name for name in reversed(union(row.keys() for row in rows))}
    columns = _Columns(names, rows, label)
    if text is not None:
        roles = {"text": text, **columns.label(text)}
        return RowLayout("text-label" if "label" in roles else "text", roles)
    for name, find in _FINDERS.items():
        roles_found = find(columns)
        if roles_found is not None:
            return RowLayout(name, roles_found)
    return RowLayout("columns", columns.label() if label else {})


class _Columns:
    """Columns by their lower-case names, and the first rows."""

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

    def label(self, *excluded: str) -> dict[str, str]:
        """The role of the label column, unless that column is excluded."""
        if self.label_column is not None:
            return {"label": self.label_column}
        column = next(
            (self.names[name] for name in _LABELS if name in self.names and self.names[name] not in excluded), None
        )
        return {"label": column} if column else {}

    def pair(self, pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        for first, second in pairs:
            if first in self.names and second in self.names:
                columns = self.names[first], self.names[second]
                if all(map(self.is_text, columns)):
                    return columns
        return None


def _chat(columns: _Columns) -> dict[str, str] | None:
    column = columns.first(chat.COLUMNS, lambda name: any(map(chat.is_chat, columns.values(name))))
    return {"messages": column} if column else None


def _preference(columns: _Columns) -> dict[str, str] | None:
    if "chosen" not in columns.names or "rejected" not in columns.names:
        return None
    prompt = columns.first(("prompt", "question"))
    return {
        **({"prompt": prompt} if prompt else {}),
        "chosen": columns.names["chosen"],
        "rejected": columns.names["rejected"],
    }


def _token_tags(columns: _Columns) -> dict[str, str] | None:
    tokens, tags = columns.first(_TOKENS, columns.is_list), columns.first(_TAGS, columns.is_list)
    return {"tokens": tokens, "tags": tags} if tokens and tags else None


def _question_answering(columns: _Columns) -> dict[str, str] | None:
    if not all(name in columns.names for name in ("question", "context", "answers")):
        return None
    return {name: columns.names[name] for name in ("question", "context", "answers")}


def _media(columns: _Columns, candidates: Sequence[str], suffixes: tuple[str, ...], key: str) -> dict[str, str] | None:
    """A column of file names; by its name, or the only column that holds such values."""
    column = columns.first(candidates, lambda name: names_files(columns.values(name), suffixes))
    if column is None:
        matches = [name for name in columns.names.values() if names_files(columns.values(name), suffixes)]
        column = matches[0] if len(matches) == 1 else None
    if column is None:
        return None
    caption = columns.first(_CAPTIONS, lambda name: name != column and columns.is_text(name))
    return {key: column, **columns.label(column), **({"text": caption} if caption else {})}


def names_files(values: Sequence[Any], suffixes: tuple[str, ...]) -> bool:
    """Whether values are names of files, by their suffixes.

    >>> names_files(["a/1.jpg", "b.PNG"], IMAGE_SUFFIXES), names_files(["see a.jpg", "b"], IMAGE_SUFFIXES)
    (True, False)
    """
    texts = [value for value in values if isinstance(value, str) and value]
    return bool(texts) and len(texts) == len(values) and all(text.lower().endswith(suffixes) for text in texts)


def _image(columns: _Columns) -> dict[str, str] | None:
    return _media(columns, IMAGES, IMAGE_SUFFIXES, "image")


def _audio(columns: _Columns) -> dict[str, str] | None:
    return _media(columns, AUDIO, AUDIO_SUFFIXES, "audio")


def _labeled_pair(columns: _Columns) -> dict[str, str] | None:
    pair = columns.pair(_PAIRS)
    label = columns.label(*pair) if pair else {}
    return {"text": pair[0], "text_pair": pair[1], **label} if pair and label else None


def _instruction(columns: _Columns) -> dict[str, str] | None:
    if "instruction" not in columns.names or "output" not in columns.names:
        return None
    return {name: columns.names[name] for name in ("instruction", "input", "output") if name in columns.names}


def _prompt(columns: _Columns) -> dict[str, str] | None:
    pair = columns.pair(_PROMPTS)
    return {"prompt": pair[0], "completion": pair[1]} if pair else None


def _pair(columns: _Columns) -> dict[str, str] | None:
    pair = columns.pair(_PAIRS)
    return {"text": pair[0], "text_pair": pair[1]} if pair else None


def _text_label(columns: _Columns) -> dict[str, str] | None:
    label = columns.label()
    if not label:
        return None
    text = columns.first(_TEXTS, lambda name: name != label["label"] and columns.is_text(name))
    text_columns = [name for name in columns.names.values() if name != label["label"] and columns.is_text(name)]
    text = text or max(text_columns, key=lambda name: _mean_length(columns.values(name)), default=None)
    # A column of numbers in a CSV is text too, but no text to classify.
    return {"text": text, **label} if text and not _numeric(columns.values(text)) else None


def _text(columns: _Columns) -> dict[str, str] | None:
    text = columns.first(_TEXTS, columns.is_text)
    if text is None and len(columns.names) == 1:
        text = next(iter(columns.names.values()))
        text = text if columns.is_text(text) and not _numeric(columns.values(text)) else None
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
