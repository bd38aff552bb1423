# SPDX-License-Identifier: Apache-2.0
"""Nested configuration: typed, immutable, read from Python, YAML or JSON, with all errors at once and their paths.

>>> class Training(Settings):
...     epochs: int = 3
...     warmup: float = 0.1
>>> Training(epochs=2).to_dict()
{'epochs': 2}
>>> Training(epoch=2)
Traceback (most recent call last):
...
fewbit.settings.SettingsError: 1 error in Training [settings]
  where:    epoch: unknown setting; did you mean 'epochs'?
  try:      correct the setting
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from fewbit.errors import UsageError, nearest, plural

_TYPE = "fewbit"
MOST_BYTES = 16_000_000
DEEPEST = 64


class SettingsError(UsageError):
    """Wrong settings, all of them at once.

    Attributes:
        problems: pairs of a path such as `layers["*.fc1"].group_size` and what is wrong there.
    """

    def __init__(self, title: str, problems: Sequence[tuple[str, str]], *, where: str | None = None):
        listed = "; ".join(f"{path}: {text}" for path, text in problems)
        super().__init__(
            f"{plural(len(problems), 'error')} in {title}",
            code="settings",
            where=listed if where is None else f"{where}: {listed}",
            hint="correct the setting" if len(problems) == 1 else "correct the settings",
        )
        self.problems = tuple(problems)


class _Construct(type(BaseModel)):  # type: ignore[misc]
    """Turns pydantic's error into ours in the user's own call; nested models do not come through here."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        if len(args) > len(cls.model_fields):
            raise TypeError(f"{cls.__name__} takes at most {len(cls.model_fields)} arguments")
        values.update(zip(cls.model_fields, args))
        try:
            return super().__call__(**values)
        except ValidationError as error:
            problems = [(_path(detail["loc"]), detail["msg"]) for detail in error.errors()]
            raise SettingsError(cls.__name__, problems) from None


class Settings(BaseModel, metaclass=_Construct):
    """Base of every configuration: frozen, strict, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def contradictions(self) -> list[tuple[str, str]]:
        """Pairs of a field and what is wrong with it together with other fields."""
        return []

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        """Validate one level; errors of nested levels arrive with their paths and are passed on."""
        try:
            settings = handler(values)
            wrong = [_problem((name,), text) for name, text in settings.contradictions()]
        except ValidationError as error:
            wrong = [_problem(detail["loc"], cls._explain(detail)) for detail in error.errors()]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return settings

    @classmethod
    def _explain(cls, detail: Any) -> str:
        if detail["type"] == _TYPE:
            return str(detail["msg"])
        if detail["type"] == "extra_forbidden":
            similar = nearest(str(detail["loc"][-1]), cls.model_fields)
            names = " or ".join(map(repr, similar)) if similar else None
            return (
                f"unknown setting; did you mean {names}?"
                if names
                else f"unknown setting; known: {', '.join(cls.model_fields)}"
            )
        if detail["type"] == "missing":
            return "is required"
        message = str(detail["msg"]).removeprefix("Input should be ")
        return f"expected {message}, got {_short(detail['input'])}"

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """YAML that `from_yaml` reads to an equal object."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def fingerprint(self) -> str:
        """Equal for equal settings, in every process."""
        import hashlib

        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From plain data."""
        return cls(**values)

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """From YAML or JSON text."""
        return cls.from_dict(read_mapping(text, cls.__name__))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """From a `.yaml` or `.json` file."""
        return cls.from_dict(read_file(path))


def named(kind: type[Enum], **aliases: str) -> Any:
    """A field that takes a member of an enum, its name, or anything whose last part is that name (`torch.int8`)."""

    def read(value: Any) -> Enum:
        name = value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]
        name = aliases.get(name, name)
        if name in kind.__members__:
            return kind[name]
        similar = nearest(name, kind.__members__)
        guess = (
            f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(kind.__members__)}"
        )
        raise PydanticCustomError(_TYPE, "{text}", {"text": f"unknown {kind.__name__} {name!r}; {guess}"})

    return Annotated[kind, BeforeValidator(read), PlainSerializer(lambda member: member.name, return_type=str)]


def read_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a `.yaml` or `.json` file; aliases and tags of YAML are refused."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", code="settings-file", param="config", hint="check the path"
        ) from error
    if len(content) > MOST_BYTES:
        raise SettingsError(str(path), [("(file)", f"{len(content):,} bytes; at most {MOST_BYTES:,} are read")])
    try:
        return read_mapping(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise SettingsError(str(path), [("(file)", f"not UTF-8 at byte {error.start}")]) from error


def read_mapping(text: str, title: str) -> dict[str, Any]:
    """The mapping in YAML or JSON text."""
    try:
        for event in yaml.parse(text):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise SettingsError(title, [(f"line {line}", "aliases are not read")])
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "(text)" if mark is None else f"line {mark.line + 1}"
        raise SettingsError(title, [(where, str(getattr(error, "problem", None) or error))]) from error
    except RecursionError as error:
        raise SettingsError(title, [("(text)", "nested too deep")]) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(title, [("(text)", f"expected names and values, got {type(values).__name__}")])
    return values


def set_by_path(values: dict[str, Any], path: str, value: Any) -> None:
    """`--set a.b=c`: put one value into nested plain data.

    >>> values = {"train": {"epochs": 3}}
    >>> set_by_path(values, "train.lr", 0.1)
    >>> values
    {'train': {'epochs': 3, 'lr': 0.1}}
    """
    *parents, last = path.split(".")
    for name in parents:
        child = values.setdefault(name, {})
        if not isinstance(child, dict):
            raise UsageError(
                f"{name} in {path!r} has no settings inside", code="settings-path", param="set",
                expected="a path such as train.epochs", hint="{set=KEY=VALUE}",
            )  # fmt: skip
        values = child
    values[last] = value


def _problem(path: tuple[int | str, ...], text: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(_TYPE, "{text}", {"text": text}), loc=path, input=None)


def _path(parts: tuple[int | str, ...]) -> str:
    """`layers["*.fc1"].weight.group_size`."""
    text = ""
    for part in parts:
        if isinstance(part, str) and part.startswith(("function-", "tagged-", "<")):
            continue  # pydantic's own steps
        plain = isinstance(part, str) and part.isidentifier()
        text += (f".{part}" if text else str(part)) if plain else f"[{json.dumps(part)}]"
    return text or "(all)"


def _guess(similar: Sequence[str], known: Iterable[str]) -> str:
    return f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(known)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
