# SPDX-License-Identifier: Apache-2.0
"""The row files of a dataset: one file, or a folder of them in natural order, each with its kind and its split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewbit.data import walk
from fewbit.data.split_names import SPLITS
from fewbit.data.tables import compression
from fewbit.data.tables.splits import canonical, split_of
from fewbit.errors import DataError, UsageError, nearest

KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}

# What lies beside the rows in folders people download, and is never rows itself.
_ASIDE = frozenset(
    {"dataset_info.json", "dataset_infos.json", "state.json", "config.json", "metadata.json", "manifest.json"}
    | {"package.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "dataset_dict.json"}
)


@dataclass(frozen=True, slots=True)
class Shard:
    """One row file: its relative name, the path that opens it, its kind, its split (`None`: it names none)."""

    name: str
    path: Path
    kind: str
    split: str | None


def kind_of(name: str) -> str | None:
    """The kind of a row file by its name, `.gz` and `.zst` looked through.

    >>> kind_of("a.JSONL.gz"), kind_of("a.csv"), kind_of("a.parquet.zst"), kind_of("a.txt")
    ('json', 'csv', 'parquet', None)
    """
    path = Path(name.lower())
    if path.suffix in compression.SUFFIXES:
        path = path.with_suffix("")
    return KINDS.get(path.suffix)


def is_row_file(name: str) -> bool:
    """Whether a file in a folder is taken for rows by its name."""
    return kind_of(name) is not None and name.rpartition("/")[2].lower() not in _ASIDE


def find(source: Path, problem: walk.Problem = walk.quietly) -> list[Shard]:
    """Every row file of a source, splits in their order, files of a split in natural order.

    Args:
        source: a file, whatever its suffix, or a folder.
        problem: told about what is passed over.
    """
    if source.is_file():
        name = walk.nfc(source.name)
        return [Shard(name, source, kind_of(name) or "json", split_of(name)[0])]
    if not source.is_dir():
        return []
    return _sorted(_in_folder(source, problem))


def _in_folder(source: Path, problem: walk.Problem) -> list[Shard]:
    found = []
    for entry in walk.walk(source, problem):
        kind = kind_of(entry.name)
        if kind is None or not is_row_file(entry.name):
            problem("ignored-file", entry.name, "is not read: no file of rows by its name")
            continue
        split, clear = split_of(entry.name)
        if not clear:
            problem("several-splits", entry.name, "names more than one split, so it counts as none")
        found.append(Shard(entry.name, Path(entry.path), kind, split))
    if not all(map(_plain_json, found)):
        aside = [shard for shard in found if _plain_json(shard) and _lone_object(shard)]
        for shard in aside:
            problem("ignored-file", shard.name, "is not read: a single object beside files of rows")
        found = [shard for shard in found if shard not in aside]
    kinds = sorted({shard.kind for shard in found})
    if len(kinds) > 1:
        problem("several-kinds", ".", f"the folder holds {' and '.join(kinds)} files; all are read")
    return found


def _plain_json(shard: Shard) -> bool:
    return shard.path.suffix.lower() == ".json"


def _lone_object(shard: Shard) -> bool:
    from fewbit.data.tables.json_table import JsonTable

    return JsonTable(shard.path, shard.name).shape.alone


def _sorted(shards: Iterable[Shard]) -> list[Shard]:
    order = {split: number for number, split in enumerate((*SPLITS, None))}
    return sorted(shards, key=lambda shard: (order[shard.split], walk.natural(shard.name), shard.name))


def by_split(shards: Sequence[Shard]) -> dict[str, list[Shard]]:
    """The shards of each split; those that name none are `all` when there is no other, else `unsplit`."""
    named = any(shard.split for shard in shards)
    groups: dict[str, list[Shard]] = {}
    for shard in shards:
        groups.setdefault(shard.split or ("unsplit" if named else "all"), []).append(shard)
    return groups


def choose(source: Path, shards: Sequence[Shard], split: str | None) -> list[Shard]:
    """The shards of one split, or all of them.

    Raises:
        DataError: there is no row file at all.
        UsageError: there is no such split.
    """
    if not shards:
        raise DataError(
            "no file of rows was found",
            code="no-files",
            where=source,
            expected=", ".join(KINDS) + ", also .gz and .zst",
        )
    if split is None:
        return list(shards)
    groups = by_split(shards)
    if canonical(split) not in groups:
        raise UsageError(f"there is no split {split!r}", where=source, expected=nearest(canonical(split), groups))
    return groups[canonical(split)]
