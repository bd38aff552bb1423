# SPDX-License-Identifier: Apache-2.0
"""The record of a run: one documented JSON that the final screen and the model card are made from."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import DataError, escape

SCHEMA = 1
VERDICTS = ("ok", "degraded", "broken", "not-measured")
_LIBRARIES = ("numpy", "torch", "onnx", "onnxruntime", "openvino", "transformers", "datasets")


@dataclass
class Record:
    """Every fact of one run, as plain data.

    Args:
        command: the verb.
        verdict: one of `VERDICTS`; `None` for commands that judge nothing.
        summary: the sentence behind the verdict.
        output: the file or folder that was written, as the user named it.
        model: what was compressed: source, kind, inputs, layers.
        preset: what was asked for, and what it became for the target.
        data: what was read: source, format, samples used and held out, seed, class counts, issues.
        preprocessing: how samples became inputs, and where that was found.
        size: bytes of the original and of the result.
        quality: metrics with intervals on held-out samples.
        speed: measured latency of both, with the runtime and its threads.
        layers: one row per layer: decision, reason, error.
        kernels: what the runtime really executes.
        verification: what was read back and compared.
        warnings: code, message, hint.
        phases: name, seconds, peak memory.
        next: commands worth trying, each with what it would give.
        settings: everything that was resolved; the same settings give the same bytes.
    """

    command: str
    verdict: str | None = None
    summary: str = ""
    output: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    size: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)
    kernels: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    next: list[dict[str, str]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    fewbit: str = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        from fewbit import __version__

        self.fewbit = self.fewbit or __version__
        self.versions = self.versions or _versions()

    def __repr__(self) -> str:
        """One line: `Record(quantize, OK, 3.5x smaller, agreement 99.7%)`."""
        parts = [self.command, (self.verdict or "").upper(), self.summary]
        return escape(f"Record({', '.join(filter(None, parts))})")[:120]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def to_json(self) -> bytes:
        """The content of `record.json`; names that are no UTF-8 are escaped."""
        return orjson.dumps(plain(self.to_dict()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Read the record of any output: a folder, the model file, or the record itself."""
        path = Path(path)
        candidates = [path / "record.json", path.with_name(f"{path.stem}.record.json"), path]
        file = next((file for file in candidates if file.is_file() and file.suffix == ".json"), None)
        if file is None:
            raise DataError(f"{path} has no record", code="record-missing", where=str(path), hint="an output of fewbit")
        try:
            values = orjson.loads(file.read_bytes())
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{file} is not a record of this version: {error}", code="record-unreadable", where=str(file),
                hint="the record of a run with this version of fewbit",
            ) from error  # fmt: skip


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `record.json`."""
    objects = ("model", "preset", "data", "preprocessing", "size", "quality", "speed", "kernels", "verification",
               "settings", "versions")  # fmt: skip
    rows = {"layers": ["name"], "warnings": ["code", "message"], "phases": ["name", "seconds"], "next": ["command"]}
    properties: dict[str, Any] = {name: {"type": "object"} for name in objects}
    for name, required in rows.items():
        properties[name] = {"type": "array", "items": {"type": "object", "required": required}}
    properties |= {
        "schema": {"const": SCHEMA},
        "fewbit": {"type": "string"},
        "command": {"type": "string"},
        "verdict": {"enum": [*VERDICTS, None]},
        "summary": {"type": "string"},
        "output": {"type": ["string", "null"]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fewbit record",
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numpy numbers, paths and tuples become plain, text is escaped, NaN becomes null."""
    if isinstance(value, str):
        return escape(value) if not value.isprintable() else value
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return plain(value.as_posix())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
