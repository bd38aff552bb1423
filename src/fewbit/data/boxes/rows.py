# SPDX-License-Identifier: Apache-2.0
"""The text of a label file as numbers: one row is a class and then a box or an outline.

    cls xc yc w h              five values: a box by its centre and size
    cls x1 y1 x2 y2 x3 y3 …    seven or more, an odd count: a polygon

Every row is decided by itself, so boxes and polygons may stand in one file, and a row that cannot be read
costs that row and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fewbit.data.boxes.fault import Decide, Fault
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place

CODES = {
    "row-encoding": Code(
        Severity.ERROR, "a label row holds bytes that are no text", "write the row again as UTF-8", "raise", ("drop",)
    ),
    "row-commas": Code(
        Severity.ERROR,
        "a label row is separated by commas",
        "separate the values by spaces; `--fix` does it",
        "raise",
        ("repair", "drop"),
    ),
    "row-count": Code(
        Severity.ERROR,
        "a label row has a count of values that is neither a box nor a polygon",
        "5 values are a box (cls xc yc w h), 7 or more and odd a polygon (cls x1 y1 … xn yn)",
        "raise",
        ("drop",),
    ),
    "row-confidence": Code(
        Severity.ERROR,
        "a label row has a sixth value that looks like a confidence",
        "delete the sixth value; `--fix` does it",
        "raise",
        ("repair", "drop"),
    ),
    "row-number": Code(
        Severity.ERROR, "a value of a label row is not a number", "correct or delete the row", "raise", ("drop",)
    ),
    "row-class": Code(
        Severity.ERROR,
        "the class of a label row is not a whole number from 0",
        "write the class's number in `names`",
        "raise",
        ("drop",),
    ),
    "class-by-name": Code(
        Severity.ERROR,
        "the class of a label row is a name",
        "write the class's number; `--fix` does it",
        "raise",
        ("repair", "drop"),
    ),
    "class-beyond": Code(
        Severity.ERROR,
        "the class of a label row has no name",
        "correct the row, or add the class to `names`",
        "raise",
        ("drop", "keep"),
    ),
    "row-not-finite": Code(
        Severity.WARN, "a label row holds NaN, an infinite or an absurd value", "delete the row", "drop", ("raise",)
    ),
}

_LARGEST_CLASS = (1 << 31) - 1
_LARGEST_VALUE = 1e9  # no image is that wide, and the geometry stays clear of overflow


@dataclass(frozen=True, slots=True)
class Rules:
    """What a row is held against, and how its doubtful cases are read.

    Args:
        names: the class names, when known.
        nc: the number of classes, when known.
        one_based: classes are counted from 1 in the files.
        oriented: rows of nine values are oriented boxes (True) or polygons (False); None: nobody has said.
        pixels: how a box in pixels is read when it is repaired: `centre`, `corners` or `top-left`.
        duplicate_digits: rows that agree to this many digits are duplicates; None: only equal rows.
    """

    names: tuple[str, ...] = ()
    nc: int | None = None
    one_based: bool = False
    oriented: bool | None = None
    pixels: str = "centre"
    duplicate_digits: int | None = None


@dataclass(slots=True)
class Values:
    """One row as numbers: the class, then four (a box) or an even count of six or more (an outline)."""

    place: Place
    text: str
    cls: int
    numbers: tuple[float, ...]
    changed: bool = False


def parse(content: bytes, path: str, rules: Rules, decide: Decide) -> Iterator[Values]:
    """Every row of a label file that can be read; the others are told to `decide`.

    >>> [values.numbers for values in parse(b"0 .5 .5 .2 .2\\n", "a.txt", Rules(), lambda fault: "drop")]
    [(0.5, 0.5, 0.2, 0.2)]
    """
    offset = 0
    for number, raw in enumerate(content.splitlines(keepends=True), start=1):
        if not raw.isspace():
            values = _row(raw, offset, Place(path, line=number), rules, decide)
            if values is not None:
                yield values
        offset += len(raw)


def _row(raw: bytes, offset: int, place: Place, rules: Rules, decide: Decide) -> Values | None:
    try:
        text = written = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        message = f"byte {raw[error.start]:#04x} is not UTF-8"
        decide(Fault("row-encoding", message, replace(place, offset=offset + error.start)))
        return None
    if not written:  # white space that bytes do not know
        return None
    if "," in text or ";" in text:
        text = _without_commas(text)
        message = f"the row is separated by commas: {_short(written)}"
        if decide(Fault("row-commas", message, place, f"write it as {_short(text)}; `--fix` does it")) != "repair":
            return None
    without = _without_confidence(text, place, decide)
    if without is None:
        return None
    text, words = without, without.split()
    if not _count_is_right(words, text, place, decide):
        return None
    numbers = _numbers(words[1:], place, decide)
    if numbers is None:
        return None
    number = _whole(words[0])
    cls = _class(words[0], number, place, rules, decide)
    if cls is None:
        return None
    return Values(place, text, cls, numbers, text is not written or cls != number)


def _without_confidence(text: str, place: Place, decide: Decide) -> str | None:
    """The row without a sixth value from 0 to 1, which detectors write after a box; `None` to drop the row."""
    words = text.split()
    numbers = _floats(words[1:]) if len(words) == 6 else None
    if numbers is None or not 0 <= numbers[-1] <= 1:
        return text
    box = " ".join(words[:5])
    message = f"{_short(text)} has 6 values; the sixth looks like a confidence, which labels do not have"
    fault = Fault("row-confidence", message, place, f"write it as {_short(box)}; `--fix` does it")
    return box if decide(fault) == "repair" else None


def _count_is_right(words: list[str], text: str, place: Place, decide: Decide) -> bool:
    count = len(words)
    if count == 5 or (count >= 7 and count % 2 == 1):
        return True
    decide(Fault("row-count", f"{_short(text)} has {count} {'value' if count == 1 else 'values'}", place))
    return False


def _numbers(words: list[str], place: Place, decide: Decide) -> tuple[float, ...] | None:
    numbers = _floats(words)
    if numbers is None:
        wrong = next(word for word in words if _floats([word]) is None)
        decide(Fault("row-number", f"{_short(wrong)} is not a number", place))
        return None
    # The sum first, which clears nearly every row at once. NaN is never below anything.
    if not sum(map(abs, numbers)) <= _LARGEST_VALUE:
        absurd = [word for word, number in zip(words, numbers) if not abs(number) <= _LARGEST_VALUE]
        if absurd:
            decide(Fault("row-not-finite", f"{_short(absurd[0])} is no coordinate", place))
            return None
    return numbers


def _floats(words: list[str]) -> tuple[float, ...] | None:
    together = "".join(words)
    # Python reads "1_000" and Arabic digits as numbers; no labelling tool writes them.
    if "_" in together or not together.isascii():
        return None
    try:
        return tuple(map(float, words))
    except ValueError:
        return None


def _class(word: str, number: int | None, place: Place, rules: Rules, decide: Decide) -> int | None:
    if number is None and word in rules.names:
        named = rules.names.index(word)
        fault = Fault("class-by-name", f"the class is {_short(word)}, which is class {named}", place)
        return named if decide(fault) == "repair" else None
    if number is None:
        decide(Fault("row-class", f"the class is {_short(word)}, not a whole number from 0", place))
        return None
    cls = number - rules.one_based
    if cls < 0:
        decide(Fault("row-class", "the class is 0, but classes are said to count from 1", place))
        return None
    if rules.nc is not None and cls >= rules.nc:
        message = f"class {cls}, but there are {rules.nc} classes, 0 to {rules.nc - 1}"
        if decide(Fault("class-beyond", message, place)) != "keep":
            return None
    return cls


def _whole(word: str) -> int | None:
    """A class number, also when a spreadsheet has made it "3.0"."""
    found = _floats([word])
    if found is None or not 0 <= found[0] <= _LARGEST_CLASS or found[0] != int(found[0]):
        return None
    return int(found[0])


def _without_commas(text: str) -> str:
    # Five or more words whose commas all stand between digits: decimal commas, not separators.
    decimal = re.search(r"(?<!\d)[,;]|[,;](?!\d)|;", text) is None and len(text.split()) >= 5
    return text.replace(",", ".") if decimal else " ".join(re.split(r"[,;\s]+", text.strip(",; \t")))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
