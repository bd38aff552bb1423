# SPDX-License-Identifier: Apache-2.0
"""What rows are for, by the names and values of their columns: a chat, a pair of texts, a text and its label, an image.

Decided on the first rows, written into the report, and never binding: `text_column`, `label_column`, `columns` and
`task` choose otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fewbit.data.images.signatures import image_format
from fewbit.data.rows import chat, labels
from fewbit.data.rows.media import MEDIA_MISSING, OBJECTS, BoxTable, Media, names_files
from fewbit.data.rows.shards import are_stems
from fewbit.data.rows.table import Row, Table, field_location, nested, union
from fewbit.data.splits import split_of_file
from fewbit.data.tasks import find_task
from fewbit.data.types import DataReport, Depth, Files, IssueType, Location, Severity
from fewbit.errors import UsageError, nearest

if TYPE_CHECKING:
    from fewbit.data.rows.arrow import Features

TEXT_KEYS = (
    "text", "text_pair", "prompt", "completion", "instruction", "output", "chosen", "rejected", "question", "context",
)  # fmt: skip
"""Keys that must not be empty; an instruction may do without an input."""
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "star", "stars")
TAGS = ("tags", "ner_tags", "pos_tags", "labels")
CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2"))
_TEXTS = ("text", "sentence", "content", "review", "document", "body", "comment", "tweet", "article")
_CAPTIONS = ("text", "caption", "captions", "prompt")
_MEDIA = {
    "image": ("image", "images", "img", "image_path", "image_file", "file_name", "filename", "file", "path", "filepath",
              "picture"),
    "audio": ("audio", "audio_path", "wav", "file_name", "filename", "file", "path", "filepath"),
}  # fmt: skip
_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "context"), ("question", "sentence"),
    ("question", "answer"), ("text_a", "text_b"), ("text1", "text2"), ("query", "passage"), ("anchor", "positive"),
    ("source", "target"), ("input", "target"),
)  # fmt: skip
_PROMPTS = (
    ("prompt", "completion"), ("prompt", "response"), ("instruction", "response"), ("input", "output"),
    ("question", "answer"),
)  # fmt: skip


@dataclass(frozen=True)
class RowLayout:
    """What rows are."""

    name: str  # `chat`, `text-label`, `image` and so on
    roles: Mapping[str, str]  # the column of each key of a sample, such as `{"text": "review", "label": "stars"}`

    def __str__(self) -> str:
        roles = ", ".join(key if key == column else f"{key} = {column}" for key, column in self.roles.items())
        return f"{self.name} ({roles})" if roles else self.name


class _Pattern(NamedTuple):
    """A layout by its columns."""

    name: str  # of the layout
    roles: Mapping[str, Sequence[str]]  # candidates of each key's column; a key that ends with `?` may be missing
    holds: str = "anything"  # what the columns must hold: text, list, chat or anything
    labeled: bool = False  # a label column is needed too


_QUESTION = {name: (name,) for name in ("question", "context", "answers")}
_STRUCTURED = (
    _Pattern("chat", {"messages": chat.COLUMNS}, "chat"),
    _Pattern("preference", {"prompt?": ("prompt", "question"), "chosen": ("chosen",), "rejected": ("rejected",)}),
    _Pattern("token-tags", {"tokens": ("tokens", "words"), "tags": TAGS}, "list"),
    _Pattern("question-answering", _QUESTION),
)
_TEXTUAL = (
    _Pattern("instruction", {"instruction": ("instruction",), "input?": ("input",), "output": ("output",)}),
    *(_Pattern("text-pair", {"text": (a,), "text_pair": (b,)}, "text", True) for a, b in _PAIRS),
    *(_Pattern("prompt-completion", {"prompt": (a,), "completion": (b,)}, "text") for a, b in _PROMPTS),
    *(_Pattern("unlabeled-pair", {"text": (a,), "text_pair": (b,)}, "text") for a, b in _PAIRS),
)
_HOLDS: dict[str, Callable[[list[Any]], bool]] = {
    "anything": lambda values: True,
    "text": lambda values: 2 * sum(isinstance(value, str) for value in values) > len(values),  # a few may be odd
    "list": lambda values: bool(values) and all(isinstance(value, list) for value in values),
    "chat": lambda values: any(map(chat.is_chat, values)),
}


def recognize(
    rows: Sequence[Row], *, text: str | None = None, label: str | None = None, images: Media | None = None,
    media: Mapping[str, Media] | None = None,
) -> RowLayout:  # fmt: skip
    """The layout of a table by its first rows.

    >>> str(recognize([{"text": "good", "label": 1}]))
    'text-label (text, label)'
    >>> str(recognize([{"conversations": [{"from": "human", "value": "hi"}]}]))
    'chat (messages = conversations)'
    """
    columns = _Columns(rows, label)
    if images is not None:
        return RowLayout("image", columns.media_roles("image", images.columns[0]))
    if text is not None:
        roles = {"text": text, **columns.label(text)}
        return RowLayout("text-label" if "label" in roles else "text", roles)
    for pattern in _STRUCTURED:
        if (roles_found := columns.match(pattern)) is not None:
            return RowLayout(pattern.name, roles_found)
    for kind in _MEDIA:
        column = columns.media(kind, media[kind] if media else None)
        if column is not None:
            boxes = columns.boxes() if kind == "image" else {}
            return RowLayout("boxes" if boxes else kind, {**columns.media_roles(kind, column), **boxes})
    for pattern in _TEXTUAL:
        if (roles_found := columns.match(pattern)) is not None:
            return RowLayout(pattern.name, roles_found)
    return columns.text_layout()


class _Columns:
    """Columns by their lower-case names, and the first rows."""

    def __init__(self, rows: Sequence[Row], label_column: str | None):
        self.names = {name.lower(): name for name in reversed(union(row.keys() for row in rows))}
        self.rows, self.label_column = rows, label_column

    def values(self, column: str) -> list[Any]:
        values = (nested(row, column) for row in self.rows)
        return [value for value in values if value is not None]

    def is_text(self, column: str) -> bool:
        return _HOLDS["text"](self.values(column))

    def first(self, candidates: Sequence[str], holds: str = "anything", *excluded: str) -> str | None:
        columns = (self.names[name] for name in candidates if name in self.names)
        return next((name for name in columns if name not in excluded and _HOLDS[holds](self.values(name))), None)

    def label(self, *excluded: str) -> dict[str, str]:
        """The role of the label column, unless that column is excluded."""
        column = self.label_column or self.first(LABELS, "anything", *excluded)
        return {"label": column} if column else {}

    def match(self, pattern: _Pattern) -> dict[str, str] | None:
        """The roles of a pattern, if all columns are there."""
        roles: dict[str, str] = {}
        for key, candidates in pattern.roles.items():
            column = self.first(candidates, pattern.holds)
            if column is not None:
                roles[key.rstrip("?")] = column
            elif not key.endswith("?"):
                return None
        if pattern.labeled:
            label = self.label(*roles.values())
            return {**roles, **label} if label else None
        return roles

    def media(self, kind: str, files: Media | None) -> str | None:
        """The column of file names: by its name, or the only one with such values, or one of ids of files there."""
        names = [column for column in self.names.values() if names_files(self.values(column), kind)]
        named = next((self.names[name] for name in _MEDIA[kind] if self.names.get(name) in names), None)
        if named is not None or len(names) == 1:
            return named or names[0]
        if names or files is None or not files.names:
            return None
        stems = set(files.stems)
        return next((column for column in self.names.values() if self._holds_stems(column, stems)), None)

    def _holds_stems(self, column: str, stems: set[str]) -> bool:
        values = self.values(column)
        return are_stems(list(dict.fromkeys(map(str, values))) if self.boxes() else list(map(str, values)), stems)

    def media_roles(self, kind: str, column: str) -> dict[str, str]:
        """Roles of a file, its label and its caption; the only other column is a label whatever it is called."""
        caption = self.first(_CAPTIONS, "text", column)
        roles = {kind: column, **self.label(column), **({"text": caption} if caption else {})}
        others = [name for name in self.names.values() if name != column]
        if len(roles) == 1 and len(others) == 1 and self.is_text(others[0]):
            roles["label"] = others[0]
        return roles

    def boxes(self) -> dict[str, str]:
        """The columns of the corners of boxes."""
        corners = next((corners for corners in CORNERS if set(corners) <= set(self.names)), ())
        return dict(zip(CORNERS[0], (self.names[corner] for corner in corners)))

    def text_layout(self) -> RowLayout:
        """A text with or without a label, else just columns, of which one may be a label."""
        label = self.label()
        column = label.get("label", "")
        text = self.first(_TEXTS, "text", column)
        if label and text is None:
            texts = [name for name in self.names.values() if name != column and self.is_text(name)]
            text = max(texts, key=lambda name: sum(len(str(value)) for value in self.values(name)), default=None)
        if not label and text is None and len(self.names) == 1:
            text = self.first(list(self.names), "text")
        # A column of numbers in a CSV is text too, but no text to classify.
        if text is not None and ((text.lower() in _TEXTS and not label) or not _numeric(self.values(text))):
            return RowLayout("text-label" if label else "text", {"text": text, **label})
        is_class = self.label_column is not None or all(map(_like_class, self.values(column)))
        return RowLayout("columns", label if label and is_class else {})


def _numeric(values: Sequence[Any]) -> bool:
    try:
        return bool([float(value) for value in values if isinstance(value, str) and value])
    except ValueError:
        return False


def _like_class(value: Any) -> bool:
    """Whether a value of a table of numbers may be a class: a name or an integer."""
    if isinstance(value, str):
        return value.removeprefix("-").isdecimal() or not _numeric([value])
    return isinstance(value, int | list)


_HEAD_ROWS = 100
_TASKS = {
    "text-label": "text-classification",
    "token-tags": "token-classification",
    "question-answering": "question-answering",
    **dict.fromkeys(("chat", "preference", "instruction", "prompt-completion", "text"), "text-generation"),
}
_LABEL_TASKS = ("text-classification", "image-classification", "audio-classification")
_GENERATION_TASKS = ("text-generation", "masked-language-modeling", "information-retrieval")

NO_ROWS = IssueType("no-rows", Severity.ERROR, "table without a row", "check how the file was written", "raise")
NO_COLUMN = IssueType(
    "no-column", Severity.ERROR, "column that is in none of the first rows", "check its spelling", "raise", ("keep",)
)
CLASSES_DIFFER = IssueType(
    "classes-differ", Severity.ERROR, "number that is one class in one split and another in the next",
    "cast the splits to the same features", "raise", ("keep",),
)  # fmt: skip
ISSUES = (NO_ROWS, NO_COLUMN, CLASSES_DIFFER)


@dataclass
class RowPlan:
    """How rows become samples."""

    layout: RowLayout  # which column plays which role
    projection: Mapping[str, str] | None = None  # key and column of what the user selected; `None` for all columns
    classes: Sequence[str] | None = None  # the class names of the user, or of the features
    numbers: bool = False  # labels are numbers to predict
    media: Media | None = None  # the files an image or audio column names or holds
    split: str | None = None  # the only one to read
    split_column: str | None = None  # says the split of each row
    task: str | None = None  # what the user, else the layout, says
    object_names: Sequence[str] | None = None  # classes of boxes

    def project(self, row: Row) -> Row:
        """The columns the user selected."""
        if self.projection is None:
            return row
        return {key: nested(row, column) for key, column in self.projection.items()}

    @property
    def label_column(self) -> str | None:
        """The column of labels or tags."""
        return self.layout.roles.get("label") or self.layout.roles.get("tags")


def make_plan(
    table: Table, files: Files | None, report: DataReport, depth: Depth, options: Mapping[str, Any],
    features: Sequence[Features], local_paths: bool,
) -> tuple[Table, RowPlan]:  # fmt: skip
    """What to do with the rows of a table, by its first rows; a table of boxes becomes one of images."""
    plan = RowPlan(RowLayout("columns", {}), _projection(options.get("columns")), split=options.get("split"))
    first_rows = _head(table)
    head = [plan.project(row) for row in first_rows]
    if not head and not report.raising():
        report.add(NO_ROWS, "there is no row that can be used", Location(files.root if files is not None else ""))
    text, label = (str(options[name]) if options.get(name) else None for name in ("text_column", "label_column"))
    task = options.get("task")
    task = find_task(task).name if isinstance(task, str) and ":" not in task else None
    _report_missing_columns(text, label, plan.projection, first_rows, head, report)
    plan.numbers = options.get("label_type") == "number"
    classes = options.get("classes")
    plan.classes = [name.strip() for name in classes.split(",")] if isinstance(classes, str) else classes
    label = _use_features(plan, table, features, label, report)
    images = _image_columns(first_rows, table, features)
    table.embedded = images
    plan.media = Media("image", images, files, local_paths=local_paths) if images else None
    is_folder = files is not None and len(files.names()) > 1  # a lone table may lie anywhere
    named = {kind: Media(kind, (), files) for kind in ("image", "audio")} if is_folder and not images else None
    layout = recognize(head, text=text, label=label, images=plan.media, media=named)
    if task in _GENERATION_TASKS and layout.name in ("text-label", "text-pair"):
        layout = RowLayout("text", {"text": layout.roles["text"]})
    if layout.name == "boxes":
        corners = [layout.roles[corner] for corner in CORNERS[0]]
        table = boxes = BoxTable(table, layout.roles["image"], layout.roles.get("label"), corners, report)
        layout, plan.object_names = RowLayout("image", {"image": "image"}), boxes.classes
        head = boxes.fetch(range(min(len(boxes), _HEAD_ROWS)))
    plan.layout = layout
    if layout.name in ("image", "audio") and plan.media is None:
        plan.media = Media(layout.name, (layout.roles[layout.name],), files)
        if depth == "index" and head:  # `full` looks at every file
            _check_first_files(plan.media, head, table, report)
    if head and task in _LABEL_TASKS and "label" not in layout.roles:
        report.add(labels.NO_LABEL, f"the columns are {', '.join(list(head[0])[:20])}", table.location(0))
    inferred = _TASKS.get(layout.name)
    if plan.media is not None:
        is_detection = plan.media.kind == "image" and OBJECTS in table.columns
        inferred = f"{layout.name}-classification" if "label" in layout.roles else None
        inferred = "object-detection" if is_detection else inferred
    plan.task = task or inferred
    values = [row.get("split") for row in head]
    if head and table.split(0) is None and all(isinstance(value, str) and split_of_file(value) for value in values):
        plan.split_column = "split"
    report.facts["layout"] = str(layout)
    return table, plan


def _head(table: Table) -> list[Row]:
    """The first rows."""
    rows: list[Row] = []
    for _, block in table.blocks():
        rows.extend(islice(block, _HEAD_ROWS - len(rows)))
        if len(rows) >= _HEAD_ROWS or len(block) >= _HEAD_ROWS:
            break
    return rows


def _projection(selected: Any) -> dict[str, str] | None:
    """Key and column for each column the user selected; `text=body,label`, a list or a mapping.

    >>> _projection("text=body, label"), _projection(["a"])
    ({'text': 'body', 'label': 'label'}, {'a': 'a'})
    """
    if selected is None:
        return None
    if isinstance(selected, str):
        fields = (item.partition("=") for item in selected.split(","))
        pairs = {key.strip(): (column if equals else key).strip() for key, equals, column in fields}
    elif isinstance(selected, Mapping):
        pairs = dict(selected)
    else:
        pairs = {str(name): str(name) for name in selected}
    if not pairs or not all(isinstance(name, str) and name for pair in pairs.items() for name in pair):
        raise UsageError(
            f"columns cannot be {selected!r}", code="data-option", param="data_option", expected="names of columns",
            hint="{data_option=columns=text=body,label}",
        )  # fmt: skip
    return pairs


def _report_missing_columns(
    text: str | None, label: str | None, projection: Mapping[str, str] | None, first_rows: Sequence[Row],
    head: Sequence[Row], report: DataReport,
) -> None:  # fmt: skip
    selected = [(name, head) for name in (text, label)] + [(name, first_rows) for name in (projection or {}).values()]
    for name, rows in selected:
        names = union(row.keys() for row in rows)
        if name is not None and rows and name not in names and name.split(".")[0] not in names:
            suggestions = ", ".join(nearest(name, names) or names[:20])
            report.add(NO_COLUMN, f"no column {name!r}; there are {suggestions}", Location(field=name))


def _use_features(
    plan: RowPlan, table: Table, features: Sequence[Features], label: str | None, report: DataReport
) -> str | None:
    """Take class names from the features; returns the label column."""
    names: dict[str, list[str]] = {}
    for feature in features:
        for column, column_names in (feature.classes | feature.tags).items():
            if names.setdefault(column, column_names) != column_names:
                message = f"the splits name the classes of {column!r} differently"
                report.add(CLASSES_DIFFER, message, Location(field=column))
    plan.object_names = next((feature.objects for feature in features if feature.objects), None)
    classes = {column for feature in features for column in feature.classes}
    tags = names.keys() - classes
    named = label or next((name for name in LABELS if name in table.columns), None)
    if label is None and (named is None or named in tags):
        candidates = (*(name for name in TAGS if name in tags), *(name for name in table.columns if name in classes))
        named = next(iter(candidates), None)
    if named not in names or plan.classes is not None or plan.numbers:
        return label  # numbers or names without an explanation
    plan.classes = names[named]
    return named if named in classes else label


def _image_columns(rows: Sequence[Row], table: Table, features: Sequence[Features]) -> tuple[str, ...]:
    """Columns that hold images: those that say so, and those whose first value begins like one."""
    images = [name for name in table.columns if any(name in feature.images for feature in features)]
    others = {name for feature in features for name in feature.others}
    for name, value in rows[0].items() if rows else ():
        content = value.get("bytes") if isinstance(value, dict) else value
        if name not in images and name not in others and isinstance(content, bytes) and image_format(content[:64]):
            images.append(name)
    return tuple(sorted(images, key=lambda name: name != "image"))


def _check_first_files(media: Media, head: Sequence[Row], table: Table, report: DataReport) -> None:
    """A table whose files are all missing is no table of texts: say so before anything else is read."""
    column = media.columns[0]
    values = [nested(row, column) for row in head]
    location = field_location(table, 0, column)
    if not any(not isinstance(value, str) or media.find(value, location.file) for value in values):
        message = f"none of the first {len(values)} files is there, such as {str(values[0])[:100]!r}"
        report.add(MEDIA_MISSING, message, location, samples=len(values))
