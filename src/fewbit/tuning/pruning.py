# SPDX-License-Identifier: Apache-2.0
"""What a run needs of something that prunes while it learns; `fewbit.sparsity.gradual` is one."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from fewbit.tuning.masks import Masks


class Pruning(Protocol):
    """Masks that grow from step to step, by the step and the weights alone: processes with equal weights agree."""

    def facts(self) -> dict[str, Any]:
        """What decides which weights go and when, as JSON values; a run is resumed with the same only."""

    def begin(self, model: nn.Module, masks: Masks) -> None:
        """Look at the model that will learn.

        Args:
            model: as the optimizer sees it.
            masks: the zeros that hold; a change of the masks is a change of these.
        """

    def see(self, step: int, total: int) -> None:
        """Look at the gradients, before those of pruned weights are taken out, of what will be so many steps."""

    def at(self, step: int, total: int) -> float | None:
        """Let the masks grow to what they are after so many steps; the share of zeros, or none if nothing changes."""

    def is_done(self, step: int, total: int) -> bool:
        """Whether the masks change no more: from then on evaluations may be compared."""
