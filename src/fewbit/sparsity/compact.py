# SPDX-License-Identifier: Apache-2.0
"""An ONNX model in one file without its zeros, from which the same files come back, bit for bit.

A runtime reads `model.onnx` as it is, zeros and all; what is sent or kept can be smaller. From the command line:
`python -m fewbit.sparsity.compact model.compact.safetensors FOLDER` writes the model.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fewbit.engine.staging import place
from fewbit.errors import DataError, FewbitError, UsageError
from fewbit.modules import compact_file
from fewbit.modules.compact_header import contents
from fewbit.modules.manifest import is_inside
from fewbit.modules.tensor_file import Entry, plain_bytes
from fewbit.sparsity.onnx_spans import Span, tensor_spans


def pack(model: str | Path, archive: str | Path) -> dict[str, int]:
    """Write an ONNX file, and the files of its weights where it has some, into one archive.

    Args:
        model: an `.onnx` file.
        archive: a new file, `NAME.compact.safetensors`.

    Returns:
        `dense_bytes` of the files, and `stored_bytes` of the archive.

    Raises:
        UsageError: a file stands there already.
        DataError: a model that cannot be read.
    """
    source, target = place(model), place(archive)
    if target.exists():
        raise UsageError("a file stands there", where=target, expected="a new name")
    written = list(_entries(source.parent, tensor_spans(source)))
    compact_file.write(target, written)
    return {"dense_bytes": sum(each.nbytes for each in written), "stored_bytes": target.stat().st_size}


def restore(archive: str | Path, folder: str | Path) -> list[Path]:
    """The files of an archive, as they were. A file that stands there is not replaced; none is left half written.

    Args:
        archive: what `pack` wrote.
        folder: where they go; made if it is not there.

    Returns:
        Their paths.

    Raises:
        UsageError: one of them stands there already.
        DataError: an archive that is damaged, with the piece.
    """
    source, target = place(archive), place(folder)
    pieces = contents(source)
    names = list(dict.fromkeys(name.rpartition("#")[0] for name in pieces))
    wrong = [name for name in names if not is_inside(name)]
    if wrong or not names:
        raise DataError(f"it holds the files {names[:5]}", code="archive", where=source, expected="files of a model")
    taken = [str(target / name) for name in names if (target / name).exists()]
    if taken:
        raise UsageError(f"there is a file {', '.join(taken)}", where=target, expected="another folder")
    parts = {name: (target / name).with_name(f".{secrets.token_hex(6)}") for name in names}
    try:
        for part in parts.values():
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(b"")
        for name, tensor in compact_file.read(source):
            with parts[name.rpartition("#")[0]].open("ab") as file:
                file.write(plain_bytes(tensor))
        for name, part in parts.items():
            part.rename(target / name)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return [target / name for name in names]


def _entries(folder: Path, spans: dict[str, list[Span]]) -> Iterator[Entry]:
    """Files in pieces that follow one another: tensors, and what lies between them."""
    for name, known in spans.items():
        path = folder / name
        if not is_inside(name) or not path.is_file():
            raise DataError(f"the weights {name!r} are missing", code="file-missing", where=folder)
        size, place, pieces = path.stat().st_size, 0, list[Span]()
        for begin, end, dtype in sorted(known, key=lambda span: span[:2]):
            if begin < place or end <= begin or end > size:  # a second name of the same bytes, or nothing
                continue
            pieces += [(place, begin, torch.uint8)] * (begin > place) + [(begin, end, dtype)]
            place = end
        pieces += [(place, size, torch.uint8)] * (size > place)
        for number, span in enumerate(pieces):
            yield _entry(path, f"{name}#{number}", span)


def _entry(path: Path, name: str, span: Span) -> Entry:
    begin, end, dtype = span

    def read() -> Tensor:
        with path.open("rb") as file:
            file.seek(begin)
            return torch.frombuffer(bytearray(file.read(end - begin)), dtype=dtype)

    return Entry(name, dtype, ((end - begin) // dtype.itemsize,), read)


def main(arguments: list[str]) -> int:
    """`ARCHIVE [FOLDER]`: write the files of an archive into a folder, the one it lies in if none is named."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m fewbit.sparsity.compact NAME.compact.safetensors [FOLDER]\n")
        return 2
    try:
        for path in restore(arguments[0], arguments[1] if len(arguments) > 1 else Path(arguments[0]).parent):
            sys.stdout.write(f"{path}\n")
    except FewbitError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
