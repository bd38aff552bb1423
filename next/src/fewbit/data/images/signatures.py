# SPDX-License-Identifier: Apache-2.0
"""Which image format a file has: by its first bytes, and by what its name claims."""

from __future__ import annotations

HEAD = 32
"""Bytes from the start of a file that `image_format` needs."""

SUFFIXES_BY_FORMAT: dict[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm"),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
}
"""Formats that are decoded, by Pillow's names; the first suffix is the most common one."""

SUFFIXES = frozenset(suffix for suffixes in SUFFIXES_BY_FORMAT.values() for suffix in suffixes)
"""Lower-case suffixes of images that are read: torchvision's, and `.gif`."""

SKIPPED_SUFFIXES = frozenset(
    (
        ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jfif", ".jpe", ".pbm", ".pnm", ".svg", ".psd", ".ico",
        ".dng", ".cr2", ".nef", ".arw", ".exr", ".hdr", ".tga", ".dds", ".apng",
    )
)  # fmt: skip
"""Lower-case suffixes of files that people call images and that are not read: they are reported as skipped."""

_MAGIC = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
_FTYP_BRANDS = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"mif1"), "HEIC")
_BMP_HEADER_SIZES = frozenset((12, 40, 52, 56, 64, 108, 124))


def image_format(head: bytes) -> str | None:
    """The image format of a file that begins with these bytes; `None` if it is no image.

    >>> image_format(b"GIF89a"), image_format(b"BM is how many texts begin")
    ('GIF', None)
    """
    for name, magic in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[4:8] == b"ftyp":
        return _FTYP_BRANDS.get(head[8:12])
    if head[:1] == b"P" and head[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6") and head[2:3].isspace():
        return "PPM"
    # "BM" alone begins many texts; the size of the second header tells a bitmap apart.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_SIZES:
        return "BMP"
    return None


def suffix_of(name: str) -> str:
    """The lower-case suffix of a file name, with its dot; empty if there is none.

    >>> suffix_of("train/cat/A.JPG"), suffix_of("a.b/c"), suffix_of(".hidden")
    ('.jpg', '', '')
    """
    dot = name.rfind(".")
    return name[dot:].lower() if dot > name.rfind("/") + 1 else ""


def is_image_name(name: str) -> bool:
    """Whether a file name ends like an image that is read."""
    return suffix_of(name) in SUFFIXES
