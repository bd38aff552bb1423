# SPDX-License-Identifier: Apache-2.0
"""From rows to samples of at most so many tokens: joined and cut, or one row a sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fewbit.data.sample import Place, Sample
from fewbit.data.text.encoding import Encoder, Ids
from fewbit.data.text.tally import Tally
from fewbit.data.text.wording import Wording
from fewbit.errors import UsageError, nearest

PACKS = ("concatenate", "pad")


def check_pack(pack: str) -> str:
    """The way of packing itself.

    Raises:
        UsageError: there is no such way.
    """
    if pack not in PACKS:
        raise UsageError(f"there is no way to pack called {pack!r}", where="pack", expected=nearest(pack, PACKS))
    return pack


def concatenate(
    rows: Iterable[Sample], wording: Wording, encoder: Encoder, seqlen: int, tally: Tally
) -> Iterator[tuple[Ids, Place]]:
    """Rows one after the other, each ended, and every `seqlen` tokens a sample that starts as a text does.

    Nothing is lost but the end, which is too short for a sample; it is one if there is no other.
    """
    waiting: list[int] = []
    start: Place | None = None
    body = seqlen - len(encoder.before)
    for row in rows:
        ids = encoder.running(wording(row))
        if not tally.row(ids):
            continue
        start = start or row.place
        waiting += ids
        at = 0
        while len(waiting) - at >= body:
            yield _whole(encoder.before + waiting[at : at + body]), start
            at += body
            start = row.place
        del waiting[:at]
        if not waiting:
            start = None
    if waiting and not tally.samples:
        yield _whole(encoder.before + waiting), start or Place()
    else:
        tally.left_over = len(waiting)


def one_by_one(
    rows: Iterable[Sample], wording: Wording, encoder: Encoder, seqlen: int, tally: Tally
) -> Iterator[tuple[Ids, Place]]:
    """Every row a sample with its label, what is longer than `seqlen` tokens cut."""
    for row in rows:
        said = wording(row)
        found, cut = encoder.alone(said, seqlen)
        if tally.row(found.tokens):
            tally.cut += cut
            yield replace(found, label=said.label), row.place


def _whole(tokens: list[int]) -> Ids:
    return Ids(tokens, [0] * len(tokens))
