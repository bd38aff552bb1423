# SPDX-License-Identifier: Apache-2.0
"""The usual calibration sets by their names: from a file here, from the cache of `datasets`, or from the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fewbit.data.detect import find_format
from fewbit.data.opening import open_source
from fewbit.data.source import Source
from fewbit.data.text.plain import Articles, TextFiles, text_files
from fewbit.errors import DataError, UsageError


@dataclass(frozen=True)
class TextSet:
    """A set of texts that people know by its name.

    Args:
        hub: what it is called on the hub.
        config: which of its configurations.
        split: which of its splits: one that nobody is judged on.
        lines: whether its rows are the lines of articles.
    """

    hub: str
    config: str
    split: str
    lines: bool


SETS: Mapping[str, TextSet] = {
    "wikitext": TextSet("Salesforce/wikitext", "wikitext-2-raw-v1", "train", lines=True),
    "pileval": TextSet("mit-han-lab/pile-val-backup", "default", "validation", lines=False),
}


def open_text(data: Any) -> Any:
    """What a text names, as an open source: `"wikitext"`, `"pileval"`, `"wikitext=PATH"`, a file of plain text.

    Anything else comes back as it is.

    Raises:
        UsageError: no file at the path.
        DataError: a set that is neither here, nor in the cache, nor to be had from the hub.
    """
    if not isinstance(data, str | os.PathLike):
        return data
    name, equals, path = os.fspath(data).partition("=")
    if name not in SETS:
        plain = _plain(Path(data).expanduser())
        return data if plain is None else plain
    place_of = path if equals else os.environ.get(_variable(name), "") or (name if Path(name).exists() else "")
    return _here(name, Path(place_of).expanduser()) if place_of else _there(name)


def _plain(place: Path, *, titles: bool = False) -> Source | None:
    """A file or folder of plain text, if no format takes it for something else."""
    files = text_files(place) if place.exists() and (place.is_file() or place.is_dir()) else []
    if not files:
        return None
    try:
        find_format(place)
    except DataError as error:
        return TextFiles(place, files, titles=titles) if error.code == "format-unknown" else None
    except UsageError:  # for whoever opens it to tell
        return None
    return None


def _here(name: str, place: Path) -> Source:
    if not place.exists():
        raise UsageError(f"there is no file or folder {str(place)!r}", where=name, expected=f"{name}=PATH, texts there")
    plain = _plain(place, titles=SETS[name].lines)
    if plain is not None:
        return plain
    opened = open_source(place)
    return Articles(opened) if SETS[name].lines and _has_lines(opened) else opened


def _has_lines(opened: Source) -> bool:
    first = next(iter(opened), None)
    return isinstance(first, Mapping) and isinstance(first.get("text"), str)


def _there(name: str) -> Source:
    wanted = SETS[name]
    cached = _cached(wanted)
    if cached is not None:
        opened = open_source(cached)
    else:
        try:
            hub = Path(wanted.hub)
            opened = open_source(hub, format="huggingface", split=wanted.split, name=wanted.config)
        except Exception as error:  # no library, no network, no such set any more
            raise DataError(
                f"{name} is not here: {str(error).splitlines()[0][:200]}",
                code="hub-unreachable",
                where=f"{wanted.hub} ({wanted.config}, {wanted.split}) on the hub",
                expected="the hub, the set in the cache of `datasets`, or a file of rows or plain text",
                try_=f"{name}=PATH, or {_variable(name)}=PATH in the environment; where there is a network: "
                f"load_dataset({wanted.hub!r}, {wanted.config!r}, split={wanted.split!r}).to_json('{name}.jsonl')",
            ) from error
    return Articles(opened) if wanted.lines else opened


def _cached(wanted: TextSet) -> Any:
    """The set as `datasets` keeps it; asked for by its name, the library would try the network first, half a minute."""
    if find_spec("datasets") is None:
        return None
    import datasets

    folder = Path(datasets.config.HF_DATASETS_CACHE) / wanted.hub.replace("/", "___") / wanted.config
    files = sorted(folder.glob(f"*/*/*-{wanted.split}*.arrow"))
    if not files:
        return None
    newest = max((path.parent for path in files), key=lambda parent: (parent.stat().st_mtime, parent.name))
    parts = [datasets.Dataset.from_file(str(path)) for path in files if path.parent == newest]
    return datasets.concatenate_datasets(parts)


def _variable(name: str) -> str:
    return f"FEWBIT_{name.upper()}"
