# SPDX-License-Identifier: Apache-2.0
"""`generate_dataset_config`: which data, which steps, which settings. Everything wrong is reported at once.

>>> config = generate_dataset_config([{"text": "one"}, {"text": "two"}], [], {"seed": 3})
>>> len(config.open()), config.custom_config.seed
(2, 3)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from fewbit.data.dataset import Dataset
from fewbit.data.loading.presets import PRESETS, Origin, origin_of
from fewbit.data.loading.steps import step_of_setting, step_problems
from fewbit.data.text.tokenizer import BYTES, load_tokenizer
from fewbit.data.types import Action
from fewbit.errors import FewbitWarning, UsageError, nearest
from fewbit.settings import Settings, SettingsError, read_file

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
_as_text = BeforeValidator(lambda value: str(value) if isinstance(value, os.PathLike) else value)
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], _as_tuple]
Numbers = Annotated[tuple[float, ...], _as_tuple, Field(min_length=1, max_length=4)]


class CustomConfig(Settings):  # type: ignore[metaclass]
    """Settings of a dataset configuration; those of a step are only allowed if the step is listed.

    Args:
        path: file or folder of the rows; by default a file of the preset's name, its cache, or the hub.
        data_format: how to read it; detected by default.
        data_option: settings of the format, such as `{"delimiter": ";"}`.
        on_error: what to do about damaged samples.
        columns: which column is the prompt, completion, text, label, messages …
        classes: names of the classes in the model's order; sorted by default.
        task: what the samples are for.
        separator: between a prompt and a completion that would touch.
        train_split: what the data calls the split to train on.
        validation_split: what it calls the split to validate on.
        validation_ratio: share of train that becomes validation where the data has none; 0 keeps every row in train.
        seed: of everything that is drawn.
        tokenizer: folder, hub name, `bytes`, or a tokenizer.
        max_length: maximum tokens per sample.
        batch_size: samples per batch.
        shuffle: a new order in every epoch; only for train by default.
        drop_last: leave out a last batch that is not full.
        workers: processes that prepare batches; 0 prepares them in this one.
        start_method: how these processes start: `fork`, `spawn` or `forkserver`; the platform's way by default.
        require_device: an unavailable device is an error.
        add_eos: whether a text that is learned ends with the end-of-text token.
        chat_template: instead of the tokenizer's.
        cache_tokens: keep tokens on disk for the next run.
        mask_prompt: do not learn prompts and the turns of others.
        mask_calculator: do not learn what follows `=` in `<<48/2=24>>`.
        padding: `True`, `longest`, `max_length`, `False`, or `{"multiple_of": k}`.
        padding_side: the tokenizer's by default.
        packing_long: what to do about samples longer than a row: `error`, `split` or `drop`.
        grouping_pool: batches of like length are made from this many batches' samples.
    """

    path: Annotated[str | None, _as_text] = None
    data_format: str | None = None
    data_option: dict[str, Any] = Field({})
    on_error: Action | dict[str, Action] | None = None
    columns: dict[str, str] = Field({})
    classes: Names | None = None
    task: str | None = None
    separator: str = "\n"
    train_split: str | None = None
    validation_split: str | None = None
    validation_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    tokenizer: Annotated[Any, _as_text] = None
    max_length: Count | None = None
    batch_size: Count | None = None
    shuffle: bool | None = None
    drop_last: bool = False
    workers: Annotated[int, Field(ge=0)] = 0
    start_method: Literal["fork", "spawn", "forkserver"] | None = None
    require_device: bool = False
    # tokenization, masking, padding
    add_eos: bool = True
    chat_template: str | None = None
    cache_tokens: bool = True
    mask_prompt: bool = True
    mask_calculator: bool = False
    padding: bool | Literal["longest", "max_length", "none"] | dict[Literal["multiple_of"], Count] | None = None
    padding_side: Literal["left", "right"] | None = None
    # packing, length_grouping
    packing_long: Literal["error", "split", "drop"] = "error"
    grouping_pool: Count = 100
    # filtering
    filter_min_length: Count | None = None
    filter_max_length: Count | None = None
    filter_empty: bool | Names = True
    filter_include: dict[str, str] = Field({})
    filter_exclude: dict[str, str] = Field({})
    filter_function: Any = None
    # sampling
    sampling_count: Count | None = None
    sampling_share: Share | None = None
    sampling_by: str | None = None
    sampling_weights: str | dict[str, float] | None = None
    sampling_splits: Names = ("train",)
    # mixing
    mixing_with: Annotated[tuple[Any, ...], _as_tuple] = ()
    mixing_weights: Annotated[tuple[float, ...], _as_tuple] | None = None
    mixing_stop: Literal["first", "all"] = "first"
    # augmentation
    augment_columns: Names | None = None
    augment_characters: Share = 0.02
    augment_words: Share = 0.05
    augment_case: Share = 0.05
    augment_flip: Share = 0.5
    augment_flip_vertical: Share = 0.0
    augment_crop: Annotated[float, Field(gt=0, le=1)] = 0.8
    augment_color: Share = 0.2
    # rescaling
    image_size: Count | Annotated[tuple[Count, Count], _as_tuple] | None = None
    image_mean: Numbers | None = None
    image_std: Numbers | None = None

    def contradictions(self) -> list[tuple[str, str]]:
        """Settings that are wrong together."""
        weights, datasets = self.mixing_weights, len(self.mixing_with) + 1
        by_value = self.sampling_weights == "balanced" or isinstance(self.sampling_weights, dict)
        no_length = self.max_length is None and self.tokenizer is None
        rules = (
            ("sampling_share", self.sampling_count is not None and self.sampling_share is not None,
             "either sampling_count or sampling_share"),
            ("sampling_weights", by_value and self.sampling_by is None,
             "needs sampling_by, the column whose values have these weights"),
            ("mixing_weights", weights is not None and len(weights) != datasets,
             f"{len(weights or ())} weights for {datasets} datasets, its own included"),
            ("mixing_weights", weights is not None and min(weights, default=1) <= 0, "weights must be above 0"),
            ("padding", self.padding == "max_length" and no_length,
             "'max_length' needs max_length, the length to pad to"),
            ("image_std", self.image_std is not None and min(self.image_std) <= 0, "must be above 0"),
        )  # fmt: skip
        wrong = [(name, text) for name, broken, text in rules if broken]
        for name in ("filter_include", "filter_exclude"):
            for column, pattern in getattr(self, name).items():
                try:
                    re.compile(pattern)
                except re.error as error:
                    wrong.append((name, f"{pattern!r} for {column!r} is no regular expression: {error}"))
        return wrong


class DatasetConfig(Settings):  # type: ignore[metaclass]
    """Which data, and what is done to it. Frozen; `replace` makes another one.

    Args:
        dataset_name: a preset, a path, a URL, a hub name, `FILE.py:FUNCTION`, or an object with samples.
        preprocessing_steps: names of steps and `FILE.py:FUNCTION`, in order; `None` for the preset's.
        custom_config: everything else.
    """

    dataset_name: Annotated[Any, _as_text]
    preprocessing_steps: Names | None = None
    custom_config: CustomConfig = CustomConfig()

    def contradictions(self) -> list[tuple[str, str]]:
        """What is wrong with the name, the steps and their order, and settings that no step reads."""
        settings, steps = self.custom_config, self.preprocessing_steps
        wrong = [("preprocessing_steps", text) for text in step_problems(steps or ())]
        if isinstance(self.dataset_name, str) and (problem := _name_problem(self.dataset_name, settings.path)):
            wrong.append(("dataset_name", problem))
        for name in sorted(settings.model_fields_set) if steps is not None else ():
            step = step_of_setting(name)
            if step is not None and step not in (steps or ()):
                wrong.append(("custom_config", f"{name} is read by the step {step!r} only, which is not listed"))
        if "mixing" in (steps or ()) and not settings.mixing_with:
            wrong.append(("custom_config", "mixing_with must name at least one dataset to mix with"))
        if "packing" in (steps or ()) and settings.max_length is None:
            wrong.append(("custom_config", "packing needs max_length, the tokens of a row"))
        return wrong

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From plain data; mistakes in the settings do not hide those in the name and the steps."""
        problems: list[tuple[str, str]] = []
        settings = values.get("custom_config")
        if isinstance(settings, Mapping):
            try:
                CustomConfig(**settings)
            except SettingsError as error:
                problems += [(f"custom_config.{path}", text) for path, text in error.problems]
                wrong = {re.split(r"[.\[]", path)[0] for path, _ in error.problems}
                settings = {name: value for name, value in settings.items() if name not in wrong}
                values = {**values, "custom_config": settings}
        try:
            config = cls(**values)
        except SettingsError as error:
            problems += error.problems
        if problems:
            raise SettingsError(cls.__name__, problems)
        return config

    @property
    def origin(self) -> Origin:
        """Where the rows come from, and how they are read."""
        return origin_of(self.dataset_name, self.custom_config.path)

    def open(self, split: str | None = "train") -> Dataset:
        """The prepared samples of a split.

        Args:
            split: `train`, `validation`, another name that the data has, or `None` for every row.
        """
        from fewbit.data.loading.prepare import prepare

        return prepare(self, split).dataset()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded when it is first used."""
        return load_tokenizer(BYTES if self.custom_config.tokenizer is None else self.custom_config.tokenizer)

    def replace(self, **settings: Any) -> DatasetConfig:
        """The same with other settings; `preprocessing_steps` and `dataset_name` too."""
        arguments = {name: settings.pop(name, getattr(self, name)) for name in ("dataset_name", "preprocessing_steps")}
        custom = {name: getattr(self.custom_config, name) for name in self.custom_config.model_fields_set}
        return DatasetConfig(**arguments, custom_config=custom | settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the names of `generate_dataset_config`.

        Raises:
            UsageError: data, tokenizer or function is an object, which has no name to be found by.
        """
        custom = {
            name: getattr(self.custom_config, name)
            for name, field in CustomConfig.model_fields.items()
            if getattr(self.custom_config, name) != field.default
        }
        values = {"dataset_name": self.dataset_name, "preprocessing_steps": self.preprocessing_steps}
        values |= {"custom_config": custom or None}
        return {name: _plain(name, value) for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """JSON that `from_yaml` reads to an equal object."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def fingerprint(self) -> str:
        """Equal for equal settings, in every process; objects count by their type."""
        try:
            content = self.to_json()
        except UsageError:
            content = repr(self)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        name = self.dataset_name if isinstance(self.dataset_name, str) else f"<{type(self.dataset_name).__name__}>"
        steps = "the preset's" if self.preprocessing_steps is None else list(self.preprocessing_steps)
        settings = [f"{field}={getattr(self.custom_config, field)!r}" for field in self.custom_config.model_fields_set]
        shown = [text if len(text) <= 80 else f"{text[:77]}..." for text in sorted(settings)]
        return f"DatasetConfig({', '.join([repr(name), f'steps={steps}', *shown])})"

    __str__ = __repr__


def generate_dataset_config(
    dataset_name: Any,
    preprocessing_steps: Sequence[str] | None = (),
    custom_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> DatasetConfig:
    """Describe fine-tuning data. Every mistake is reported at once, with what was probably meant.

    Args:
        dataset_name: a preset (`gsm8k`, `imdb`, `alpaca`, `samsum`, `grammar`, `custom_dataset`), a path, a URL, a hub
            name, `FILE.py:FUNCTION`, an object with samples, or a `.yaml` file or mapping with all three arguments.
        preprocessing_steps: names of steps or `FILE.py:FUNCTION`, in order; the preset's by default, none for [].
        custom_config: settings by name, or a `.yaml` or `.json` file of them; see `CustomConfig`.

    Raises:
        SettingsError: names that do not exist, values that do not fit, steps in an impossible order.
    """
    if isinstance(dataset_name, Mapping) and "dataset_name" in dataset_name:
        config = DatasetConfig.from_dict(dataset_name)
    elif isinstance(dataset_name, str | os.PathLike) and str(dataset_name).endswith((".yaml", ".yml")):
        config = DatasetConfig.read(str(dataset_name))
    else:
        settings = read_file(str(custom_config)) if isinstance(custom_config, str | os.PathLike) else custom_config
        if not isinstance(settings, Mapping | None):
            text = f"expected settings by name, or a file of them, got {type(settings).__name__}"
            raise SettingsError("DatasetConfig", [("custom_config", text)])
        steps = list(preprocessing_steps) if isinstance(preprocessing_steps, tuple) else preprocessing_steps
        values = {"dataset_name": dataset_name, "custom_config": dict(settings or {})}
        config = DatasetConfig.from_dict(values | {"preprocessing_steps": None if preprocessing_steps == () else steps})
    if config.origin.example_rows:
        hint = "custom_config={'path': …}, or a path as dataset_name"
        warning = FewbitWarning("no data is named: ten example rows are used", code="example-rows", hint=hint)
        warnings.warn(warning, stacklevel=2)
    if config.custom_config.tokenizer is None and "tokenization" in (config.preprocessing_steps or ()):
        hint = "custom_config={'tokenizer': the model's folder}"
        warning = FewbitWarning("no tokenizer is named: bytes are used as tokens", code="byte-tokenizer", hint=hint)
        warnings.warn(warning, stacklevel=2)
    return config


def _name_problem(name: str, path: str | None) -> str | None:
    """Why a dataset cannot be found by its name, as far as that is known without reading anything."""
    preset = PRESETS.get(name)
    if preset is not None:
        if origin_of(name, path).data is not None:
            return None
        columns = ", ".join(preset.columns)
        return f"{name} is not on the hub and no file has its name; path= names one with the columns {columns}"
    elsewhere = path is not None or ":" in name[2:]  # a URL, a hub name, FILE.py:FUNCTION; not the drive of a path
    if elsewhere or re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).expanduser().exists():
        return None
    similar = nearest(name, PRESETS)
    guess = f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"presets: {', '.join(PRESETS)}"
    return f"there is no preset, file or folder {name!r}; {guess}"


def _plain(name: Any, value: Any) -> Any:
    if isinstance(value, tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        plain = {key: _plain(key if name == "custom_config" else name, item) for key, item in items}
        return plain if isinstance(value, dict) else list(plain.values())
    if isinstance(value, DatasetConfig):
        return value.to_dict()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if name == "tokenizer" and getattr(value, "name_or_path", None):
        return str(value.name_or_path)
    raise UsageError(
        f"{name} is an object of type {type(value).__name__} and cannot be written", code="config-object", param=name,
        expected="a name, a path, or FILE.py:FUNCTION", hint="save it and give its path",
    )  # fmt: skip
