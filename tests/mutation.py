# SPDX-License-Identifier: Apache-2.0
"""Small valid datasets of every kind, and damaged copies of them.

Used by the suite (a few hundred) and by `bench/fuzz.py` (ten thousand). The only two ends allowed: samples, or a
typed finding.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from pathlib import Path

import numpy as np
import zstandard
from PIL import Image

import fewbit
from fewbit.data.arrays.npz_writer import write_npz
from fewbit.errors import FewbitError

ROWS = [{"text": f"row {i}, “quoted” \n and more", "label": i % 3, "nested": {"a": [1, 2.5, None]}} for i in range(6)]


def make_image_folder(folder: Path) -> None:
    for kind, mode in (("jpg", "RGB"), ("png", "RGBA"), ("bmp", "L"), ("webp", "RGB"), ("tif", "I;16"), ("ppm", "RGB")):
        for name in ("cat", "dog"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            picture = Image.new(mode, (12, 11), 70 if mode in ("L", "I;16") else None)
            picture.save(folder / name / f"{name}-{kind}.{kind}")


def make_yolo(folder: Path) -> None:
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (16, 16), (i, 2, 3)).save(folder / "images" / f"{i}.png")
        rows = "0 0.5 0.5 0.2 0.2\n1 0.1 0.1 0.9 0.1 0.9 0.9 0.1 0.9\n"
        (folder / "labels" / f"{i}.txt").write_text(rows)
    (folder / "data.yaml").write_text("path: .\ntrain: images\nval: images\nnames: [car, person]\n")


def make_jsonl(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def make_json(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.json").write_text(json.dumps(ROWS, indent=1))


def make_csv(folder: Path) -> None:
    folder.mkdir(parents=True)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["text", "label"])
    writer.writerows([row["text"], row["label"]] for row in ROWS)
    (folder / "train.csv").write_text(text.getvalue())


def make_gzip(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in ROWS).encode()))


def make_zst(folder: Path) -> None:
    folder.mkdir(parents=True)
    raw = "".join(json.dumps(r) + "\n" for r in ROWS).encode()
    (folder / "train.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(raw))


def make_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": [r["text"] for r in ROWS], "label": [1, 2, 3, 4, 5, 6]}), folder / "train.parquet")


def make_npz(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(3):
        arrays = {"ids": np.arange(8) + i, "mask": np.ones(8, np.float32) * (i + 1)}
        write_npz(folder / f"input{i}.npz", arrays)
    np.savez_compressed(folder / "input9.npz", ids=np.arange(8) + 9, mask=np.linspace(0, 1, 8, dtype=np.float32))


def make_npy(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(3):
        np.save(folder / f"x{i}.npy", np.arange(6, dtype=np.float32).reshape(2, 3) + i)


MAKERS = {name.removeprefix("make_"): make for name, make in list(globals().items()) if name.startswith("make_")}


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """One to three small injuries: what disks, editors and attackers do to bytes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[min(at, len(data) - 1)] = rng.choice((0, 255, 10, 13, 34, 44, 123, 125, 45))
        elif kind == 2:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at:at] = data[max(0, at - 30) : at]
        elif kind == 6:
            data[at:at] = rng.choice(
                (b"\xff\xfe", b"\xef\xbb\xbf", "\u2028".encode(), b"\x00", b"99999999999", b"-1", b"nan")
            )
        elif kind == 7:
            data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\xff\xff\xff\x7f"))
        else:
            data[at:at] = rng.choice((b'"' * 3, b"[" * 400, b"{" * 400, b"\r", b"\n\n", b",,,,", b" " * 50))
    return bytes(data)


def damaged_copy(valid: Path, target: Path, rng: random.Random) -> Path:
    """A copy of a dataset with one file injured; returns the injured file."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(valid, target)
    victim = rng.choice(sorted(p for p in target.rglob("*") if p.is_file()))
    victim.write_bytes(mutate(victim.read_bytes(), rng))
    return victim


def outcome(path: Path) -> str:
    """`samples` or `findings`; anything else comes out as an exception, which is a bug."""
    try:
        report = fewbit.check_dataset(path)
        dataset = fewbit.open_dataset(path)
        for _ in dataset:
            pass
        for index in range(min(3, len(dataset))):
            dataset[index]
    except FewbitError as error:
        assert error.what
        return "findings"
    return "samples" if report.ok else "findings"
