# SPDX-License-Identifier: Apache-2.0
"""Class names where no data.yaml gives them: `classes.txt` (labelImg, Label Studio) and `*.names` (Darknet)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.small_text import Unreadable, read_text
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place

CODES = {
    "names-conflict": Code(
        Severity.WARN, "two files name the classes differently", "keep the right one and delete the other"
    ),
    "names-unknown": Code(
        Severity.INFO,
        "nothing names the classes, so class numbers cannot be checked",
        "write a data.yaml with `names:`, or a classes.txt with one name a line",
    ),
}

FILE = "classes.txt"


def name_files(folders: Iterable[str]) -> list[str]:
    """The files in these folders that list class names."""
    found = []
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names if name == FILE or name.endswith(".names")]
    return found


def read_names(path: str, name: str) -> tuple[tuple[str, ...], list[Fault]]:
    """The names of one such file, one a line, and what is wrong with it.

    A blank line inside keeps its number: the names after it would otherwise all move by one.
    """
    try:
        lines = [line.strip() for line in read_text(path).replace("\r\n", "\n").split("\n")]
    except Unreadable as error:
        fix = "write one name a line, in UTF-8"
        return (), [Fault("names-invalid", f"the file {error}", Place(name, offset=error.offset), fix)]
    while lines and not lines[-1]:
        lines.pop()
    faults = [
        Fault("names-invalid", "a blank line between the names", Place(name, line=number))
        for number, line in enumerate(lines, start=1)
        if not line
    ]
    return tuple(line or f"class_{number}" for number, line in enumerate(lines)), faults
