# SPDX-License-Identifier: Apache-2.0
"""Tensors without their zeros in a file, bit for bit; see `fewbit.numerics.compacting`.

A file is one of the safetensors format whose tensors are the pieces, as bytes, numbered by the tensor they belong to;
what they mean is JSON in the header's metadata. Memory holds one tensor at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import torch
from torch import Tensor

from fewbit.data.limits import EXPANSION, EXPANSION_FLOOR
from fewbit.errors import DataError
from fewbit.modules import tensor_file
from fewbit.modules.description import read_dtype, read_sides
from fewbit.modules.tensor_file import Entry, Stored
from fewbit.numerics.compacting import Compact, compacted, read_compact, restored

SUFFIX = ".compact.safetensors"
_FORMAT = "fewbit-compact"
_MOST_HEADER = 256 << 20


@dataclass(frozen=True)
class Kept:
    """What a file says of one tensor.

    Args:
        stored: its dtype, shape and hash.
        facts: what its pieces mean.
        pieces: where each lies in the file.
    """

    stored: Stored
    facts: Mapping[str, Any]
    pieces: Mapping[str, tuple[int, int]]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.stored.shape) * self.stored.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return sum(end - begin for begin, end in self.pieces.values())


def write(path: Path, entries: Iterable[Entry]) -> dict[str, Stored]:
    """Write a new file and say what is in it.

    Args:
        path: where there is no file yet.
        entries: the tensors; each is asked for when it is its turn.
    """
    header: dict[str, Any] = {}
    described: dict[str, Any] = {}
    table: dict[str, Stored] = {}
    place = 0
    spool = path.with_name(f".{path.name}.pieces")  # the header comes first, and sizes are known at the end
    try:
        with spool.open("xb") as pieces:
            for number, entry in enumerate(entries):
                content, compact = _compacted(entry)
                table[entry.name] = Stored(path.name, entry.dtype, entry.shape, sha256(content).hexdigest())
                described[entry.name] = {"number": number, **table[entry.name].to_dict(), **compact.facts()}
                described[entry.name].pop("file")  # it may get another name
                for name, piece in compact.pieces.items():
                    span = [place, place + piece.nbytes]
                    header[f"{number}.{name}"] = {"dtype": "U8", "shape": [piece.nbytes], "data_offsets": span}
                    place += piece.nbytes
                    pieces.write(piece.data)
        metadata = {"format": _FORMAT, "tensors": orjson.dumps(described).decode()}
        text = orjson.dumps({"__metadata__": metadata, **header})
        text += b" " * (-len(text) % 8)
        with path.open("xb") as file, spool.open("rb") as pieces:
            file.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(pieces, file, 1 << 22)
    finally:
        spool.unlink(missing_ok=True)
    return table


def contents(path: Path) -> dict[str, Kept]:
    """What a file has, as far as its header says and its length allows; no tensor is read.

    Raises:
        DataError: no such file, or one that is cut short or contradicts itself, with the tensor where it is one.
    """
    if not path.is_file():
        raise DataError(f"the file {path.name} is missing", code="file-missing", where=path.parent)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise _damaged(path, f"it has {size:,} bytes, and its header would have {length:,}")
        try:
            header = orjson.loads(file.read(length))
            described = orjson.loads(header["__metadata__"]["tensors"])
            spans = _spans(header, 8 + length)
            found = {name: _kept(path, name, entry, spans) for name, entry in described.items()}
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, f"its header is none: {type(error).__name__}: {str(error)[:100]}") from error
    order = sorted(span for kept in found.values() for span in kept.pieces.values())
    ends = [8 + length, *(end for _, end in order)]
    for name, kept in found.items():
        if any(end > size for _, end in kept.pieces.values()):
            raise _damaged(path, f"it ends at byte {size:,}, inside of this tensor", name)
    if [begin for begin, _ in order] != ends[:-1] or ends[-1] != size:
        raise _damaged(path, "its pieces do not lie one behind the other up to its end")
    return found


def read(path: Path, names: Iterable[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, one after the other, each held against its hash.

    Args:
        path: what `write` wrote.
        names: those that are wanted; all if not said.

    Raises:
        DataError: as `contents`; bytes that are not those that were written.
    """
    found = contents(path)
    with path.open("rb") as file:
        for name in found if names is None else names:
            yield name, _restored(path, name, found[name], file)


