# SPDX-License-Identifier: Apache-2.0
"""A list file: one image path a line. Blank lines and lines that begin with `#` say nothing."""

from __future__ import annotations

import codecs
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.small_text import Unreadable, read_small
from fewbit.data.findings import Code, Severity
from fewbit.data.images.sniff import is_image_name
from fewbit.data.sample import Place

CODES = {
    "list-invalid": Code(
        Severity.ERROR,
        "a line of a list file is not the path of an image",
        "one image path a line, in UTF-8",
        "raise",
        ("drop",),
    ),
    "image-missing": Code(
        Severity.ERROR,
        "a list file names an image that is not there",
        "restore the image or delete the line; `--fix` leaves it out",
        "raise",
        ("drop",),
    ),
}


def read_list(path: str, name: str, base: Path) -> Iterator[tuple[str, Place] | Fault]:
    """The images of a list file that are there, with the line that names them, and a fault for each other line.

    Args:
        path: the list file.
        name: its name for messages.
        base: where a relative line starts; one that begins with `./` starts at the list file's own folder.
    """
    try:
        if is_image_name(path):
            raise Unreadable("is an image")
        content = read_small(path).removeprefix(codecs.BOM_UTF8)
    except Unreadable as error:
        yield Fault("list-invalid", f"the list file {error}", Place(name))
        return
    folder = Path(path).parent
    for number, raw in enumerate(content.splitlines(), start=1):
        place = Place(name, line=number)
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            yield Fault("list-invalid", f"byte {raw[error.start]:#04x} is not UTF-8", place)
            continue
        if line and not line.startswith("#"):
            yield _image(line, place, base, folder)


def has_absolute_lines(path: str) -> bool:
    """Whether a list file names an image by its absolute path, which a copy of the dataset would share."""
    try:
        lines = read_small(path).removeprefix(codecs.BOM_UTF8).splitlines()
    except Unreadable:
        return False
    return any(os.path.isabs(line.strip()) for line in lines)


def _image(line: str, place: Place, base: Path, folder: Path) -> tuple[str, Place] | Fault:
    if not is_image_name(line):
        return Fault("list-invalid", f"{line[:200]!r} is not named like an image", place)
    plain = line.replace("\\", "/")
    starts = (folder, base) if plain.startswith("./") else (base, folder)
    tried = [os.path.normpath(start / plain) for start in starts]
    for path in tried:
        for form in (path, unicodedata.normalize("NFC", path), unicodedata.normalize("NFD", path)):
            if os.path.isfile(form):
                return form, place
    return Fault("image-missing", f"{line[:200]!r} leads to {tried[0][:300]}, which is not there", place)
