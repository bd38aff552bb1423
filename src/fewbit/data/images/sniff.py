# SPDX-License-Identifier: Apache-2.0
"""What kind of image a file is: by its first bytes, and what its name claims."""

from __future__ import annotations

HEAD = 32
"""How many bytes from the start of a file `sniff` wants."""

NAMES: dict[str, tuple[str, ...]] = {
    "jpeg": (".jpg", ".jpeg"),
    "png": (".png",),
    "ppm": (".ppm", ".pgm"),
    "bmp": (".bmp",),
    "tiff": (".tif", ".tiff"),
    "webp": (".webp",),
}
"""The kinds whose files are read, and their suffixes; the first one is given to a file that has a wrong one."""

EXTENSIONS: frozenset[str] = frozenset(suffix for suffixes in NAMES.values() for suffix in suffixes)
"""Lower-case suffixes of the image files we read: torchvision's list."""

DECODABLE: frozenset[str] = frozenset({*NAMES, "gif"})
"""Kinds that can be decoded; a GIF is read only where its name says something else."""

UNREAD_EXTENSIONS: frozenset[str] = frozenset(
    (".gif", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".jfif", ".jpe", ".pbm", ".pnm", ".svg", ".psd", ".ico", ".dng")
)
"""Suffixes of files that are images to a person and that we do not read: they are reported."""

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"8BPS", "psd"),
    (b"\0\0\1\0", "ico"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),
    (b"v/1\x01", "exr"),
    (b"<svg", "svg"),
)
_BRANDS = {b"avif": "avif", b"avis": "avif", **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"mif1"), "heic")}
_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})


def sniff(head: bytes) -> str | None:
    """The kind of image that begins with these bytes, or `None`.

    Args:
        head: the first `HEAD` bytes of the file, or fewer.

    >>> sniff(b"GIF89a"), sniff(b"hello")
    ('gif', None)
    """
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12])
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "ppm"
    # "BM" alone begins many a text; the size of the second header settles it.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    return None


def suffix(name: str) -> str:
    """The lower-case suffix of a file name, with its dot; `""` when there is none.

    >>> suffix("train/cat/A.JPG"), suffix("a.b/c")
    ('.jpg', '')
    """
    dot = name.rfind(".")
    return name[dot:].lower() if dot > name.rfind("/") + 1 else ""


def is_image_name(name: str) -> bool:
    """Whether a file's name ends like an image that we read."""
    return suffix(name) in EXTENSIONS
