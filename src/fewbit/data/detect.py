# SPDX-License-Identifier: Apache-2.0
"""Which format a path or an object is in, asked of every format there is."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.formats._base import Match
from fewbit.data.near_paths import near_paths
from fewbit.data.plugin import as_format
from fewbit.data.walk import ignored
from fewbit.errors import DataError, UsageError

_AMBIGUOUS = 0.1
_MODELS = frozenset({".onnx", ".xml", ".pt", ".pt2", ".pth", ".safetensors", ".gguf", ".tflite", ".bin"})


def find_format(source: Any, chosen: str | None = None) -> tuple[str, Any, str]:
    """The name of the format, its member, and why it was taken.

    Args:
        source: a `Path` or a Python object.
        chosen: the user's own choice: a member's name, or `"file.py:function"`.

    Raises:
        UsageError: the path is not there, the chosen format does not exist, or two formats fit equally well.
        DataError: no format fits; the message says what lies there.
    """
    if chosen is not None and registry.is_reference(chosen):
        return chosen, as_format(registry.load_reference(chosen)), "your own function"
    if isinstance(source, Path) and not source.exists() and chosen is None and not _may_be_a_hub_name(source):
        raise UsageError(
            f"there is no file or folder {str(source)!r}",
            where=Path.cwd(),
            expected=_neighbours(source),
            try_=near_paths(source)
            or "check the spelling and the current folder; a dataset on the hub is format='huggingface'",
        )
    if isinstance(source, Path) and source.exists() and not source.is_file() and not source.is_dir():
        raise UsageError(f"{source} is a pipe, a socket or a device", expected="a file or a folder")
    if chosen is not None:
        return chosen, as_format(registry.get("formats", chosen)), "as you asked"
    matches: list[tuple[Match, str, Any]] = []
    for name in registry.names("formats"):
        member = _load(name)
        match = None if member is None else member.detect(source)
        if match is not None:
            matches.append((match, name, member))
    on_disk = isinstance(source, Path)
    if not matches:
        raise DataError(
            f"no known format fits {_seen(source)}",
            code="format-unknown",
            where=source if isinstance(source, Path) else type(source).__name__,
            expected=f"one of: {', '.join(n for n in registry.names('formats') if n != 'objects' or not on_disk)}",
            try_=_advice(source),
        )
    matches.sort(key=lambda found: -found[0].confidence)
    best = matches[0]
    rivals = [m for m in matches[1:] if round(best[0].confidence - m[0].confidence, 6) < _AMBIGUOUS]
    if rivals:
        options = "; ".join(f"{name} ({match.reason})" for match, name, _ in [best, *rivals])
        raise UsageError(
            f"this could be more than one format: {options}",
            where=source if isinstance(source, Path) else type(source).__name__,
            expected="one format",
            try_=" or ".join(f"format={name!r}" for _, name, _ in [best, *rivals]),
        )
    return best[1], best[2], best[0].reason


def _advice(source: Any) -> str:
    if isinstance(source, Path) and source.suffix.lower() in _MODELS:
        return "this is a model: `fewbit check DATA --model MODEL`, or check_dataset(data, model=…)"
    return "docs/formats.md shows the layouts; a function of your own reads anything else (format: file.py:function)"


def _load(name: str) -> Any:
    """A member, or `None` for a plug-in that cannot be loaded: someone else's fault must not stop everyone."""
    try:
        return as_format(registry.get("formats", name))
    except Exception as error:
        if registry.is_built_in("formats", name):
            raise
        warnings.warn(f"the format plug-in {name!r} cannot be loaded and is passed over: {error!r}", stacklevel=4)
        return None


def _may_be_a_hub_name(path: Path) -> bool:
    """Whether a path that is not there could be a dataset's name on a hub: `owner/name`, and no folder `owner` here."""
    return len(path.parts) == 2 and not path.is_absolute() and not path.suffix and not Path(path.parts[0]).exists()


def _neighbours(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    names = sorted(entry.name for entry in parent.iterdir() if not ignored(entry.name))[:8]
    return f"something in {parent}/, which holds: {', '.join(names) or 'nothing'}"


def _seen(source: Any) -> str:
    """What lies at a path, counted by suffix, for someone who has to see why nothing matched."""
    if not isinstance(source, Path):
        return f"an object of type {type(source).__module__}.{type(source).__qualname__}"
    if not os.access(source, os.R_OK):
        return "this: the system refuses to read it"
    if source.is_file():
        return f"this file: {source.stat().st_size:,} bytes, suffix {source.suffix or 'none'}"
    entries = [entry for entry in source.iterdir() if not ignored(entry.name)]
    kinds = Counter("folders" if entry.is_dir() else entry.suffix.lower() or "no suffix" for entry in entries)
    counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(6))
    return f"this folder: it holds {counted or 'nothing'}"
