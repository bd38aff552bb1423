# SPDX-License-Identifier: Apache-2.0
"""What is odd about the classes of an image folder: their names, and which split has which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

from fewbit.data.findings import Code, Severity
from fewbit.data.images.layout import Layout

CODES = {
    "class-unseen-in-train": Code(
        Severity.ERROR,
        "a class of another split has no image in train",
        "add training images, correct the folder's name, or remove the class",
        policy="raise",
        policies=("drop", "keep"),
    ),
    "class-unknown": Code(
        Severity.ERROR,
        "a class folder is not among the classes that were given",
        "correct the folder's name, or add it to classes=",
        policy="raise",
        policies=("drop",),
    ),
    "class-missing-in-split": Code(
        Severity.INFO, "a class of train has no image in another split", "nothing, if that is intended"
    ),
    "class-empty": Code(
        Severity.WARN, "a class folder holds no image; the class keeps its index", "fill the folder or remove it"
    ),
    "class-numeric": Code(
        Severity.WARN,
        "class names are numbers that differ from the class's index",
        "sorted as text, '10' comes before '2': use facts['classes'], or pad the names with zeros",
    ),
    "class-collision": Code(
        Severity.WARN,
        "class names differ only in case or in how an accent is written",
        "rename one; on a Mac or on Windows they are the same folder",
    ),
    "one-class": Code(
        Severity.WARN, "there is only one class folder", "open the folder that holds the classes themselves"
    ),
}

_HINTS = 5  # comparing names is slow, and a folder can hold a hundred thousand of them
_COMPARED = 5_000


def examine_classes(layout: Layout, classes: Sequence[str]) -> None:
    """Add what is odd about the classes to the layout's faults.

    Args:
        layout: the folder's layout.
        classes: the class names in the order of their indices.
    """
    if not layout.labelled:
        return
    _names(layout, classes)
    known = set(classes)
    hints = _Hints()
    trained = {name for name, entries in layout.images.get("train", {}).items() if entries}
    for split, members in layout.images.items():
        for name, entries in members.items():
            if name not in known:
                message = f"is not among the {len(classes)} given classes"
                layout.class_fault("class-unknown", message + hints.near(name, classes), split, name)
            elif not entries:
                layout.class_fault("class-empty", f"the class {name!r} has no image here", split, name)
            elif trained and name not in trained:
                message = f"{len(entries):,} images of the class {name!r}, of which train has none"
                layout.class_fault("class-unseen-in-train", message + hints.near(name, trained), split, name)
        if trained and split != "train":
            for name in sorted(trained - set(members)):
                layout.fault("class-missing-in-split", f"no image of the class {name!r}", split)


class _Hints:
    """Which name was meant, for the first few names that are wrong."""

    def __init__(self) -> None:
        self._left = _HINTS

    def near(self, name: str, known: Iterable[str]) -> str:
        """A question to put behind a message, or nothing."""
        self._left -= 1
        if self._left < 0:
            return ""
        folded = {other.casefold(): other for other in sorted(known)[:_COMPARED]}
        close = get_close_matches(name.casefold(), folded, n=1)
        return f"; did you mean {folded[close[0]]!r}?" if close else ""


def _names(layout: Layout, classes: Sequence[str]) -> None:
    _numbers(layout, classes)
    alike: dict[str, set[str]] = defaultdict(set)
    for name in classes:
        alike[name.casefold()].update(layout.spellings.get(name, {name}))
    for spelled in alike.values():
        if len(spelled) > 1:
            message = f"{' and '.join(ascii(name) for name in sorted(spelled))} are one name to other systems"
            layout.fault("class-collision", message, sorted(spelled)[0])
    if len(classes) == 1 and any(any(members.values()) for members in layout.images.values()):
        nested = {entry.name.rsplit("/", 1)[0] for _, _, entry in layout.all_images()}
        hint = f", and its images lie in {len(nested)} folders below it" if len(nested) > 1 else ""
        layout.fault("one-class", f"the only class is {classes[0]!r}{hint}")


def _numbers(layout: Layout, classes: Sequence[str]) -> None:
    """Names that are all numbers should be their indices; where only some are, they should at least be in order."""
    numbers = [(index, name) for index, name in enumerate(classes) if name.isdecimal()]
    moved = [(index, name) for index, name in numbers if index != int(name)]
    if moved and len(numbers) == len(classes):
        index, name = moved[0]
        layout.fault("class-numeric", f"the class named {name!r} has the index {index} ({len(moved)} such classes)")
        return
    for (_, before), (index, name) in pairwise(numbers):
        if int(before) > int(name):
            layout.fault("class-numeric", f"the class named {name!r} has the index {index}, after {before!r}")
            return
