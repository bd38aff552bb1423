# SPDX-License-Identifier: Apache-2.0
"""Words of a message that are fewbit's own: not those in quotes, in paths, or of a place, which are the user's."""

from __future__ import annotations

import re
from collections.abc import Callable

PLACE = re.compile(r"^( +where: +)(.*)$", re.MULTILINE)
"""Where a fault is, in a list of faults."""

_QUOTED = r"""(?<!\w)'(?:[^'\n]|'(?=\w))*'(?!\w)|(?<!\w)"[^"\n]*"(?!\w)"""  # the apostrophe of "user's" opens nothing
_PATH = r"""[^\s'"=,;:()\[\]{}]*[/\\][^\s'",;:()]*"""
_THEIRS = re.compile(f"(?m:{PLACE.pattern})|{_QUOTED}|{_PATH}")


def replaced(text: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> str:
    """A text in which what a pattern finds is replaced, unless it begins within what is the user's.

    Args:
        text: the message.
        pattern: what is looked for.
        by: says what comes in its place.

    >>> replaced("a/seed.txt, 'seed': seed", word("seed"), lambda found: "--seed")
    "a/seed.txt, 'seed': --seed"
    """
    theirs = [found.span() for found in _THEIRS.finditer(text)]

    def put(found: re.Match[str]) -> str:
        return found[0] if any(start <= found.start() < end for start, end in theirs) else by(found)

    return pattern.sub(put, text)


def word(text: str) -> re.Pattern[str]:
    """Finds a text where it is no part of a longer word or the name of a file."""
    before = r"(?<![\w./\\-])" if text[0].isalnum() or text[0] == "-" else ""
    after = r"(?![\w/\\-]|\.\w)" if text[-1].isalnum() else ""
    return re.compile(before + re.escape(text) + after)
