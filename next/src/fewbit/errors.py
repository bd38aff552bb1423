# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings: what happened, where, what was expected, what to try.

A text names parameters as `{samples}` or `{preset=w4a16}` and commands as `{fewbit.plan}`; `render` writes them as
flags on the command line and as keywords in Python. So one message serves both interfaces.

>>> error = UsageError("64 samples are too few", code="samples", param="samples", hint="{samples=300}")
>>> print(error)
64 samples are too few [samples]
  where:    samples=
  try:      samples=300
>>> print(error.text("cli"))
64 samples are too few [samples]
  where:    --samples
  try:      --samples 300
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Literal

Interface = Literal["python", "cli"]

POSITIONAL: ContextVar[frozenset[str]] = ContextVar("positional", default=frozenset())
"""Parameters that the command being run takes without a flag: `DATA` of `fewbit check DATA`."""
_PLACEHOLDER = re.compile(r"\{(fewbit\.)?([a-z_]+)(?:=([^{}]*))?\}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class FewbitError(Exception):
    """Base of all errors that fewbit raises on purpose.

    Args:
        what: what was found, in one sentence.
        code: a stable slug; it has a heading in the documentation.
        param: the parameter that caused it, by its Python name.
        where: file and line, layer, sample; `param` is added in front.
        expected: what would have been right.
        hint: what to try.
        parts: the errors this one stands for, if there are several.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        code: str,
        param: str | None = None,
        where: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
        parts: Sequence[FewbitError] = (),
    ):
        super().__init__(what)
        self.what, self.code, self.param = what, code, param
        self.where, self.expected, self.hint = where, expected, hint
        self.parts = tuple(parts)

    def __reduce__(self) -> Any:
        """Errors travel between processes: data-loading workers raise them."""
        return _restore, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return self.text("python")

    def text(self, interface: Interface) -> str:
        """The whole message, several lines, in the syntax of one interface; text from outside is escaped."""
        if self.parts:
            numbered = [_indented(f"{n}. {part.text(interface)}") for n, part in enumerate(self.parts, 1)]
            return "\n".join([escape(render(self.what, interface)), *numbered])
        where = ", ".join(filter(None, [_parameter(self.param, None, interface) if self.param else None, self.where]))
        rows = [("where:", where), ("expected:", self.expected), ("try:", self.hint)]
        lines = [f"  {label:<9} {escape(render(text, interface))}" for label, text in rows if text]
        return "\n".join([f"{escape(render(self.what, interface))} [{self.code}]", *lines])

    def to_dict(self, interface: Interface = "cli") -> dict[str, Any]:
        """Plain data for `--json`."""

        def shown(text: str | None) -> str | None:
            return None if text is None else escape(render(text, interface))

        fields = {"code": self.code, "what": shown(self.what), "param": self.param, "where": shown(self.where)}
        fields |= {"expected": shown(self.expected), "try": shown(self.hint)}
        return fields | ({"errors": [part.to_dict(interface) for part in self.parts]} if self.parts else {})


def _restore(kind: type[FewbitError], args: tuple[Any, ...], fields: dict[str, Any]) -> FewbitError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(FewbitError, ValueError):
    """A wrong call: nothing was started."""

    exit_code = 2


class MissingLibraryError(FewbitError, ImportError):
    """An optional library is not installed, or its import fails."""

    exit_code = 2


class DataError(FewbitError):
    """Data that cannot be used."""


class ModelError(FewbitError):
    """A model that cannot be used."""


class ResourceError(FewbitError):
    """Memory, disk or device is not enough."""


class FewbitWarning(UserWarning):
    """A warning of a run, with its code; it also stands in the record."""

    def __init__(self, what: str, *, code: str, hint: str | None = None):
        super().__init__(what)
        self.what, self.code, self.hint = what, code, hint

    def __str__(self) -> str:
        return self.text("python")

    def text(self, interface: Interface) -> str:
        """The message in the syntax of one interface."""
        lines = [f"{escape(render(self.what, interface))} [{self.code}]"]
        if self.hint:
            lines.append(f"  try: {escape(render(self.hint, interface))}")
        return "\n".join(lines)

    def to_dict(self, interface: Interface = "cli") -> dict[str, Any]:
        """Plain data for the record."""
        hint = None if self.hint is None else escape(render(self.hint, interface))
        return {"code": self.code, "message": escape(render(self.what, interface)), "hint": hint}


def raise_all(errors: Sequence[FewbitError]) -> None:
    """Raise nothing, the only error, or one error that stands for several."""
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else UsageError
    raise kind(f"{len(errors)} problems", code="several", hint=errors[0].hint, parts=errors)


def render(text: str, interface: Interface) -> str:
    """Write placeholders as flags or as keywords.

    >>> render("{samples=64} or {data}; see {fewbit.plan}", "cli"), render("{preset=w4a16}", "python")
    ('--samples 64 or --data; see fewbit plan', 'preset="w4a16"')
    """

    def write(match: re.Match[str]) -> str:
        command, name, value = match.groups()
        if command:
            return f"fewbit {name.replace('_', '-')}" if interface == "cli" else f"fewbit.{name}()"
        return _parameter(name, value, interface)

    return _PLACEHOLDER.sub(write, text)


def _parameter(name: str, value: str | None, interface: Interface) -> str:
    if interface == "cli" and name in POSITIONAL.get():
        return f"{value} as {name.upper()}" if value else name.upper()
    if interface == "cli":
        return f"--{name.replace('_', '-')}" + (f" {value}" if value else "")
    if value is None:
        return f"{name}="
    plain = re.fullmatch(r"-?\d+(\.\d+)?|True|False|None", value)
    return f"{name}={value}" if plain else f'{name}="{value}"'


def _indented(text: str) -> str:
    return "  " + text.replace("\n", "\n  ")


def escape(text: str) -> str:
    """Make control, bidirectional and undecodable characters of file, layer and class names visible and harmless.

    >>> escape("cat\\x1b[31m.png")
    'cat\\\\x1b[31m.png'
    """
    return _CONTROL.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    point = ord(match[0])
    if match[0] == "\n":
        return "\\n"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The most similar known names, ignoring case and `-`, `_`, `.`.

    >>> nearest("Convv.5", ["Conv.5", "Conv.50", "MatMul.1"])
    ['Conv.5', 'Conv.50']
    """
    plain = {re.sub(r"[-_. ]", "", option.lower()): option for option in known}
    wanted = re.sub(r"[-_. ]", "", name.lower())
    return [plain[match] for match in difflib.get_close_matches(wanted, plain, n=count, cutoff=0.6)]


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional library, or raise an error that says which extra brings it.

    Args:
        module: its import name.
        extra: the extra of fewbit that installs it.
        purpose: what it is needed for, such as "ONNX models".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name and module.split(".")[0] == error.name
        reason = "" if missing else f", and its import fails: {error}"
        library = module.split(".")[0]
        raise MissingLibraryError(
            f"{purpose} need the library {library}{reason}",
            code="library-missing",
            hint=f"pip install 'fewbit[{extra}]'",
        ) from error


def plural(count: int, noun: str) -> str:
    """A count and its noun: `1 image`, `2 images`, `3 classes`.

    >>> plural(1, "image"), plural(1200, "class"), plural(2, "entry")
    ('1 image', '1,200 classes', '2 entries')
    """
    if count == 1:
        return f"1 {noun}"
    ending = {"s": "es", "x": "es", "h": "es"}.get(noun[-1], "s")
    if noun.endswith("y") and noun[-2] not in "aeiou":
        noun, ending = noun[:-1], "ies"
    return f"{count:,} {noun}{ending if not noun.endswith('th') else 's'}"
