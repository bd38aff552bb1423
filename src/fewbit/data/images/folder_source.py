# SPDX-License-Identifier: Apache-2.0
"""The images of a laid-out folder as samples, decoded only when asked for.

Where broken files are to be dropped, how many are left is known only after all were decoded once: reading in order
finds out on its way, the length and random access do it before they answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NoReturn

from fewbit.data.findings import Policy
from fewbit.data.images.decode import CODES, ImageFault, read_image
from fewbit.data.images.pixels import Array, Background
from fewbit.data.images.pool import decode_in_order, verify_in_order
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.data.walk import Entry

Member = tuple[Entry, int | None]
"""A file and the index of its class, or `None` when it has no class."""


class FolderSource(Source):
    """Images and labels in order.

    Args:
        members: the files and their labels.
        policy: what to do about a file that does not decode.
        background: the colour laid under transparent pixels.
        workers: how many processes decode when the source is read in order.
    """

    targets = frozenset({"label"})

    def __init__(self, members: Sequence[Member], *, policy: Policy, background: Background, workers: int):
        super().__init__()
        self._members = members
        self._policy = policy
        self._background = background
        self._workers = workers
        self._settled = not any(policy[code] == "drop" for code in CODES)
        self._noted: set[str] = set()

    def __len__(self) -> int:
        self._settle()
        return len(self._members)

    def __iter__(self) -> Iterator[Sample]:
        members, settled = self._members, self._settled
        kept: list[Member] = []
        with closing(decode_in_order(_paths(members), self._workers, self._background)) as outcomes:
            for member, outcome in zip(members, outcomes):
                place = Place(member[0].name, index=len(kept))
                if not isinstance(outcome, ImageFault):
                    kept.append(member)
                    yield _sample(outcome, member, place)
                elif settled or not self._drops(member, outcome):
                    self._refuse(outcome, place)
        self._members, self._settled = kept, True

    def get(self, index: int) -> Sample:
        """The sample at an index; a file that broke after the others were counted raises, whatever the policy."""
        place = self.place(index)
        member = self._members[index]
        try:
            pixels = read_image(member[0].path, background=self._background)
        except ImageFault as fault:
            self._refuse(fault, place)
        return _sample(pixels, member, place)

    def place(self, index: int) -> Place:
        """The file of a sample."""
        self._settle()
        return Place(self._members[index][0].name, index=index)

    def labels(self) -> Sequence[int] | None:
        """The class of each file, if all have one."""
        self._settle()
        labels = [label for _, label in self._members if label is not None]
        return labels if labels and len(labels) == len(self._members) else None

    def _settle(self) -> None:
        """Find out which files are dropped; one whose fault is to be raised stays, and raises when it is read."""
        if self._settled:
            return
        verdicts = zip(self._members, verify_in_order(_paths(self._members), self._workers))
        self._members = [member for member, fault in verdicts if fault is None or not self._drops(member, fault)]
        self._settled = True

    def _drops(self, member: Member, fault: ImageFault) -> bool:
        """Whether a broken file is to be dropped; that is noted, once."""
        if self._policy[fault.code] != "drop":
            return False
        entry, _ = member
        if entry.path not in self._noted:
            self._noted.add(entry.path)
            self.record.note(fault.code, f"dropped: {fault.message}", where=Place(entry.name))
        return True

    def _refuse(self, fault: ImageFault, place: Place) -> NoReturn:
        self._policy.meet(fault.code, fault.message, place)  # its error says how to go on
        raise self._policy.finding(fault.code, fault.message, place).to_error()


def _paths(members: Sequence[Member]) -> Iterator[str]:
    return (entry.path for entry, _ in members)


def _sample(pixels: Array, member: Member, place: Place) -> Sample:
    label = {} if member[1] is None else {"label": member[1]}
    return Sample({"image": pixels, **label}, place=place)
