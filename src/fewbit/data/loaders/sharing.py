# SPDX-License-Identifier: Apache-2.0
"""Which process this is, of how many."""

from __future__ import annotations

import os

import torch

from fewbit.errors import UsageError


def find_share(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """The rank and how many there are: as given, as `torch.distributed` says, or as `torchrun` wrote it down.

    Raises:
        UsageError: only one of the two is given, or they do not go together.

    >>> find_share(1, 2)
    (1, 2)
    """
    if (rank is None) != (world is None):
        raise UsageError(f"rank={rank}, world={world}", expected="both, or neither")
    if rank is None or world is None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world:
        raise UsageError(f"rank {rank} of {world}", expected="0 <= rank < world")
    return rank, world
