# SPDX-License-Identifier: Apache-2.0
"""Which layers a text names: an exact name, a glob (`*.fc1`, where `*` also crosses dots), or `re:` and an expression.

Where several entries match one layer, the most specific one counts, whatever order they were written in:
the exact name; then regular expressions, the longest first; then globs, the one with most literal characters first.
Among equals the alphabet decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

_WILD = re.compile(r"\[[^]]*\]|[*?]")


def matches(pattern: str, name: str) -> bool:
    """Whether an entry names this layer.

    >>> matches("*.fc1", "layers.0.fc1"), matches(r"re:layers\\.\\d+\\.fc1", "layers.10.fc1")
    (True, True)
    """
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], name) is not None
    return pattern == name or fnmatchcase(name, pattern)


def is_pattern(text: str) -> bool:
    """Whether an entry can name more than one layer."""
    return text.startswith("re:") or _WILD.search(text) is not None


def covers(pattern: str, name: str) -> bool:
    """Whether an entry names this layer or one that it lies in."""
    return any(matches(pattern, outer) for outer in lineage(name))


def lineage(name: str) -> Iterator[str]:
    """A layer and everything it lies in: `a.b.c`, `a.b`, `a`."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def most_specific(patterns: Iterable[str], name: str) -> str | None:
    """The entry that counts for a layer, if one matches."""
    return min((p for p in patterns if matches(p, name)), key=lambda p: _rank(p, name), default=None)


def fault_of(pattern: str) -> str | None:
    """Why an entry can never match anything, if so."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            return f"{pattern!r} is not a regular expression: {error}"
    return None


def _rank(pattern: str, name: str) -> tuple[int, int, str]:
    if pattern == name:
        return 0, 0, pattern
    if pattern.startswith("re:"):
        return 1, -len(pattern), pattern
    return 2, -len(_WILD.sub("", pattern)), pattern
