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

import errno
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from fewbit.errors import UsageError, nearest, plural

_TYPE = "fewbit"
MOST_BYTES = 16_000_000


Problem = tuple[str | tuple[int | str, ...], str]
"""A field, or the path to one in nested settings, and what is wrong there."""


class SettingsError(UsageError):
    """Wrong settings, all of them at once.

    Attributes:
        problems: pairs of a path such as `layers["*.fc1"].group_size` and what is wrong there.
    """

    def __init__(self, title: str, problems: Sequence[Problem], *, where: str | None = None):
        named = [(path if isinstance(path, str) else _path(path), text) for path, text in problems]
        listed = "; ".join(f"{path}: {text}" for path, text in named)
        super().__init__(
            f"{plural(len(problems), 'error')} in {title}",
            code="settings",
            where=listed if where is None else f"{where}: {listed}",
            hint="correct the setting" if len(problems) == 1 else "correct the settings",
        )
        self.problems = tuple(named)


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Construct(ModelMetaclass):
    """Turns pydantic's error into ours in the user's own call; nested models do not come through here."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        names: list[str] = list(cls.model_fields)  # type: ignore[attr-defined]
        if len(args) > len(names):
            raise TypeError(f"{cls.__name__} takes at most {len(names)} arguments")
        if twice := [name for name, _ in zip(names, args) if name in values]:
            raise TypeError(f"{cls.__name__} got {twice[0]!r} twice")
        values.update(zip(names, args))
        try:
            return super().__call__(**values)
        except ValidationError as error:
            problems = [(_path(detail["loc"]), detail["msg"]) for detail in error.errors()]
            raise SettingsError(cls.__name__, problems) from None


class Settings(BaseModel, metaclass=_Construct):
    """Base of every configuration: frozen, strict, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def contradictions(self) -> Sequence[Problem]:
        """Fields, or paths to nested ones, that are wrong together with others."""
        return []

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        """Validate one level; errors of nested levels arrive with their paths and are passed on."""
        try:
            settings = handler(values)
            problems = [
                _problem((path,) if isinstance(path, str) else path, text) for path, text in settings.contradictions()
            ]
        except ValidationError as error:
            problems = [_problem(detail["loc"], cls._explain(detail)) for detail in error.errors()]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return settings

    @classmethod
    def _explain(cls, detail: Any) -> str:
        if detail["type"] == _TYPE:
            return str(detail["msg"])
        if detail["type"] == "extra_forbidden":
            return f"unknown setting; {_guess(str(detail['loc'][-1]), cls.model_fields)}"
        if detail["type"] == "missing":
            return "is required"
        message = str(detail["msg"]).removeprefix("Input should be ")
        return f"expected {message}, got {_short(detail['input'])}"

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"
        return text if len(text) <= 120 else f"{text[:116]}...)"

    __str__ = __repr__

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """YAML that `from_yaml` reads to an equal object."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def to_json(self) -> str:
        """JSON that `from_yaml` reads to an equal object."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def fingerprint(self) -> str:
        """Equal for equal settings, in every process."""
        import hashlib

        content = json.dumps(_canonical(self.model_dump(mode="json")), sort_keys=True)
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


class FrozenMapping(dict[str, Any]):
    """A mapping that cannot be changed, so that settings that hold one cannot be changed either; hashable.

    >>> FrozenMapping({"bins": 128}) == {"bins": 128}
    True
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        """Copies and pickles are made without changing one."""
        return FrozenMapping, (dict(self),)

    def _refuse(self, *args: Any, **values: Any) -> Any:
        raise TypeError("this mapping cannot be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]


def wrong(text: str) -> PydanticCustomError:
    """The error for a validator of one field to raise; the path is added."""
    return PydanticCustomError(_TYPE, "{text}", {"text": text})


def named(kind: type[Enum], **aliases: str) -> Any:
    """A field that takes a member of an enum, its name, or anything whose last part is that name (`torch.int8`)."""

    def read(value: Any) -> Enum:
        name = value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]
        name = aliases.get(name, name)
        if name in kind.__members__:
            return kind[name]
        raise wrong(f"unknown {kind.__name__} {name!r}; {_guess(name, kind.__members__)}")

    return Annotated[kind, BeforeValidator(read), PlainSerializer(lambda member: member.name, return_type=str)]


def read_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a `.yaml` or `.json` file; aliases and tags of YAML are refused."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a FIFO or device may never end
            raise OSError(errno.EINVAL, "not a regular file")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", code="settings-file", param="config", hint="check the path"
        ) from error
    if len(content) > MOST_BYTES:
        raise SettingsError(str(path), [("(file)", f"at most {MOST_BYTES:,} bytes are read")])
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
        if duplicates := _duplicate_keys(yaml.compose(text, Loader=yaml.SafeLoader)):
            raise SettingsError(title, duplicates)
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


def _duplicate_keys(node: yaml.Node | None) -> list[Problem]:
    """YAML keeps the last of two values of one name, silently."""
    problems: list[Problem] = []
    children = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, child in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                line = key.start_mark.line + 1 if key.start_mark else 0
                problems.append((f"line {line}", f"{key.value!r} is there twice"))
            names.add(str(key.value))
            children.append(child)
    return problems + [problem for child in children for problem in _duplicate_keys(child)]


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
    return InitErrorDetails(type=wrong(text), loc=path, input=None)


def _path(parts: tuple[int | str, ...]) -> str:
    """`layers["*.fc1"].weight.group_size`."""
    text = ""
    for part in parts:
        if isinstance(part, str) and part.startswith(("function-", "tagged-", "<")):
            continue  # pydantic's own steps
        plain = isinstance(part, str) and part.isidentifier()
        text += (f".{part}" if text else str(part)) if plain else f"[{json.dumps(part)}]"
    return text or "(all)"


def _canonical(value: Any) -> Any:
    """1.0 and 1 are equal, so they are written alike."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _guess(name: str, known: Iterable[str]) -> str:
    similar = nearest(name, known)
    return f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(known)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
