# SPDX-License-Identifier: Apache-2.0
"""The statistics store: what a walk saw of every stage, on disk, so that weights can be settled again without data.

A folder with one file of sums for each stage, named by the hash of what is in it, and `store.json`, which lists them. A
store is of one model, by its digest, and says of which jobs, by theirs. What the layers read depends on how those
before them were rounded; a store remembers how that was, and at other bits it is an estimate.

The list comes last: without it a store is unfinished, and the same job that was stopped may begin it anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import torch

from fewbit.engine.second_moments import Gathered
from fewbit.errors import DataError, UsageError
from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry
from fewbit.record import write_atomically

NAME = "store.json"
VERSION = 2
_UNFINISHED = "unfinished.json"
_PART = "part.safetensors"


@dataclass
class Store:
    """Statistics of one model on disk.

    Args:
        folder: where they lie.
        model: the model's digest.
        items: how many items they are of.
        facts: how the layers were rounded when it was made.
        jobs: the digests of the jobs that made it; of a merged one several.
        stages: by the names of a stage's layers, its file and what is in it.
    """

    folder: Path
    model: str
    items: int
    facts: dict[str, Any]
    jobs: tuple[str, ...]
    stages: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def create(
        cls, folder: str | Path, model: str, items: int, facts: Mapping[str, Any], jobs: Sequence[str] = ()
    ) -> Store:
        """A new one in a folder that is new or empty, or has what the same jobs left there.

        Raises:
            UsageError: a file, or a folder with other files in it.
        """
        place = Path(folder).expanduser()
        if place.exists() and not place.is_dir():
            raise UsageError(f"{str(place)!r} is a file", where=place, expected="a new folder for the statistics")
        taken = place.exists() and any(path not in _unmoved(place) for path in place.iterdir())
        if taken and not (jobs and _jobs(place) == list(jobs)):
            raise UsageError(
                f"the folder {str(place)!r} is not empty", where=place, expected="a new folder for the statistics"
            )
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / _UNFINISHED, orjson.dumps({"jobs": list(jobs)}))
        (place / NAME).unlink(missing_ok=True)
        return cls(place, model, items, dict(facts), tuple(jobs))

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """The one in a folder; its files are looked for at once, and each is held against its hashes when it is read.

        Raises:
            UsageError: no store there.
            DataError: a store that is damaged, or of another version.
        """
        place = Path(folder).expanduser()
        if not is_store(place):
            raise UsageError(f"{str(place)!r} holds no statistics", where=place, expected=f"a folder with a {NAME}")
        try:
            content = orjson.loads((place / NAME).read_bytes())
            if (version := content.get("version")) != VERSION:
                raise DataError(f"a store of version {version}", where=place, expected=str(VERSION))
            stages = {tuple(each["layers"]): each for each in content["stages"]}
            made = cls(place, content["model"], content["items"], content["facts"], tuple(content["jobs"]), stages)
            sizes = {each["file"]: each["bytes"] for each in stages.values()}
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise DataError(f"{NAME} cannot be read: {error}", code="store", where=place / NAME) from error
        wrong = [name for name, size in sizes.items() if not _has(place / name, size)]
        if wrong:
            raise DataError(
                f"{len(wrong)} of {len(sizes)} files of the store are missing or cut off",
                code="store",
                where=", ".join(str(place / name) for name in wrong[:5]),
                expected=f"the files that {NAME} lists",
                try_="copy them again from where the store was made",
            )
        return made

    def put(self, layers: Sequence[str], seen: Gathered) -> None:
        """Keep what was seen of a stage."""
        part = self.folder / _PART
        part.unlink(missing_ok=True)
        tensors = seen.tensors()
        entries = [Entry(key, x.dtype, tuple(x.shape), lambda x=x: x) for key, x in tensors.items()]  # type: ignore[misc]
        kept = {key: stored.to_dict() for key, stored in tensor_file.write(part, entries).items()}
        for each in kept.values():
            del each["file"]
        digest = hashlib.sha256(orjson.dumps([list(layers), kept], option=orjson.OPT_SORT_KEYS)).hexdigest()
        name = f"{digest[:32]}.safetensors"
        self.stages[tuple(layers)] = {
            "layers": list(layers), "file": name, "bytes": part.stat().st_size, "tensors": kept,
            "tokens": sum(int(x.sum()) for key, x in tensors.items() if key.endswith("count")),
        }  # fmt: skip
        part.replace(self.folder / name)

    def close(self) -> None:
        """Complete it: without the list there is no store."""
        mine = {each["file"] for each in self.stages.values()}
        left = [path for path in self.folder.glob("*.safetensors") if path.name not in mine]
        for path in (*left, *_unmoved(self.folder)):  # by a job that was stopped
            path.unlink()
        write_atomically(self.folder / NAME, orjson.dumps(self.content(), option=orjson.OPT_INDENT_2))
        (self.folder / _UNFINISHED).unlink(missing_ok=True)

    def content(self) -> dict[str, Any]:
        """What `store.json` says."""
        return {"version": VERSION, "model": self.model, "items": self.items, "facts": self.facts,
                "jobs": list(self.jobs), "stages": list(self.stages.values())}  # fmt: skip

    def get(self, layers: tuple[str, ...]) -> Gathered:
        """What was seen of a stage, mapped from its file.

        Raises:
            DataError: a file that is damaged.
        """
        stage = self.stages[layers]
        table = {
            key: tensor_file.Stored(stage["file"], getattr(torch, kept["dtype"]), tuple(kept["shape"]), kept["sha256"])
            for key, kept in stage["tensors"].items()
        }
        return Gathered.of(tensor_file.read(self.folder, table))

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self.stages)


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store."""
    return (folder / NAME).is_file()


def _jobs(folder: Path) -> Any:
    """The jobs whose store is in a folder, finished or not; none if there is none that can be read."""
    path = next((folder / name for name in (_UNFINISHED, NAME) if (folder / name).is_file()), None)
    try:
        return None if path is None else orjson.loads(path.read_bytes())["jobs"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _unmoved(folder: Path) -> list[Path]:
    """Lists that a job was stopped while writing."""
    return [path for name in (_UNFINISHED, NAME) for path in folder.glob(f".{name}.*")]


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
