# SPDX-License-Identifier: Apache-2.0
"""The images of a laid-out folder as samples, decoded only when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from fewbit.data.findings import Policy
from fewbit.data.images.decode import ImageFault, read_image
from fewbit.data.images.pixels import Array, Background
from fewbit.data.images.pool import decode_in_order
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.data.walk import Entry


class FolderSource(Source):
    """Images and labels in order.

    Args:
        entries: the files.
        labels: the class index of each.
        policy: what to do about a file that does not decode.
        background: the colour laid under transparent pixels.
        workers: how many processes decode when the source is read in order.
    """

    targets = frozenset({"label"})

    def __init__(
        self,
        entries: Sequence[Entry],
        labels: Sequence[int],
        *,
        policy: Policy,
        background: Background,
        workers: int,
    ):
        super().__init__()
        self._entries = entries
        self._labels = labels
        self._policy = policy
        self._background = background
        self._workers = workers
        self._noted: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sample]:
        paths = (entry.path for entry in self._entries)
        with closing(decode_in_order(paths, self._workers, self._background)) as outcomes:
            for index, outcome in enumerate(outcomes):
                if not isinstance(outcome, ImageFault):
                    yield self._sample(index, outcome)
                elif self._policy.meet(outcome.code, outcome.message, self.place(index)) == "drop":
                    self._note_dropped(index, outcome)

    def get(self, index: int) -> Sample:
        """The sample at an index; one that cannot be decoded raises here, whatever the policy says of reading on."""
        try:
            pixels = read_image(self._entries[index].path, background=self._background)
        except ImageFault as fault:
            raise self._policy.finding(fault.code, fault.message, self.place(index)).to_error() from fault
        return self._sample(index, pixels)

    def place(self, index: int) -> Place:
        """The file of a sample."""
        return Place(self._entries[index].name, index=index)

    def _sample(self, index: int, pixels: Array) -> Sample:
        return Sample({"image": pixels, "label": self._labels[index]}, place=self.place(index))

    def _note_dropped(self, index: int, fault: ImageFault) -> None:
        if index not in self._noted:  # a second pass drops the same files
            self._noted.add(index)
            self.record.note(fault.code, f"dropped: {fault.message}", where=self.place(index))