def read_files(folder: Path, table: Mapping[str, Stored], *, verify: bool = True) -> dict[str, Tensor]:
    """As `tensor_file.read`, of files of both kinds.

    Raises:
        DataError: a file or a tensor that is not what the table says, by name.
    """
    plain = {name: stored for name, stored in table.items() if not stored.file.endswith(SUFFIX)}
    found = tensor_file.read(folder, plain, verify=verify)
    for file in dict.fromkeys(stored.file for stored in table.values() if stored.file.endswith(SUFFIX)):
        wanted = {name: stored for name, stored in table.items() if stored.file == file}
        tensor_file.compare_names(folder / file, set(contents(folder / file)), set(wanted))
        for name, tensor in read(folder / file):
            found[name] = tensor_file.checked(folder / file, name, tensor, wanted[name], verify)
    return found


def _compacted(entry: Entry) -> tuple[Any, Compact]:
    tensor = entry.read() if entry.pieces is None else torch.cat(list(entry.pieces()))
    content = tensor_file.plain_bytes(tensor)
    signed = entry.dtype.is_floating_point or entry.dtype.is_complex
    width = entry.dtype.itemsize // (2 if entry.dtype.is_complex else 1)
    return content, compacted(content, width, signed=signed)


def _spans(header: Mapping[str, Any], start: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Where the pieces of each number lie in the file."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for key, value in header.items():
        if key != "__metadata__":
            number, _, piece = key.partition(".")
            begin, end = value["data_offsets"]
            found.setdefault(number, {})[piece] = (start + begin, start + end)
    return found


def _kept(path: Path, name: str, entry: Any, spans: Mapping[str, Mapping[str, tuple[int, int]]]) -> Kept:
    """One tensor of the description; a size that nothing speaks for is not believed."""
    try:
        pieces = spans[str(entry["number"])]
        stored = Stored(path.name, read_dtype(entry["dtype"]), read_sides(entry["shape"]), str(entry["sha256"]))
        if any(begin > end for begin, end in pieces.values()):
            raise ValueError("a piece ends before it begins")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its description is none: {type(error).__name__}: {error}", name) from error
    kept = Kept(stored, entry, pieces)
    if kept.dense_bytes > max(EXPANSION_FLOOR, EXPANSION * kept.stored_bytes):
        claim = f"{kept.stored_bytes:,} bytes claim to be {kept.dense_bytes:,}"
        raise _damaged(path, f"{claim}, more than {EXPANSION} times as many", name)
    return kept


def _restored(path: Path, name: str, kept: Kept, file: BinaryIO) -> Tensor:
    pieces = {}
    for piece, (begin, end) in kept.pieces.items():
        file.seek(begin)
        pieces[piece] = np.frombuffer(file.read(end - begin), np.uint8)
    dtype, shape = kept.stored.dtype, kept.stored.shape
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    try:
        content = restored(read_compact(kept.facts, pieces), kept.dense_bytes, width)
    except ValueError as error:
        raise _damaged(path, str(error), name) from error
    if sha256(content.data).hexdigest() != kept.stored.sha256:
        raise _damaged(path, f"its bytes do not have the SHA-256 {kept.stored.sha256}", name)
    if not content.size:
        return torch.empty(shape, dtype=dtype)
    writable = content if content.flags.writeable else content.copy()
    return torch.from_numpy(writable).view(dtype).reshape(shape)


def _damaged(path: Path, why: str, name: str | None = None) -> DataError:
    return DataError(
        f"the file cannot be read: {why}",
        code="file-unreadable",
        where=path if name is None else f"{path}: {name}",
        expected="the file as it was written",
        try_="copy it again from where it was written",
    )
