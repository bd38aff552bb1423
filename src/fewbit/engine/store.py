# SPDX-License-Identifier: Apache-2.0
"""The statistics store: what a walk saw of every stage, on disk, so that weights can be settled again without data.

A folder with one file of sums for each stage and `store.json`, which lists them with their hashes. Sums add up, so
stores that several machines or owners of data made of the same model merge by addition: the data stays where it is. A
store is of one model, by its digest. What the layers read depends on how those before them were rounded; a store
remembers how that was, and at other bits it is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from fewbit.engine.second_moments import Gathered, Moments
from fewbit.errors import DataError, UsageError
from fewbit.modules import tensor_file
from fewbit.modules.tensor_file import Entry
from fewbit.record import write_atomically

NAME = "store.json"
VERSION = 1
_SIDES = {False: "teach", True: "aside"}


@dataclass
class Store:
    """Statistics of one model on disk.

    Args:
        folder: where they lie.
        model: the model's digest.
        items: how many items they are of.
        stages: by the names of a stage's layers, its file and what is in it.
        facts: how the layers were rounded when it was made.
    """

    folder: Path
    model: str
    items: int = 0
    stages: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: str | Path, model: str, items: int, facts: Mapping[str, Any]) -> Store:
        """A new one in a folder that is new or empty.

        Raises:
            UsageError: a folder with files in it.
        """
        place = Path(folder).expanduser()
        if place.exists() and any(place.iterdir()):
            raise UsageError(
                f"the folder {str(place)!r} is not empty", where=place, expected="a new folder for the statistics"
            )
        place.mkdir(parents=True, exist_ok=True)
        return cls(place, model, items, facts=dict(facts))

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """The one in a folder.

        Raises:
            UsageError: no store there.
            DataError: a store that is damaged, or of a later version.
        """
        place = Path(folder).expanduser()
        if not is_store(place):
            raise UsageError(f"{str(place)!r} holds no statistics", where=place, expected=f"a folder with a {NAME}")
        try:
            content = orjson.loads((place / NAME).read_bytes())
            stages = {tuple(each["layers"]): each for each in content["stages"]}
            made = cls(place, content["model"], content["items"], stages, content["facts"])
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{NAME} cannot be read: {error}", code="store", where=place / NAME) from error
        if content.get("version") != VERSION:
            raise DataError(f"a store of version {content.get('version')}", where=place, expected=str(VERSION))
        return made

    def put(self, layers: Sequence[str], seen: Gathered) -> None:
        """Keep what was seen of a stage."""
        name = f"{len(self.stages):05}.safetensors"
        tensors = {f"{_SIDES[aside]}.{part}": x for aside, sums in seen.sides.items() for part, x in _parts(sums)}
        entries = [Entry(key, x.dtype, tuple(x.shape), lambda x=x: x) for key, x in tensors.items()]  # type: ignore[misc]
        (self.folder / name).unlink(missing_ok=True)
        kept = tensor_file.write(self.folder / name, entries)
        self.stages[tuple(layers)] = {
            "layers": list(layers),
            "tensors": {key: stored.to_dict() for key, stored in kept.items()},
        }

    def close(self) -> None:
        """Complete it: without the list there is no store."""
        content = {"version": VERSION, "model": self.model, "items": self.items, "facts": self.facts,
                   "stages": list(self.stages.values())}  # fmt: skip
        write_atomically(self.folder / NAME, orjson.dumps(content, option=orjson.OPT_INDENT_2))

    def get(self, layers: tuple[str, ...]) -> Gathered:
        """What was seen of a stage.

        Raises:
            DataError: a file that is damaged.
        """
        table = {
            key: tensor_file.Stored(kept["file"], getattr(torch, kept["dtype"]), tuple(kept["shape"]), kept["sha256"])
            for key, kept in self.stages[layers]["tensors"].items()
        }
        tensors = tensor_file.read(self.folder, table)
        sides = {}
        for aside, side in _SIDES.items():
            mine = {key.partition(".")[2]: x for key, x in tensors.items() if key.partition(".")[0] == side}
            if mine:
                sides[aside] = Moments(mine["gram"], mine.get("cross"), mine.get("drift"), mine["sum"], mine["count"])
        return Gathered(sides)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self.stages)


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store."""
    return (folder / NAME).is_file()


def merge_stores(folders: Sequence[str | Path], into: str | Path) -> Store:
    """Add the statistics of several stores up.

    Args:
        folders: of stores of the same model, at least one.
        into: a new folder.

    Raises:
        UsageError: stores of different models or stages, or of layers that were rounded differently.
    """
    stores = [Store.open(folder) for folder in folders]
    if not stores:
        raise UsageError("no stores to merge", expected="one folder at least")
    first = stores[0]
    for other in stores[1:]:
        same = other.model == first.model and set(other.stages) == set(first.stages) and other.facts == first.facts
        if not same:
            raise UsageError(
                "the stores are not of the same model, or its layers were rounded differently",
                where=f"{first.folder} and {other.folder}",
                expected="stores made with the same model and the same options",
            )
    made = Store.create(into, first.model, sum(store.items for store in stores), first.facts)
    for layers in first:
        total = stores[0].get(layers)
        for other in stores[1:]:
            total = _added(total, other.get(layers))
        made.put(layers, total)
    made.close()
    return made


def _added(one: Gathered, other: Gathered) -> Gathered:
    sides = dict(one.sides)
    for aside, sums in other.sides.items():
        sides[aside] = sums if aside not in sides else sides[aside].plus(sums)
    return Gathered(sides)


def _parts(sums: Moments) -> Iterator[tuple[str, Tensor]]:
    named = {"gram": sums.gram, "cross": sums.cross, "drift": sums.drift, "sum": sums.sum, "count": sums.count}
    return ((name, x) for name, x in named.items() if x is not None)
