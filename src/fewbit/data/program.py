# SPDX-License-Identifier: Apache-2.0
"""Exported programs (`.pt2`) opened without running what they say.

`torch.export.load` unpickles sample inputs, some weights and custom objects, evaluates symbolic sizes as Python, and
loads compiled libraries. An archive that needs none of these is read; any other is refused before torch sees it.

The archive is looked at through torch's own reader: another one can find other files in the same bytes, as it compares
names with regard to case, or looks for the list of files in another place.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fewbit.data.program_graph import is_path, unsafe_parts
from fewbit.errors import DataError

_MOST_JSON = 512 << 20
_MODEL = re.compile(r"models/(\w+)\.json")
_RECORD = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|extra/.+|models/\w+\.json"
    r"|data/weights/(weight_\d+|\w+_weights_config\.json)|data/constants/(tensor_\d+|\w+_constants_config\.json)"
    r"|data/sample_inputs/\w+\.pt",
    re.ASCII,
)


def open_program(path: Path) -> Any:
    """The `ExportedProgram` of a `.pt2` file.

    Raises:
        DataError: a file that is no such archive, or whose loading would run code.
    """
    try:
        reason = next(_reasons(path, _reader(path)), None)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    if reason is not None:
        raise DataError(
            f"opening this program could run code: {reason}",
            code="model-unsafe",
            where=path,
            expected="plain tensors and operators, as torch.export.save writes them by default",
            try_="the tensors as .safetensors with --factory file.py:function",
        )
    # Not `torch.export.load`: what this cannot read, that takes for an older format, which is one of pickles.
    from torch.export.pt2_archive._package import load_pt2

    try:
        return load_pt2(str(path)).exported_programs["model"]
    except Exception as error:  # whatever a damaged archive makes torch raise
        raise _unreadable(path, error) from error


def _reader(path: Path) -> Any:
    try:
        return torch._C.PyTorchFileReader(str(path))
    except RuntimeError as error:
        raise ValueError("no archive of torch.export") from error


def _reasons(path: Path, reader: Any) -> Iterator[str]:
    """Why an archive is not to be trusted."""
    names = reader.get_all_records()
    if "archive_format" not in names:
        raise ValueError("no archive of torch.export")
    with zipfile.ZipFile(path) as archive:
        files = archive.infolist()
    if [file.filename.partition("/")[2] for file in files] != names or len({*map(str.lower, names)}) != len(names):
        yield "its list of files is ambiguous"
    yield from (f"{name!r} is no file of a program" for name in names if not _RECORD.fullmatch(name))
    claimed, size = sum(file.file_size for file in files), path.stat().st_size
    if claimed > size:
        raise ValueError(f"its files have {claimed:,} bytes, and the archive has {size:,}")
    for model in filter(None, map(_MODEL.fullmatch, names)):
        yield from _reasons_of_model(reader, model[1])


def _reasons_of_model(reader: Any, name: str) -> Iterator[str]:
    """The same for one model, by the names under which torch asks for its files."""
    if not _only_tensors(reader.get_record(f"data/sample_inputs/{name}.pt")):
        yield "its sample inputs hold more than tensors"
    for file in (f"data/weights/{name}_weights_config.json", f"data/constants/{name}_constants_config.json"):
        for key, entry in _json(reader, file)["config"].items():
            if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
                yield f"{key} in {file} is pickled"
            if not is_path(key):
                yield f"{key[:80]!r} is no name"
    yield from unsafe_parts(_json(reader, f"models/{name}.json"))


def _json(reader: Any, name: str) -> Any:
    text = reader.get_record(name)
    if len(text) > _MOST_JSON:
        raise ValueError(f"{name} is larger than any program's")
    return json.loads(text.decode())


def _only_tensors(content: bytes) -> bool:
    if not content:
        return True
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # torch would try again without the restriction
        return False
    return True


def _unreadable(path: Path, error: Exception) -> DataError:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(
        f"the program cannot be read: {why[:200]}",
        code="model-unreadable",
        where=path,
        expected="a file that torch.export.save wrote",
        try_="export it again with this version of torch",
    )
