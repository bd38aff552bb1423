# SPDX-License-Identifier: Apache-2.0
"""Tensors in files of the safetensors format: written one tensor at a time, read back mapped and checked.

A file is the length of its header (eight bytes), the header as JSON, the tensors' bytes. It is written here, so that
memory holds one tensor, or a piece of one, and not a file; it is read by the safetensors library, so that it has a
second reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from fewbit.errors import DataError, require

# What every version of the format has, by its names. Others are kept as bytes, and the manifest says what they are.
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Entry:
    """One tensor to be written.

    Args:
        name: its name in the file.
        dtype: its dtype.
        shape: its shape.
        read: gives the tensor; called once, when it is its turn.
        pieces: gives it instead in pieces that follow one another, where it is too large to be held whole.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    pieces: Callable[[], Iterable[Tensor]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Stored:
    """What a table says of one tensor in a file."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"file": self.file, "dtype": dtype, "shape": list(self.shape), "sha256": self.sha256}


def write(path: Path, entries: Iterable[Entry], *, format: str = "fewbit", hashed: bool = True) -> dict[str, Stored]:
    """Write a new file and say what is in it.

    In the file the widest dtypes come first: a reader that maps it then finds every tensor aligned. They are asked for
    in the order they are given, each written to its place: what is made together need not be kept until later.

    Args:
        path: where there is no file yet.
        entries: the tensors.
        format: whose file it says it is; transformers reads those of `"pt"`.
        hashed: take the hash of every tensor; without, those in the result are empty.
    """
    given = list(entries)
    header: dict[str, Any] = {"__metadata__": {"format": format}}
    offset = 0
    for entry in sorted(given, key=lambda entry: -entry.dtype.itemsize):
        known = NAMES.get(entry.dtype)
        header[entry.name] = {
            "dtype": known or "U8",
            "shape": list(entry.shape) if known else [entry.nbytes],
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    table = {}
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in given:
            begin, end = header[entry.name]["data_offsets"]
            file.seek(8 + len(text) + begin)
            found = hashlib.sha256()
            for piece in (entry.read(),) if entry.pieces is None else entry.pieces():
                content = plain_bytes(piece)
                begin += content.nbytes
                file.write(content)
                if hashed:
                    found.update(content)
            assert begin == end, entry.name
            table[entry.name] = Stored(path.name, entry.dtype, entry.shape, found.hexdigest() if hashed else "")
    return table


def read(folder: Path, table: Mapping[str, Stored], *, verify: bool = True) -> dict[str, Tensor]:
    """Every tensor of a table, mapped from its file: memory is taken when it is looked at.

    Args:
        folder: where the files are.
        table: what must be in them: no tensor less, none more.
        verify: compare the bytes with the table's hashes, not only names, dtypes and shapes.

    Raises:
        DataError: a file or a tensor that is not what the table says, by name.
    """
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(stored.file for stored in table.values()):
        wanted = {key: stored for key, stored in table.items() if stored.file == name}
        found |= _read_file(folder / name, wanted, verify)
    return found


def digest(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
    return hashlib.sha256(plain_bytes(tensor)).hexdigest()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit; NaNs too."""
    return a.dtype is b.dtype and a.shape == b.shape and torch.equal(_as_bytes(a), _as_bytes(b))


def _read_file(path: Path, wanted: Mapping[str, Stored], verify: bool) -> dict[str, Tensor]:
    library = require("safetensors", extra="torch", purpose="reading a .safetensors file")
    if not path.is_file():
        raise DataError(f"the file {path.name} is missing", code="file-missing", where=path.parent)
    try:
        with library.safe_open(path, framework="pt", device="cpu") as file:
            compare_names(path, set(file.keys()), set(wanted))
            tensors = {name: file.get_tensor(name) for name in wanted}
    except DataError:
        raise
    except Exception as error:  # whatever a damaged file makes the library raise
        raise DataError(
            f"the file cannot be read: {str(error)[:200] or type(error).__name__}",
            code="file-unreadable",
            where=path,
            expected="the file as it was exported",
            try_="copy it again from where it was exported",
        ) from error
    return {name: checked(path, name, tensors[name], stored, verify) for name, stored in wanted.items()}


def compare_names(path: Path, have: set[str], want: set[str]) -> None:
    """Refuse a file with tensors that a table does not list, or without some that it does."""
    for what, names in (("lacks", want - have), ("has unknown", have - want)):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise DataError(
                f"{path.name} {what} tensors: {shown}",
                code="tensor-names",
                where=path,
                expected=f"the {len(want):,} tensors that fewbit.json lists",
            )


def checked(path: Path, name: str, tensor: Tensor, stored: Stored, verify: bool) -> Tensor:
    """A tensor of a file, when it is what a table says."""
    where = f"{path}: {name}"
    if stored.dtype not in NAMES:
        raw_bytes = prod(stored.shape) * stored.dtype.itemsize
        if tensor.dtype is torch.uint8 and tuple(tensor.shape) == (raw_bytes,):
            tensor = tensor.view(stored.dtype).reshape(stored.shape) if raw_bytes else _empty(stored)
    if tensor.dtype is not stored.dtype or tuple(tensor.shape) != stored.shape:
        raise DataError(
            f"the tensor is {tensor.dtype} {list(tensor.shape)}",
            code="tensor-layout",
            where=where,
            expected=f"{stored.dtype} {list(stored.shape)}, as fewbit.json says",
        )
    if verify and digest(tensor) != stored.sha256:
        raise DataError(
            "the tensor's bytes are not those that were exported",
            code="tensor-changed",
            where=where,
            expected=f"SHA-256 {stored.sha256}",
            try_="copy the file again from where it was exported",
        )
    return tensor


def _empty(stored: Stored) -> Tensor:
    return torch.empty(stored.shape, dtype=stored.dtype)


def plain_bytes(tensor: Tensor) -> Any:
    """A tensor's bytes as a buffer that shares its memory where it can."""
    return _as_bytes(tensor).numpy()


def _as_bytes(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)
