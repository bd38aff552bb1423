# SPDX-License-Identifier: Apache-2.0
"""Texts with the slips people make: letters swapped or lost, words left out, another case. Digits never change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

_WORD = re.compile(r"\S+\s*")


def augment_text(text: str, settings: CustomConfig, random: np.random.Generator) -> str:
    """One text, changed as the settings say."""
    text = drop_words(text, settings.augment_words, random)
    text = slip_letters(text, settings.augment_characters, random)
    return change_case(text, settings.augment_case, random)


def drop_words(text: str, share: float, random: np.random.Generator) -> str:
    """Leave out a share of the words; at least one stays, and so does white space at both ends.

    >>> drop_words(" one two three\\n", 0.5, np.random.default_rng(0))
    ' one\\n'
    """
    body = text.strip()
    words = [word.strip() for word in _WORD.findall(body)]
    remaining = [word for word in _WORD.findall(body) if random.random() >= share]
    if not words or len(remaining) == len(words):
        return text
    if not remaining:
        remaining = [words[int(random.integers(len(words)))]]
    start, end = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return start + "".join(remaining).rstrip() + end


def slip_letters(text: str, share: float, random: np.random.Generator) -> str:
    """Drop, double, swap or replace a share of the letters; new ones come from the text, so its script stays.

    >>> slip_letters("call 555 0199 now", 0.0, np.random.default_rng(0))
    'call 555 0199 now'
    """
    letters = sorted(set(filter(str.isalpha, text)))
    changed: list[str] = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if not letter.isalpha() or random.random() >= share:
            changed.append(letter)
            continue
        slip = int(random.integers(4))
        if slip == 0 and position < len(text) and text[position].isalpha():
            changed += [text[position], letter]
            position += 1
        elif slip == 1:
            changed += [letter, letter]
        elif slip == 2:
            changed.append(letters[int(random.integers(len(letters)))])
    return "".join(changed)


def change_case(text: str, share: float, random: np.random.Generator) -> str:
    """With a probability of `share`, the text in lower case, upper case, or with its case swapped."""
    if random.random() >= share:
        return text
    return (text.lower, text.upper, text.swapcase)[int(random.integers(3))]()
