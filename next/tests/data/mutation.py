# SPDX-License-Identifier: Apache-2.0
"""Damaged copies of datasets: what disks, editors, sync tools and attackers do to files.

`mutate_bytes` injures content, `mutate_folder` content or structure. Both are seeded: a number names a case.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import stat
import struct
from pathlib import Path

NUMBERS = (
    b"0", b"-1", b"1e309", b"-1e-320", b"NaN", b"Infinity", b"99999999999999999999", b"2147483648", b"1_000", b"0x10",
    b"007", b"1,5", b"\xd9\xa3", b"9" * 400, b"0.1" + b"0" * 60, b"true", b"null", b"",
)  # fmt: skip
TEXTS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\x1b[31m", b"\xe2\x80\xa8", b"\r",
    b"\n\n", b'"', b"'", b"\\", b"\\ud800", b"{" * 3000, b"[" * 3000, b"<!DOCTYPE x>", b"&a;", b"%s%n",
    b"../../../etc/passwd", b"!!python/object/apply:os.system [1]", b"*a", b"\t", b";", b"|", b"=cmd()", b"{{7*7}}",
)  # fmt: skip
SIZES = tuple(
    struct.pack(code, value)
    for code in ("<H", ">H", "<L", ">L", "<Q", ">Q")
    for value in (0, 1, (1 << (8 * struct.calcsize(code))) - 1, 1 << (8 * struct.calcsize(code) - 1))
)
NAMES = (
    "\x1b[31mred\x1b[0m", "\u202egnp.exe", "new\nline", "tab\tname", "\udcff\udcfe", "a" * 200, "-rf", "..hidden",
    "con", "%00", "name with spaces ", "é", "e\u0301", "{data}", "[bold]x", "<b>", "'\"", "!@#$", "train", "0",
)  # fmt: skip


def mutate_bytes(raw: bytes, chance: random.Random) -> bytes:
    """One to three injuries of one file's content."""
    data = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(_INJURIES)(data, chance)
    return bytes(data)


def _place(data: bytearray, chance: random.Random) -> int:
    """Headers and ends are hit as often as everything between."""
    area = chance.randrange(3)
    if area == 0:
        return chance.randrange(min(len(data), 64) + 1)
    return len(data) - chance.randrange(min(len(data), 64) + 1) if area == 1 else chance.randrange(len(data) + 1)


def _truncate(data: bytearray, chance: random.Random) -> None:
    del data[_place(data, chance) :]


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 4, 16))):
        if data:
            data[min(_place(data, chance), len(data) - 1)] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, chance: random.Random) -> None:
    patch = chance.choice((*SIZES, bytes([chance.randrange(256)]) * chance.randrange(1, 9)))
    at = _place(data, chance)
    data[at : at + len(patch)] = patch


