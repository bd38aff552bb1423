# SPDX-License-Identifier: Apache-2.0
"""Six datasets by name: what their rows mean, and where they are found.

A preset's rows come from `path`, a file or folder of its name here, the cache of the `datasets` library, or the hub.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit.data.text.content import COMPLETIONS, NO_TEXT, PROMPTS, separated
from fewbit.data.types import Issue, Sample, SampleError

CUSTOM = "custom_dataset"
TEXT_STEPS = ("tokenization", "masking", "truncation", "padding")
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".zip")

Example = Callable[[Sample], Sample]


@dataclass(frozen=True)
class DatasetPreset:
    """One dataset by name.

    Args:
        name: as users write it.
        columns: what its rows have to have.
        example: a row as a prompt with its completion, or a text with its class.
        task: what it is for.
        hub: its name on the hub.
        hub_config: which configuration of it.
        splits: what the data calls the splits to train and to validate on.
        steps: what is done to its rows by default.
        classes: names of its labels.
    """

    name: str
    columns: tuple[str, ...] = ()
    example: Example | None = None
    task: str | None = "text-generation"
    hub: str | None = None
    hub_config: str | None = None
    splits: Mapping[str, str] | None = None
    steps: tuple[str, ...] = TEXT_STEPS
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Origin:
    """Where rows come from.

    Args:
        preset: what they mean.
        data: what `open_source` takes; `None` if there is nothing.
        data_option: what opening it takes.
        example_rows: whether they are built-in example rows, because no data was named.
    """

    preset: DatasetPreset
    data: Any
    data_option: Mapping[str, Any] = field(default_factory=dict)
    example_rows: bool = False


def origin_of(dataset_name: Any, path: str | None) -> Origin:
    """The origin of a dataset by its name; nothing is read."""
    preset = PRESETS.get(dataset_name) if isinstance(dataset_name, str) else None
    if preset is None:
        return Origin(PRESETS[CUSTOM], dataset_name if path is None else path)
    if path is not None:
        return Origin(preset, path)
    candidates = [Path(preset.name), *(Path(preset.name + suffix) for suffix in _SUFFIXES)]
    local = next((candidate for candidate in candidates if candidate.exists()), None)
    if local is not None:
        return Origin(preset, str(local))
    if preset.name == CUSTOM:
        return Origin(preset, [dict(row) for row in EXAMPLE_ROWS], example_rows=True)
    if preset.hub is None:
        return Origin(preset, None)
    cached = cached_dataset(preset.hub, preset.hub_config or "default")
    if cached is not None:
        return Origin(preset, str(cached))
    return Origin(preset, f"hf:{preset.hub}", {"config": preset.hub_config} if preset.hub_config else {})


def cached_dataset(hub: str, config: str) -> Path | None:
    """The newest folder of a hub dataset in the cache of the `datasets` library, which needs no network then."""
    cache = os.environ.get("HF_DATASETS_CACHE")
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    folder = Path(cache or os.path.join(home, "datasets")).expanduser() / hub.replace("/", "___")
    folders = {path.parent for name in (config, "default", "plain_text") for path in folder.glob(f"{name}/*/*/*.arrow")}
    return max(folders, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def field_of(row: Sample, *names: str) -> str:
    """The text of a column, under the first of its names that the row has.

    Raises:
        SampleError: it is missing, empty, or no text.
    """
    name = next((name for name in names if name in row), None)
    value = None if name is None else row[name]
    if value is None:
        raise SampleError(Issue(NO_TEXT, f"{names[0]!r} is missing"))
    if not isinstance(value, str):
        raise SampleError(Issue(NO_TEXT, f"{names[0]!r} is {type(value).__name__}, not text"))
    if not value.strip():
        raise SampleError(Issue(NO_TEXT, f"{names[0]!r} is empty"))
    return value


def _gsm8k(row: Sample) -> Sample:
    question = field_of(row, "question", "prompt").strip()
    return {"prompt": f"Question: {question}\nAnswer:\n", "completion": field_of(row, "answer", "completion")}


def _alpaca(row: Sample) -> Sample:
    instruction, extra = field_of(row, "instruction"), row.get("input")
    task = "Below is an instruction that describes a task"
    request = "Write a response that appropriately completes the request."
    if isinstance(extra, str) and extra.strip():
        task += f", paired with an input that provides further context. {request}"
        prompt = f"{task}\n\n### Instruction:\n{instruction}\n\n### Input:\n{extra}\n\n### Response:\n"
    else:
        prompt = f"{task}. {request}\n\n### Instruction:\n{instruction}\n\n### Response:\n"
    return {"prompt": prompt, "completion": field_of(row, "output")}


def _samsum(row: Sample) -> Sample:
    dialogue = field_of(row, "dialogue", "text")
    return {
        "prompt": f"Summarize this dialog:\n{dialogue}\n---\nSummary:\n",
        "completion": field_of(row, "summary", "text_pair"),
    }


def _grammar(row: Sample) -> Sample:
    sentence = field_of(row, "input", "text").strip()
    prompt = f"Correct this to standard English: {sentence}\n---\nCorrected:\n"
    return {"prompt": prompt, "completion": field_of(row, "target", "text_pair", "output")}


_SENTIMENT = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}


def _imdb(row: Sample) -> Sample:
    label = _SENTIMENT.get(str(row.get("label")).strip().lower())
    if label is None:  # -1 in the unsupervised split
        raise SampleError(Issue(NO_TEXT, f"the label is {row.get('label')!r}, neither negative nor positive"))
    return {"text": field_of(row, "text"), "label": label}


PRESETS = {
    preset.name: preset
    for preset in (
        DatasetPreset(
            "gsm8k", ("question", "answer"), _gsm8k, hub="openai/gsm8k", hub_config="main", splits={"val": "test"},
        ),
        DatasetPreset(
            "imdb", ("text", "label"), _imdb, "text-classification", "stanfordnlp/imdb", splits={"val": "test"},
            steps=("tokenization", "truncation", "padding"), classes=("negative", "positive"),
        ),
        DatasetPreset("alpaca", ("instruction", "output"), _alpaca, hub="tatsu-lab/alpaca"),
        DatasetPreset("samsum", ("dialogue", "summary"), _samsum, hub="knkarthick/samsum"),
        DatasetPreset("grammar", ("input", "target"), _grammar),
        DatasetPreset(CUSTOM, task=None),
    )
}  # fmt: skip

EXAMPLE_ROWS = tuple(
    {"prompt": f"What is {first} {word} {second}?", "completion": f"{first} {word} {second} is {result}."}
    for first, word, second, result in (
        (2, "plus", 3, 5), (7, "minus", 4, 3), (6, "times", 2, 12), (9, "plus", 8, 17), (10, "minus", 1, 9),
        (3, "times", 3, 9), (5, "plus", 6, 11), (8, "minus", 8, 0), (4, "times", 5, 20), (1, "plus", 1, 2),
    )
)  # fmt: skip
"""Rows for trying out the three calls without data."""


class CustomRows:
    """User rows: fields of the first rows are required of every row.

    Args:
        first: some rows; a field that one of them has is required of all.
        separator: between a prompt and a completion that would touch.
        classes: names of labels that are text, in order.
    """

    def __init__(self, first: Sequence[Sample], separator: str, classes: Sequence[str] | None):
        names = {name for row in first for name in row}
        prompt = next((name for name in PROMPTS if name in names), None)
        completion = next((name for name in COMPLETIONS if name in names), None)
        texts = all(isinstance(row.get(name) or "", str) for row in first for name in (prompt, completion) if name)
        self._pair = (prompt, completion) if prompt and completion and texts and "context" not in names else None
        self._text = self._pair is None and isinstance(next((row["text"] for row in first if "text" in row), None), str)
        self._labeled = any(row.get("label") not in (None, "", -1) for row in first)
        self._separator = separator
        self._classes = None if classes is None else {name: number for number, name in enumerate(classes)}

    def __call__(self, row: Sample) -> Sample:
        """The same row; prompt and completion under these names.

        Raises:
            SampleError: it lacks something.
        """
        if self._pair is not None:
            prompt, completion = (field_of(row, name) for name in self._pair)
            extra = row.get("input") if self._pair[0] == "instruction" else None
            if isinstance(extra, str) and extra.strip():
                prompt = f"{prompt}\n{extra}"
            extra_fields = {name: value for name, value in row.items() if name not in (*self._pair, "input")}
            return {"prompt": separated(prompt, completion, self._separator), "completion": completion, **extra_fields}
        if self._text:
            field_of(row, "text")
        if self._labeled and "image" not in row:
            return row | {"label": self._number(row.get("label"))}
        return row

    def _number(self, label: Any) -> Any:
        if self._classes is not None and str(label) in self._classes:
            return self._classes[str(label)]
        if label is None or label == "" or (isinstance(label, int) and label < 0) or self._classes is not None:
            raise SampleError(Issue(NO_TEXT, "the label is missing" if label in (None, "", -1) else f"label {label!r}"))
        return label
