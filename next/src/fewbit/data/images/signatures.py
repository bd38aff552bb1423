# SPDX-License-Identifier: Apache-2.0
"""Which image format a file has: by its first bytes, and by what its name claims."""

from __future__ import annotations

import re

HEAD = 32
"""Bytes from the start of a file that `image_format` needs."""

SUFFIXES_BY_FORMAT: dict[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "PPM": (".ppm", ".pgm"), "BMP": (".bmp",), "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",), "GIF": (".gif",),
}  # fmt: skip
"""Formats that are decoded, by Pillow's names; the first suffix is the most common one."""

SUFFIXES = frozenset(suffix for suffixes in SUFFIXES_BY_FORMAT.values() for suffix in suffixes)
"""Lower-case suffixes of images that are read: torchvision's, and `.gif`."""

SKIPPED_SUFFIXES = frozenset((
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jfif", ".jpe", ".pbm", ".pnm", ".svg", ".psd", ".ico", ".dng",
    ".cr2", ".nef", ".arw", ".exr", ".hdr", ".tga", ".dds", ".apng",
))  # fmt: skip
"""Lower-case suffixes of files that people call images and that are not read: they are reported as skipped."""

_SIGNATURES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "WEBP": rb"RIFF....WEBP",
    "PPM": rb"P[1-6]\s",
    # "BM" alone begins many texts; the size of the second header tells a bitmap apart.
    "BMP": rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0",
    "AVIF": rb"....ftypavi[fs]",
    "HEIC": rb"....ftyp(?:hei[cxm]|hevc|mif1)",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _SIGNATURES.items()}


def image_format(head: bytes) -> str | None:
    """The image format of a file that begins with these bytes; `None` if it is no image.

    >>> image_format(b"GIF89a"), image_format(b"BM is how many texts begin")
    ('GIF', None)
    """
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(head)), None)


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
