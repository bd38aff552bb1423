# SPDX-License-Identifier: Apache-2.0
"""`generate_dataset_config`: which data, which steps, which options, checked whole and then fixed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import yaml

from fewbit.data.dataset import Dataset
from fewbit.data.prepared import prepare
from fewbit.data.preparing import fingerprints
from fewbit.data.preparing.checking import checked, keys_of, read_options
from fewbit.data.preparing.frozen import thaw
from fewbit.data.preparing.origin import Origin, find_origin
from fewbit.data.preparing.step_list import find_steps
from fewbit.data.text.named_tokenizer import NamedTokenizer
from fewbit.errors import UsageError
from fewbit.registry import is_reference

_PARTS = ("dataset_name", "preprocessing_steps", "custom_config")


@dataclass(frozen=True, eq=False)
class DatasetConfig:
    """Which data, and what is done to it. It cannot be changed; `replace` makes another.

    Args:
        name: as it was given: a preset, a plug-in, a path, a hub id; of an object, what it is.
        steps: names of steps, in order.
        options: every key of `custom_config`, defaults filled in.
        data: the name, or the object itself.
    """

    name: str
    steps: tuple[str, ...]
    options: Mapping[str, Any]
    data: Any = field(repr=False)

    def open(self, split: str | None = "train") -> Dataset:
        """The prepared samples of a split, lazily.

        Args:
            split: `"train"`; `"validation"`, never a sample of train; a name of the files' own; none for everything.
        """
        return Dataset(prepare(self.data, self.steps, thaw(self.options), self._named, split))

    def tokenizer(self) -> Any:
        """The tokenizer, opened when it is first asked for, the same one every time."""
        return self._named()

    @property
    def task(self) -> str | None:
        """What the samples are for, if it is said or the preset knows."""
        preset = self.origin.preset
        return self.options["task"] or getattr(preset, "TASK", None)

    @property
    def origin(self) -> Origin:
        """Where the rows come from."""
        return find_origin(self.data, self.options["path"])

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not what they are by default."""
        defaults = {key.name: thaw(key.default) for key in keys_of(self.origin, find_steps(self.steps)[0])}
        return {name: value for name, value in thaw(self.options).items() if value != defaults.get(name)}

    @property
    def fingerprint(self) -> str:
        """A digest of the content: of the data's files, the user's code, the tokenizer and the options.

        The same in every process, and wherever the files lie.
        """
        content = fingerprints.of_place(self.origin.place)
        steps = [fingerprints.of_reference(name) if is_reference(name) else name for name in self.steps]
        options = {name: value for name, value in thaw(self.options).items() if name != "path"}
        return fingerprints.combine(content or self.name, steps, fingerprints.of_options(options))

    def replace(self, **custom_config: Any) -> DatasetConfig:
        """The same with some options changed; `steps` changes the steps."""
        steps = custom_config.pop("steps", self.steps)
        return DatasetConfig(*checked(self.data, list(steps), {**self.given, **custom_config}))

    def describe(self) -> str:
        """What will be done, for people."""
        about = [
            f"dataset    {self.name}",
            f"from       {self.origin.how}",
            f"task       {self.task or 'by its columns'}",
        ]
        about += [f"step {number:<6}{name}" for number, name in enumerate(self.steps, 1)]
        given, options = self.given, thaw(self.options)
        about += [f"{name:<10} {value!r}" for name, value in given.items()]
        rest = [f"{name}={value!r}" for name, value in options.items() if name not in given and value is not None]
        return "\n".join([*about, f"by default {', '.join(rest)}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of `generate_dataset_config`.

        Raises:
            UsageError: the data or the tokenizer is an object that has no name.
        """
        if not isinstance(self.data, str):
            raise UsageError(
                f"the data is an object, {self.name}, and has no name to be found by",
                expected="a path or a hub id",
                try_="save it (dataset.save_to_disk(folder)) and name the folder",
            )
        return dict(zip(_PARTS, (self.data, list(self.steps), {n: _named(n, v) for n, v in self.given.items()})))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        if not isinstance(values, Mapping) or not values.keys() <= set(_PARTS) or "dataset_name" not in values:
            raise UsageError(
                f"this is no dataset configuration: {list(values) if isinstance(values, Mapping) else values!r}",
                expected=f"{', '.join(_PARTS)}",
            )
        given, wrong = read_options(values.get("custom_config"))
        return cls(*checked(values["dataset_name"], values.get("preprocessing_steps"), given, wrong))

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, content: str | bytes) -> Self:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(content))

    def to_yaml(self) -> str:
        """As YAML."""
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True))

    @classmethod
    def from_yaml(cls, content: str | bytes) -> Self:
        """The inverse of `to_yaml`; the safe loader only."""
        return cls.from_dict(yaml.safe_load(content))

    def __eq__(self, other: object) -> bool:
        """Whether they are the same data, prepared the same way; of objects, the very same one."""
        if not isinstance(other, DatasetConfig):
            return NotImplemented
        same = self.data is other.data or (isinstance(self.data, str) and self.data == other.data)
        return same and (self.name, self.steps, self.options) == (other.name, other.steps, other.options)

    def __hash__(self) -> int:
        return hash((self.name, self.steps))

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.given.items())
        return f"DatasetConfig({self.name!r}, steps={list(self.steps)}{given})"

    __str__ = __repr__

    @cached_property
    def _named(self) -> NamedTokenizer:
        return NamedTokenizer(self.options["tokenizer"])


def generate_dataset_config(
    dataset_name: Any,
    preprocessing_steps: Sequence[str] | None = None,
    custom_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> DatasetConfig:
    """Say which data is prepared how. Everything that is wrong is said at once.

    Args:
        dataset_name: a preset (`gsm8k`, `imdb`, …), a plug-in, `custom_dataset`, a path of any format that opens, an id
            on the Hugging Face hub, `"file.py:function"`, or a dataset that is open already.
        preprocessing_steps: names of steps or `"file.py:function"`, in order; if none, the preset's.
        custom_config: options by name, or a `.yaml` or `.json` file of them.

    Raises:
        UsageError: every fault, each with what was probably meant.

    >>> generate_dataset_config([{"text": "one"}, {"text": "two"}], [], {"seed": 3}).open(None)[1]
    {'text': 'two'}
    """
    given, wrong = read_options(custom_config)
    return DatasetConfig(*checked(dataset_name, preprocessing_steps, given, wrong, warn=True))


def _named(name: str, value: Any) -> Any:
    """An option as a plain value."""
    if hasattr(value, "to_dict") and hasattr(value, "fingerprint"):
        return value.to_dict()
    if name == "tokenizer" and not isinstance(value, str):
        folder = getattr(value, "name_or_path", None)
        if not folder:
            raise UsageError(
                "the tokenizer is an object without a name", try_="save_pretrained(folder), and the folder"
            )
        return str(folder)
    if callable(value):
        raise UsageError(f"{name} is an object, {value!r}, and cannot be written", try_="'file.py:function'")
    return value
