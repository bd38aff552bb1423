# SPDX-License-Identifier: Apache-2.0
"""Tensors without their zeros in a file, bit for bit; see `fewbit.numerics.compacting`.

A file is one of the safetensors format whose tensors are the pieces, as bytes, numbered by the tensor they belong to;
what they mean is JSON in the header's metadata. Memory holds one tensor at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import torch
from torch import Tensor

from fewbit.modules import tensor_file
from fewbit.modules.compact_header import Kept, contents, damaged
from fewbit.modules.tensor_file import Entry, Stored
from fewbit.numerics.compacting import Compact, compacted, read_compact, restored

SUFFIX = ".compact.safetensors"
_FORMAT = "fewbit-compact"


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
                del content, compact, piece  # before the next tensor is asked for
        metadata = {"format": _FORMAT, "tensors": orjson.dumps(described).decode()}
        text = orjson.dumps({"__metadata__": metadata, **header})
        text += b" " * (-len(text) % 8)
        with path.open("xb") as file, spool.open("rb") as pieces:
            file.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(pieces, file, 1 << 22)
    finally:
        spool.unlink(missing_ok=True)
    return table


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
        raise damaged(path, str(error), name) from error
    if sha256(content.data).hexdigest() != kept.stored.sha256:
        raise damaged(path, f"its bytes do not have the SHA-256 {kept.stored.sha256}", name)
    if not content.size:
        return torch.empty(shape, dtype=dtype)
    writable = content if content.flags.writeable else content.copy()
    return torch.from_numpy(writable).view(dtype).reshape(shape)
