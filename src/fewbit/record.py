# SPDX-License-Identifier: Apache-2.0
"""The record: everything a run found out, as one JSON file. The report page reads nothing else."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import DataError


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
        return orjson.dumps(vars(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)

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
