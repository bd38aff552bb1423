# SPDX-License-Identifier: Apache-2.0
"""At most `max_length` tokens: the prompt is cut first, from its start, so that the answer stays whole.

Only an answer that is too long by itself loses its end, and then its end-of-text too: it does not end there. The start
that the tokenizer puts before a text always stays. Without `max_length` the tokenizer's own limit holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.sample import Sample
from fewbit.data.steps._base import ASKED, FRAME, Context, SampleStep
from fewbit.data.text.named_tokenizer import longest_of
from fewbit.errors import UsageError
from fewbit.record import Record

AFTER = ("tokenization",)
NEEDS = ("tokenization",)
DROPS = False
PARTS = True
KEYS = ()


def make(context: Context) -> SampleStep:
    """Cuts one sample."""
    return Truncation(limit(context), context.record)


def lengths(found: NDArray[np.int64], context: Context) -> NDArray[np.int64]:
    """How long samples are afterwards."""
    return np.minimum(found, limit(context) or found.max(initial=0))


def limit(context: Context) -> int | None:
    """The most tokens of a sample; none if nobody says."""
    said = context.options["max_length"]
    return longest_of(context.tokenizer()) if said is None else int(said)


def kept(parts: NDArray[np.uint8], longest: int) -> NDArray[np.int64]:
    """The places that stay, of tokens that are more than fit.

    >>> kept(np.array([FRAME, ASKED, ASKED, ASKED, 1, 1], np.uint8), 4).tolist()
    [0, 3, 4, 5]
    >>> kept(np.array([FRAME, ASKED, 1, 1, 1, 1], np.uint8), 4).tolist()
    [0, 2, 3, 4]
    """
    frame = np.flatnonzero(parts == FRAME)
    text = np.flatnonzero(parts != FRAME)
    room = longest - len(frame)
    if room <= 0:
        raise UsageError(
            f"max_length={longest}, and {len(frame)} tokens are the tokenizer's own", expected=f"more than {len(frame)}"
        )
    answered = np.flatnonzero((parts != FRAME) & (parts != ASKED))
    if len(answered):
        text = text[text <= answered[-1]]  # what nobody answered goes first
        asked = np.flatnonzero((parts == ASKED) & (np.arange(len(parts)) < answered[-1]))
        first = asked[-1] + 1 if len(asked) else 0
        answer = text[text >= first]
        rest = max(0, room - len(answer))
        before = text[text < first]
        chosen = np.concatenate([before[len(before) - min(rest, len(before)) :], answer[:room]])
    else:
        chosen = text[:room]
    return np.sort(np.concatenate([frame, chosen]))


def window(parts: NDArray[np.uint8], longest: int) -> NDArray[np.int64]:
    """The places that stay of a text in which an answer stands: what is around the answer, as far as there is room.

    >>> window(np.array([FRAME, ASKED, ASKED, ASKED, 1, ASKED, ASKED], np.uint8), 4).tolist()
    [0, 3, 4, 5]
    """
    frame, text = np.flatnonzero(parts == FRAME), np.flatnonzero(parts != FRAME)
    room = longest - len(frame)
    if room <= 0:
        raise UsageError(f"max_length={longest}, and the question alone has more", expected=f"more than {len(frame)}")
    answer = np.flatnonzero(parts[text] != ASKED)
    first = answer[0] - max(0, room - len(answer)) // 2
    first = max(0, min(int(first), len(text) - room))
    return np.sort(np.concatenate([frame, text[first : first + room]]))


@dataclass
class Truncation:
    """Cuts samples to a length, and counts them."""

    longest: int | None
    record: Record
    _seen: dict[str, set[Any]] = field(default_factory=dict)
    _lines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The same sample, or a shorter one."""
        count = len(sample["input_ids"])
        if self.longest is None or count <= self.longest:
            return sample
        whose = np.asarray(sample.get("parts", np.ones(count, np.uint8)))
        stay = (window if "start_positions" in sample else kept)(whose, self.longest)
        place = getattr(sample, "place", None)
        lost = np.setdiff1d(np.flatnonzero((whose != FRAME) & (whose != ASKED)), stay)
        self._count("answer-cut" if len(lost) else "truncated", place)
        return Sample(_moved(_taken(sample, stay, count), sample, stay), place=place)

    def _count(self, what: str, place: Any) -> None:
        seen = self._seen.setdefault(what, set())
        if place in seen:
            return
        seen.add(place)
        if what not in self._lines:
            self.record.note(what, "", where=place, count=0)
            self._lines[what] = self.record.lines[-1]
        line = self._lines[what]
        line["count"] = len(seen)
        loses = "the end of the answer" if what == "answer-cut" else "the start of the prompt"
        line["reason"] = f"truncation: {len(seen):,} samples have more than {self.longest:,} tokens and lose {loses}"


def _taken(sample: dict[str, Any], stay: NDArray[np.int64], count: int) -> dict[str, Any]:
    lists = {name for name, value in sample.items() if isinstance(value, list | np.ndarray) and len(value) == count}
    return {name: np.asarray(value)[stay] if name in lists else value for name, value in sample.items()}


def _moved(made: dict[str, Any], sample: dict[str, Any], stay: NDArray[np.int64]) -> dict[str, Any]:
    """Places in the sample, where they are after the cut."""
    for name in ("start_positions", "end_positions"):
        if name in sample:
            at = int(np.searchsorted(stay, sample[name]))
            made[name] = min(at, len(stay) - 1)
    return made