def _insert(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    data[at:at] = chance.choice((chance.randbytes(chance.randrange(1, 40)), chance.choice(TEXTS)))


def _number(data: bytearray, chance: random.Random) -> None:
    """Replace digits, where there are any, by an extreme number."""
    places = [at for at, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    if places:
        at = chance.choice(places)
        data[at : at + chance.randrange(1, 4)] = chance.choice(NUMBERS)


def _remove(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    del data[at : at + chance.randrange(1, 100)]


def _duplicate(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    data[at:at] = data[max(0, at - chance.randrange(1, 300)) : at]


def _swap(data: bytearray, chance: random.Random) -> None:
    first, second = sorted((_place(data, chance), _place(data, chance)))
    length = min(chance.randrange(1, 64), second - first)
    data[first : first + length], data[second : second + length] = (
        data[second : second + length],
        data[first : first + length],
    )


def _nest(data: bytearray, chance: random.Random) -> None:
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"<a>", b"</a>"), (b"(", b")")))
    depth = chance.choice((50, 2000, 100_000))
    at = _place(data, chance)
    data[at:at] = opening * depth + closing * depth


def _empty(data: bytearray, chance: random.Random) -> None:
    data[:] = chance.choice(
        (b"", b"\0" * 1000, b"\n", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"<html>")
    )


_INJURIES = (
    _truncate,
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _insert,
    _number,
    _remove,
    _duplicate,
    _swap,
    _nest,
    _empty,
)


def mutate_folder(folder: Path, chance: random.Random) -> str:
    """Injure one thing in a folder (or the file itself); says what."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else [folder]
    victim = chance.choice(files)
    if folder.is_file() or chance.random() < 0.75:
        victim.write_bytes(mutate_bytes(victim.read_bytes(), chance))
        return f"content of {victim.name}"
    kind = chance.choice(list(_STRUCTURES))
    with contextlib.suppress(OSError):  # some names cannot exist on some systems
        _STRUCTURES[kind](folder, victim, chance)
    return f"{kind} at {victim.name}"


def _rename(folder: Path, victim: Path, chance: random.Random) -> None:
    name = chance.choice(NAMES) + chance.choice((victim.suffix, victim.suffix, victim.suffix.upper(), ""))
    os.rename(victim, victim.with_name(name))


def _rename_folder(folder: Path, victim: Path, chance: random.Random) -> None:
    if victim.parent != folder:
        os.rename(victim.parent, victim.parent.with_name(chance.choice(NAMES)))


def _delete(folder: Path, victim: Path, chance: random.Random) -> None:
    victim.unlink()


def _pipe(folder: Path, victim: Path, chance: random.Random) -> None:
    victim.unlink()
    os.mkfifo(victim)


def _cycle(folder: Path, victim: Path, chance: random.Random) -> None:
    (victim.parent / "again").symlink_to(folder, target_is_directory=True)


def _link(folder: Path, victim: Path, chance: random.Random) -> None:
    victim.unlink()
    victim.symlink_to(chance.choice(("/dev/zero", "/proc/self/mem", "nowhere", victim.name, "..", "/")))


def _folder_instead(folder: Path, victim: Path, chance: random.Random) -> None:
    victim.unlink()
    victim.mkdir()
    (victim / "inside.txt").write_text("x")


def _copy(folder: Path, victim: Path, chance: random.Random) -> None:
    target = victim.parent / chance.choice((f"copy of {victim.name}", f"train/{victim.name}", victim.name.upper()))
    target.parent.mkdir(exist_ok=True)
    shutil.copy(victim, target)


def _deep(folder: Path, victim: Path, chance: random.Random) -> None:
    target = victim.parent
    for _ in range(60):
        target = target / "d"
    target.mkdir(parents=True)
    shutil.copy(victim, target / victim.name)


def _sparse(folder: Path, victim: Path, chance: random.Random) -> None:
    with victim.open("r+b") as file:
        file.truncate(victim.stat().st_size + (1 << 28))


def _stranger(folder: Path, victim: Path, chance: random.Random) -> None:
    names = (
        "data.yaml",
        "classes.txt",
        "metadata.csv",
        "dataset_info.json",
        "notes.txt",
        "x.npz",
        "labels.cache",
        "a.tar",
    )
    (folder / chance.choice(names)).write_bytes(
        chance.choice((b"", b"path: /\ntrain: .\n", b"\x80\x04N.", b"{}", b"a,b\n1"))
    )


_STRUCTURES = {
    "rename": _rename,
    "rename folder": _rename_folder,
    "delete": _delete,
    "pipe": _pipe,
    "cycle": _cycle,
    "link": _link,
    "folder instead of file": _folder_instead,
    "copy": _copy,
    "deep folders": _deep,
    "sparse file": _sparse,
    "stranger": _stranger,
}


def folder_digest(folder: Path) -> str:
    """A hash of names, kinds and contents; large sparse files by size."""
    digest = hashlib.blake2b()
    paths = [folder, *sorted(folder.rglob("*"))] if folder.is_dir() else [folder]
    for path in paths:
        status = path.lstat()
        digest.update(os.fsencode(path) + f"{status.st_mode} {status.st_mtime_ns}".encode())
        if stat.S_ISREG(status.st_mode):
            digest.update(path.read_bytes() if status.st_size < 1 << 24 else str(status.st_size).encode())
    return digest.hexdigest()
