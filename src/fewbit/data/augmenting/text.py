# SPDX-License-Identifier: Apache-2.0
"""A text with the faults people make: letters swapped or lost, words left out, another case. Digits stay."""

from __future__ import annotations

import random
import re

_WORDS = re.compile(r"\S+\s*")


def noisy(text: str, share: float, rng: random.Random) -> str:
    """Some letters dropped, doubled, swapped with the next, or replaced by another letter of the same text.

    Letters come from the text itself, so that the script stays. Digits and signs are never touched: in them a slip
    changes what a text says.

    >>> noisy("call 555 0199 now", 0.0, random.Random(0))
    'call 555 0199 now'
    """
    letters = sorted(set(filter(str.isalpha, text)))
    out: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if not letter.isalpha() or rng.random() >= share:
            out.append(letter)
            continue
        way = int(rng.random() * 4)
        if way == 0 and at < len(text) and text[at].isalpha():
            out += text[at], letter
            at += 1
        elif way == 1:
            out += letter, letter
        elif way == 2:
            out.append(letters[int(rng.random() * len(letters))])
        # and what is left: the letter is lost
    return "".join(out)


def without_words(text: str, share: float, rng: random.Random) -> str:
    """Some words left out; at least one stays.

    >>> without_words("one two three", 0.5, random.Random(1))
    'two three'
    """
    words = _WORDS.findall(text)
    kept = [word for word in words if rng.random() >= share]
    if not words or len(kept) == len(words):
        return text
    before = text[: len(text) - len(text.lstrip())]
    return before + ("".join(kept) if kept else words[int(rng.random() * len(words))])


def recased(text: str, share: float, rng: random.Random) -> str:
    """The text in lower case, in capitals, or with its case swapped, with a probability of `share`."""
    if rng.random() >= share:
        return text
    return (text.lower, text.upper, text.swapcase)[int(rng.random() * 3)]()
