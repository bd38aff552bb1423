# SPDX-License-Identifier: Apache-2.0
"""Tokens of many samples in files that are mapped into memory: opened at once, read where they are asked for.

A folder holds a file a column (values one after the other, nothing else), `ends.bin` (where the tokens of each sample
end), `places.bin`, and `about.json`. It is written beside its place and moved there whole.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fewbit.data.sample import Place, Sample
from fewbit.errors import DataError

_NARROW = {"input_ids": np.int32, "labels": np.int32, "parts": np.uint8, "token_type_ids": np.int8}
_PLACE = 3  # which file, line, index; -1 where there is none


class TokenTable:
    """A folder of tokens, read only.

    Args:
        folder: where `write` put them.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        about = orjson.loads((folder / "about.json").read_bytes())
        self.notes: list[dict[str, Any]] = about["notes"]
        self._files: list[str | None] = about["files"]
        self._columns = {name: (self._map(f"{name}.bin", kind), by) for name, (kind, by) in about["columns"].items()}
        self._ends = self._map("ends.bin", "int64")
        self._places = self._map("places.bin", "int64").reshape(-1, _PLACE)

    def __len__(self) -> int:
        return len(self._ends)

    def __reduce__(self) -> Any:
        return TokenTable, (self.folder,)  # another process maps the files itself

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sample."""
        return np.diff(self._ends, prepend=0)

    def get(self, index: int) -> Sample:
        """One sample: arrays of its own, one entry a token, and plain numbers."""
        start, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        values: dict[str, Any] = {}
        for name, (column, by) in self._columns.items():
            if by == "row":
                values[name] = column[index].item()
            else:
                values[name] = np.array(column[start:end], column.dtype if name == "parts" else np.int64)
        return Sample(values, place=self.place(index))

    def place(self, index: int) -> Place:
        """Where a sample comes from."""
        file, line, number = self._places[index].tolist()
        path = self._files[file] if file >= 0 else None
        return Place(path, line=None if line < 0 else line, index=None if number < 0 else number)

    def _map(self, name: str, kind: str) -> NDArray[Any]:
        path = self.folder / name
        if path.stat().st_size == 0:
            return np.zeros(0, kind)
        return np.memmap(path, dtype=kind, mode="r")


def write(target: Path, samples: Iterable[Sample], notes: list[dict[str, Any]]) -> TokenTable:
    """Write samples to a folder and open it.

    Args:
        target: the folder, which is there whole or not at all.
        samples: arrays with an entry a token, `input_ids` among them, and numbers; all with the same fields.
        notes: lines of a record to keep; read when all samples are written.
    """
    if (target / "about.json").exists():
        return TokenTable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".tmp-"))
    try:
        _fill(temporary, samples, notes)
        try:
            temporary.rename(target)
        except OSError:  # another process was faster, with the same content
            if not (target / "about.json").exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return TokenTable(target)


def _fill(folder: Path, samples: Iterable[Sample], notes: list[dict[str, Any]]) -> None:
    columns: dict[str, tuple[str, str]] = {}
    files: dict[str | None, int] = {}
    ends, places, total = [], [], 0
    opened: dict[str, Any] = {}
    try:
        for sample in samples:
            if not columns:
                columns = {name: _kind(name, value) for name, value in sample.items()}
                opened = {name: (folder / f"{name}.bin").open("wb") for name in columns}
            if sample.keys() != columns.keys():
                raise DataError(
                    f"samples differ: those before have {', '.join(columns)}, this one has {', '.join(sample)}",
                    code="samples-differ",
                    where=sample.place,
                    expected="the same fields in every sample",
                )
            for name, (kind, _) in columns.items():
                opened[name].write(np.asarray(sample[name]).astype(kind, casting="same_kind").tobytes())
            total += len(sample["input_ids"])
            ends.append(total)
            place = sample.place
            file = files.setdefault(place.path, len(files))
            places.append([file, *(-1 if each is None else each for each in (place.line, place.index))])
    finally:
        for file in opened.values():
            file.close()
    (folder / "ends.bin").write_bytes(np.array(ends, np.int64).tobytes())
    (folder / "places.bin").write_bytes(np.array(places, np.int64).tobytes())
    about: Mapping[str, Any] = {"columns": columns, "files": list(files), "notes": notes}
    (folder / "about.json").write_bytes(orjson.dumps(about, default=str))


def _kind(name: str, value: Any) -> tuple[str, str]:
    if np.ndim(value) == 0:
        return ("float64" if isinstance(value, float) else "int64"), "row"
    return np.dtype(_NARROW.get(name, np.int64)).name, "token"
