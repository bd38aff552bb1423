# SPDX-License-Identifier: Apache-2.0
"""Six datasets by name: what their rows mean, and where they are found.

A preset's rows come from `path`, a file or folder of its name here, the cache of the `datasets` library, or the hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.text.content import COMPLETIONS, NO_TEXT, PROMPTS, separated
from fewbit.data.types import Issue, Sample, SampleError

CUSTOM = "custom_dataset"
TEXT_STEPS = ("tokenization", "masking", "truncation", "padding")
_SUFFIXES = ("", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".zip")
_SENTIMENT = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}


@dataclass(frozen=True)
class DatasetPreset:
    """One dataset by name.

    Args:
        columns: what its rows have to have, each with the other names that a source may have given it.
        prompt: template of the prompt.
        prompt_with_input: template for rows with a text in the column `input`.
        completion: the column to be written after the prompt; `None` for a text with its class.
        hub: its name on the hub, and `hub_config` which configuration of it.
        validation_split: what the data calls the split to validate on.
        steps: what is done to its rows by default.
    """

    name: str
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompt: str = ""
    prompt_with_input: str | None = None
    completion: str | None = None
    task: str | None = "text-generation"
    hub: str | None = None
    hub_config: str | None = None
    validation_split: str | None = None
    steps: tuple[str, ...] = TEXT_STEPS
    classes: tuple[str, ...] | None = None

    def read(self, row: Sample) -> Sample:
        """A row as a prompt with its completion, or a text with its class.

        Raises:
            SampleError: it lacks something.
        """
        if self.completion is None:
            label = _SENTIMENT.get(str(row.get("label")).strip().lower())
            if label is None:  # -1 in the unsupervised split
                raise _unusable(f"the label is {row.get('label')!r}, neither negative nor positive")
            return {"text": text_of(row, "text"), "label": label}
        texts = {column: text_of(row, column, *others) for column, others in self.columns.items()}
        completion = texts.pop(self.completion)
        texts = {column: text.strip() for column, text in texts.items()}
        extra = row.get("input")
        if self.prompt_with_input is not None and isinstance(extra, str) and extra.strip():
            return {"prompt": self.prompt_with_input.format(**texts, input=extra.strip()), "completion": completion}
        return {"prompt": self.prompt.format(**texts), "completion": completion}


_ALPACA = "Below is an instruction that describes a task{}. Write a response that appropriately completes the request."
_ALPACA_INPUT = _ALPACA.format(", paired with an input that provides further context")
PRESETS = {
    preset.name: preset
    for preset in (
        DatasetPreset(
            "gsm8k", {"question": ("prompt",), "answer": ("completion",)}, "Question: {question}\nAnswer:\n",
            completion="answer", hub="openai/gsm8k", hub_config="main", validation_split="test",
        ),
        DatasetPreset(
            "imdb", {"text": (), "label": ()}, task="text-classification", hub="stanfordnlp/imdb",
            validation_split="test", steps=("tokenization", "truncation", "padding"), classes=("negative", "positive"),
        ),
        DatasetPreset(
            "alpaca", {"instruction": (), "output": ()},
            _ALPACA.format("") + "\n\n### Instruction:\n{instruction}\n\n### Response:\n",
            _ALPACA_INPUT + "\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
            completion="output", hub="tatsu-lab/alpaca",
        ),
        DatasetPreset(
            "samsum", {"dialogue": ("text",), "summary": ("text_pair",)},
            "Summarize this dialog:\n{dialogue}\n---\nSummary:\n", completion="summary", hub="knkarthick/samsum",
        ),
        DatasetPreset(
            "grammar", {"input": ("text",), "target": ("text_pair", "output")},
            "Correct this to standard English: {input}\n---\nCorrected:\n", completion="target",
        ),
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
    local = next((preset.name + suffix for suffix in _SUFFIXES if Path(preset.name + suffix).exists()), None)
    if path is not None or local is not None:
        return Origin(preset, path or local)
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
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    cache = os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")
    folder = Path(cache).expanduser() / hub.replace("/", "___")
    folders = {path.parent for name in (config, "default", "plain_text") for path in folder.glob(f"{name}/*/*/*.arrow")}
    return max(folders, key=lambda path: (path.stat().st_mtime, path.name), default=None)


@dataclass(frozen=True)
class PresetRows:
    """Rows as a preset means them; labels that the source numbered have their names back first."""

    preset: DatasetPreset
    classes: tuple[str, ...] | None = None

    def __call__(self, row: Sample) -> Sample:
        label = row.get("label")
        if self.classes is not None and isinstance(label, int | np.integer) and 0 <= label < len(self.classes):
            row = row | {"label": self.classes[label]}
        return self.preset.read(row)


class CustomRows:
    """User rows: what the first rows have is required of every row.

    Args:
        first: some rows.
        separator: between a prompt and a completion that would touch.
        classes: names of labels that are text, in order.
    """

    def __init__(self, first: Sequence[Sample], separator: str, classes: Sequence[str] | None):
        names = {name for row in first for name in row if isinstance(row[name], str | None)}
        prompt, completion = (next((n for n in group if n in names), None) for group in (PROMPTS, COMPLETIONS))
        in_context = any("context" in row for row in first)
        self._pair = (prompt, completion) if prompt and completion and not in_context else None
        self._text = self._pair is None and any(isinstance(row.get("text"), str) for row in first)
        self._labeled = any(row.get("label") not in (None, "", -1) for row in first)
        self._separator = separator
        self._numbers = None if classes is None else {name: number for number, name in enumerate(classes)}

    def __call__(self, row: Sample) -> Sample:
        """The same row; prompt and completion under these names, labels as numbers.

        Raises:
            SampleError: it lacks something.
        """
        if self._pair is not None:
            prompt, completion = (text_of(row, name) for name in self._pair)
            extra = row.get("input") if self._pair[0] == "instruction" else None
            if isinstance(extra, str) and extra.strip():
                prompt = f"{prompt}\n{extra}"
            others = {name: value for name, value in row.items() if name not in (*self._pair, "input")}
            return {"prompt": separated(prompt, completion, self._separator), "completion": completion, **others}
        if self._text:
            text_of(row, "text")
        return row | {"label": self._number(row.get("label"))} if self._labeled else row

    def _number(self, label: Any) -> Any:
        if label in (None, "", -1):
            raise _unusable("the label is missing")
        if self._numbers is None:
            return label
        if str(label) not in self._numbers:
            raise _unusable(f"label {label!r} is none of {', '.join(self._numbers)}")
        return self._numbers[str(label)]


def text_of(row: Sample, *names: str) -> str:
    """The text of a column, under the first of its names that the row has.

    Raises:
        SampleError: it is missing, empty, or no text.
    """
    value = next((row[name] for name in names if name in row), None)
    if value is None:
        raise _unusable(f"{names[0]!r} is missing")
    if not isinstance(value, str):
        raise _unusable(f"{names[0]!r} is {type(value).__name__}, not text")
    if not value.strip():
        raise _unusable(f"{names[0]!r} is empty")
    return value


def _unusable(reason: str) -> SampleError:
    return SampleError(Issue(NO_TEXT, reason))
