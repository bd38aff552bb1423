# SPDX-License-Identifier: Apache-2.0
"""The record: everything a run found out, as one JSON file. The report page reads nothing else."""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import DataError

_SURROGATES = re.compile("[\ud800-\udfff]")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place first, then moved over it."""
    # Not `tempfile`: its files are for their owner alone, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def versions() -> dict[str, str]:
    """What the run was made with: fewbit, Python and the machine, nothing that names the user."""
    from fewbit import __version__

    return {"fewbit": __version__, "python": platform.python_version(), "machine": platform.machine()}


def to_json(value: Any, options: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """JSON as `orjson` writes it; bytes in names of files that are not UTF-8 are written as `\\xff`.

    Args:
        value: JSON values.
        options: of `orjson`.
        default: makes JSON values of what is none.

    >>> print(to_json({"name": "a" + chr(0xDCFF)}).decode())
    {"name":"a\\\\xff"}
    """
    try:
        return orjson.dumps(value, option=options, default=default)
    except TypeError:
        return orjson.dumps(_encodable(value), option=options, default=default)


def _encodable(value: Any) -> Any:
    """The value without lone surrogates, by which Python stands for bytes that are not UTF-8."""
    if isinstance(value, str):
        return _SURROGATES.sub(lambda found: _named(ord(found[0])), value)
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return _encodable(vars(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _named(code: int) -> str:
    """A lone surrogate: the byte that it stands for, or its number.

    >>> _named(0xDCFF) == chr(92) + "xff"
    True
    """
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


@dataclass
class Record:
    """What one run did and found, in the order it happened.

    Args:
        verb: the public call that made it, such as `check`.
        facts: what is known about inputs and outputs, by name; JSON values only.
        lines: one entry for each thing a user would want to know of: a fallback, a skipped layer, a dropped
            sample. Never silent, always with its reason.

    >>> record = Record("check")
    >>> record.note("dropped-sample", "a.jsonl:3 is not JSON", where="a.jsonl:3")
    >>> Record.from_json(record.to_json()).lines[0]["what"]
    'dropped-sample'
    """

    verb: str
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=versions)

    def note(self, what: str, reason: str, *, where: object = None, **facts: Any) -> None:
        """Add one line: a short code, the reason in words, the place, and any facts worth keeping."""
        place = None if where is None else str(where)
        self.lines.append({"what": what, "reason": reason, "where": place, **facts})

    def to_json(self) -> bytes:
        """The record as indented JSON, keys in a fixed order."""
        return to_json(vars(self), orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)

    def save(self, path: str | Path) -> Path:
        """Write the record atomically and return its path."""
        path = Path(path)
        write_atomically(path, self.to_json())
        return path

    @classmethod
    def from_json(cls, content: bytes) -> Record:
        """Read a record back."""
        try:
            return cls(**orjson.loads(content))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise DataError(f"this is not a fewbit record: {error}", expected="a record.json") from error
