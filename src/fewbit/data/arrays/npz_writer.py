# SPDX-License-Identifier: Apache-2.0
"""Writing `.npz` and `.npy` files: whole or not at all, the same bytes for the same arrays, under any name.

`numpy.savez` takes the names as keyword arguments and so breaks on an array called `file`; it stamps the time
of day into the archive and leaves half a file behind when it is stopped. This writer has none of that.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.member_names import unsafe_name
from fewbit.errors import DataError

_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_npz(path: str | Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays into an uncompressed `.npz` that numpy, ONNX tools and `read_npz` can read.

    Args:
        path: the file; its folder must exist. Taken as it is: no suffix is added.
        arrays: by name. Types that numpy does not know (bfloat16, float8) are widened to float32, int4 to int8.

    Raises:
        DataError: an array of objects or records, or a name no archive can hold. Nothing is written then.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_npz(f"{folder}/a.npz", {"file": np.arange(3)})
    ...     np.load(f"{folder}/a.npz")["file"].tolist()
    [0, 1, 2]
    """
    path = Path(path)
    plain = {name: _plain(name, np.asarray(array), path) for name, array in arrays.items()}
    with _whole(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in plain.items():
            _write_member(archive, name, array)


def write_npy(path: str | Path, array: NDArray[np.generic]) -> None:
    """Write one array that has no name, as `write_npz` writes those that have."""
    path = Path(path)
    plain = _plain(path.stem, np.asarray(array), path)
    with _whole(path) as file:
        np.lib.format.write_array(file, plain, allow_pickle=False)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside its place, moved there when it is whole and removed when it is not."""
    temporary = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_member(archive: zipfile.ZipFile, name: str, array: NDArray[np.generic]) -> None:
    info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    info.create_system = 3  # the same bytes on every system
    info.external_attr = 0o600 << 16
    with archive.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


def _plain(name: str, array: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    """The array in a dtype every reader of `.npy` knows."""
    reason = unsafe_name(f"{name}.npy")
    if reason:
        raise DataError(
            f"an array cannot be stored under the name {name!r}: {reason}", code="archive-unsafe", where=path
        )
    if array.dtype.isbuiltin == 2:  # registered from outside numpy: ml_dtypes
        return array.astype(np.int8 if "int" in array.dtype.name else np.float32)
    if array.dtype.kind not in "biufcUS":
        raise DataError(
            f"array {name!r} has dtype {array.dtype}, which cannot be stored without pickling",
            code="array-dtype",
            where=path,
            expected="a plain dtype: bool, int, uint, float, complex or text",
        )
    return array
