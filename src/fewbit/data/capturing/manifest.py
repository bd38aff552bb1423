# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: what lies in a folder of captured samples, where it came from, and how to know it again."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fewbit.data.arrays.npz_archive import opened, scan
from fewbit.errors import DataError
from fewbit.record import versions, write_atomically

NAME = "manifest.json"
FORMAT = "fewbit-capture"

_NAME = re.compile(r"(sample-(in|out)puts/)?(in|out)put[0-9]{4,20}\.npz")
_KINDS = {
    "files": list,
    "inputs": dict,
    "notes": list,
    "not_captured": dict,
    "width": int,
    "seen": int,
    "skipped_duplicates": int,
    "complete": bool,
}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that `capture` wrote, or `None` when there is none of ours."""
    try:
        content = orjson.loads((folder / NAME).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if isinstance(content, dict) and _is_ours(content) else None


def is_sample_name(name: Any) -> bool:
    """Whether a file, named from its folder, bears a name that `capture` gives."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def listed(content: dict[str, Any]) -> dict[str, str]:
    """The files of a manifest, named from its folder, with the SHA-256 that each had when it was written."""
    return {
        entry[kind]: entry.get(digest, "")
        for entry in content["files"]
        for kind, digest in (("file", "sha256"), ("output", "output_sha256"))
        if kind in entry
    }


def changed_files(folder: Path) -> list[str]:
    """The files of an earlier capture that someone has changed since; a file that is gone is no loss."""
    files = listed(read_manifest(folder) or {"files": []})
    return [name for name, sha256 in files.items() if (folder / name).is_file() and digest(folder / name) != sha256]


def _is_ours(content: dict[str, Any]) -> bool:
    """A manifest is a file like any other: what it says is used only if all of it has the form that is written."""
    return (
        content.get("format") == FORMAT
        and all(isinstance(content.get(name), kind) for name, kind in _KINDS.items())
        and 0 < content["width"] <= 20
        and all(isinstance(entry, dict) for entry in [*content["files"], *content["inputs"].values()])
        and all(
            is_sample_name(entry.get("file"))
            and is_sample_name(entry.get("output", entry["file"]))
            and isinstance(entry.get("sha256"), str)
            for entry in content["files"]
        )
    )


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest, whole or not at all; the same content gives the same bytes."""
    write_atomically(folder / NAME, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def made_with() -> dict[str, str]:
    """The versions a reader may want to know of."""
    torch = sys.modules.get("torch")
    return {**versions(), "numpy": np.__version__, **({"torch": str(torch.__version__)} if torch else {})}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def survey(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Read every header back and say what the arrays are: dtype, shape and in how many files.

    An axis that differs between samples is `null`; so is a shape whose rank differs, and a dtype that differs.

    Raises:
        DataError: a file does not read as what was written.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        with opened(path) as window:
            headers = scan(window)
        if headers.fatal is not None:
            raise DataError(
                f"a sample does not read back: {headers.fatal.what}",
                where=path,
                try_="look for another program writing into the folder, or a full or failing disk",
            )
        for name, info in headers.infos.items():
            entry = found.setdefault(name, {"dtype": info.dtype, "shape": list(info.shape), "count": 0})
            entry["count"] += 1
            entry["dtype"] = info.dtype if entry["dtype"] == info.dtype else None
            entry["shape"] = _merged(entry["shape"], info.shape)
    return found


def _merged(known: list[int | None] | None, shape: tuple[int, ...]) -> list[int | None] | None:
    if known is None or len(known) != len(shape):
        return None
    return [axis if axis == size else None for axis, size in zip(known, shape, strict=True)]


def duplicates(digests: Iterable[str]) -> int:
    """How many samples repeat an earlier one."""
    return sum(count - 1 for count in Counter(digests).values())
