# SPDX-License-Identifier: Apache-2.0
"""A dataset of Python values with the facts a real one would have; `None` is a damaged sample."""

from fewbit.data.dataset import Dataset
from fewbit.data.types import DataReport, Issue, IssueType, Location, SampleError, Severity

DAMAGED = IssueType("test-damaged", Severity.ERROR, "damaged", "restore it", "raise", ("drop",))


class ItemSource:
    """Values by position, each as if it came from a file of its own."""

    def __init__(self, items, strata=None, **facts):
        self.items, self._strata, self.facts = items, strata, facts

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if self.items[index] is None:
            raise SampleError(Issue(DAMAGED, "cut short", self.location(index)))
        return self.items[index]

    def location(self, index):
        return Location(f"{index}.npz", index=index)

    def strata(self):
        return self._strata


def item_dataset(items, transform=None, strata=None, **facts):
    report = DataReport(source="test", complete=True)
    return Dataset.of(ItemSource(items, strata, **facts), report, transform=transform)
