# SPDX-License-Identifier: Apache-2.0
"""How much of a remote dataset is read for a subset: 512 samples spread over 1 TB of generated objects.

    python bench/remote.py [--objects 1000000] [--samples 512]

The objects exist only as numbers: a file system of fsspec makes the bytes that are asked for and counts them.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import fsspec
import numpy as np

from fewbit.data.dataset import Dataset

VALUES = 1 << 18  # float32: 1 MiB per object


@lru_cache(maxsize=8)
def object_bytes(number: int) -> bytes:
    """The `.npz` file of one object."""
    array = io.BytesIO()
    np.save(array, np.full(VALUES, number, np.float32))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(zipfile.ZipInfo("x.npy"), array.getvalue())
    return content.getvalue()


OBJECT_SIZE = len(object_bytes(0))


class Listing(Mapping[str, dict[str, Any]]):
    """Names and sizes of all objects, made one at a time."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (f"bucket/set/{number // 1000:04}/{number:07}.npz" for number in range(self._count))

    def __getitem__(self, name: str) -> dict[str, Any]:
        return {"name": name, "size": OBJECT_SIZE, "type": "file", "ETag": str(zlib.crc32(name.encode()))}


class VirtualFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects that are generated when they are read."""

    protocol = "virtual"
    objects: ClassVar[int] = 0
    requests: ClassVar[int] = 0
    bytes_read: ClassVar[int] = 0

    def isfile(self, path: str) -> bool:
        return path.endswith(".npz")

    def find(self, path: str, **_: Any) -> Listing:
        return Listing(self.objects)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return Listing(self.objects)[path]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return _Counted(object_bytes(int(path[-11:-4])))


class _Counted(io.BytesIO):
    def read(self, count: int | None = -1) -> bytes:
        content = super().read(count)
        VirtualFileSystem.requests += 1
        VirtualFileSystem.bytes_read += len(content)
        return content


def main() -> None:
    """Print seconds, requests and the share of bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=512)
    arguments = parser.parse_args()
    fsspec.register_implementation("virtual", VirtualFileSystem, clobber=True)
    VirtualFileSystem.objects = arguments.objects
    start = time.perf_counter()
    dataset = Dataset("virtual://bucket/set")
    opened = time.perf_counter()
    total = arguments.objects * OBJECT_SIZE
    print(f"{len(dataset):,} objects, {total / 1e12:.2f} TB: opened in {opened - start:.1f} s", flush=True)
    subset = dataset.subset(arguments.samples)
    numbers = [int(sample["x"][0]) for sample in subset]
    seconds = time.perf_counter() - opened
    spread = np.histogram(numbers, bins=8, range=(0, arguments.objects))[0]
    share = VirtualFileSystem.bytes_read / total
    print(f"{len(numbers)} samples in {seconds:.1f} s, {VirtualFileSystem.requests:,} requests")
    print(f"samples per eighth of the objects: {spread.tolist()}")
    print(f"read {VirtualFileSystem.bytes_read / 1e6:,.0f} MB = {100 * share:.4f} % (limit 0.1 %)")
    raise SystemExit(share > 0.001)


if __name__ == "__main__":
    main()
