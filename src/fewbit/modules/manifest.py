# SPDX-License-Identifier: Apache-2.0
"""`fewbit.json`: what an export wrote, so that it can be loaded, checked and replaced, and nothing else touched."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import DataError, UsageError
from fewbit.modules.peft_folder import refuse_adapters
from fewbit.record import versions

NAME = "fewbit.json"
VERSION = 1
_MOST_BYTES = 256 << 20
"""A model of a hundred thousand tensors has a manifest of some forty megabytes."""


def is_export(folder: Path) -> bool:
    """Whether a folder holds an export."""
    return (folder / NAME).is_file()


def write(folder: Path, format: str, content: Mapping[str, Any]) -> None:
    """Complete an export: list every file in the folder with its hash, beside what the exporter says of the model."""
    hashes = {name: hash_file(folder / name) for name in files(folder)}
    manifest = {"version": VERSION, "format": format, "versions": versions(), "files": hashes, **content}
    (folder / NAME).write_bytes(_by_line(manifest))


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, believed as far as its version and its list of files.

    Raises:
        UsageError: no folder, or no export in it.
        DataError: a manifest that is damaged or of a later version.
    """
    path = folder / NAME
    if not path.is_file():
        refuse_adapters(folder)
        what = "is not a folder that fewbit exported" if folder.is_dir() else "is not a folder"
        raise UsageError(
            f"{str(folder)!r} {what}",
            where=folder,
            expected=f"a folder with a {NAME}",
            try_=_hint(folder),
        )
    if path.stat().st_size > _MOST_BYTES:
        raise _damaged(path, f"it has {path.stat().st_size:,} bytes; {_MOST_BYTES:,} are the most")
    try:
        content: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise _damaged(path, str(error)) from error
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, f"its version is {version!r}")
    if version > VERSION:
        raise DataError(
            f"the export is of version {version}",
            code="manifest",
            where=path,
            expected=f"at most {VERSION}, which is what this fewbit reads",
            try_="a newer fewbit",
        )
    listed = content.get("files")
    if not isinstance(listed, dict) or not all(is_inside(name) for name in listed):
        raise _damaged(path, "its list of files is not one of names inside the folder")
    return content


def files(folder: Path) -> list[str]:
    """Every file in a folder and below, by its path from there."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def is_inside(name: object) -> bool:
    """Whether a name can only be that of a file in the folder or below.

    >>> is_inside("a/b.json"), is_inside("../b.json"), is_inside("/etc/passwd")
    (True, False, False)
    """
    if not isinstance(name, str) or set(name) & set("\\:\0"):
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _by_line(content: Mapping[str, Any]) -> bytes:
    """JSON with one layer, tensor or file a line: much shorter than indented, and still to be read.

    >>> print(_by_line({"version": 1, "tensors": {"a": {"shape": [2]}, "b": {"shape": []}}}).decode())
    {"version":1,
    "tensors":{
    "a":{"shape":[2]},
    "b":{"shape":[]}}}
    """
    parts = []
    for name, value in content.items():
        text = orjson.dumps(value)
        if isinstance(value, Mapping) and value:
            text = (
                b"{\n"
                + b",\n".join(orjson.dumps(key) + b":" + orjson.dumps(each) for key, each in value.items())
                + b"}"
            )
        parts.append(orjson.dumps(name) + b":" + text)
    return b"{" + b",\n".join(parts) + b"}"


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"the manifest cannot be read: {why}",
        code="manifest",
        where=path,
        expected=f"{NAME} as it was exported",
        try_="copy it again from where it was exported",
    )


def _hint(folder: Path) -> str | None:
    if (folder / "config.json").is_file():
        return f"this looks like a Hugging Face model: `fewbit quantize {folder} …` quantizes it first"
    inner = [path.parent for path in sorted(folder.glob(f"*/{NAME}"))] if folder.is_dir() else []
    return f"did you mean {str(inner[0])!r}?" if inner else None
