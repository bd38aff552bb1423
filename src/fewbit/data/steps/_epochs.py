# SPDX-License-Identifier: Apache-2.0
"""Which epoch it is: told to whatever draws its samples anew in each, and to whatever planned with the old ones."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fewbit.data.source import Source


@runtime_checkable
class ByEpoch(Protocol):
    """A source whose samples differ from epoch to epoch."""

    epoch: int


@runtime_checkable
class Planned(Protocol):
    """A source that worked something out from the samples beneath it."""

    def replan(self) -> None:
        """Forget it."""


def begin_epoch(source: Source, epoch: int) -> bool:
    """Tell a source and everything it stands on which epoch begins. A loader calls this before each.

    Args:
        source: what is read from.
        epoch: from 0.

    Returns:
        Whether the samples are now other ones.
    """
    beneath = [getattr(source, "inner", None), *getattr(source, "parts", ())]
    changed = sum(begin_epoch(part, epoch) for part in beneath if isinstance(part, Source)) > 0  # every one is told
    if changed and isinstance(source, Planned):
        source.replan()
    if isinstance(source, ByEpoch) and source.epoch != epoch:
        source.epoch = epoch
        changed = True
    return changed
