# SPDX-License-Identifier: Apache-2.0
"""What `Blocks` cuts, put together again."""

import torch


def joined(blocks, parts):
    """What `split` gave, in the tensor's shape, without padding."""
    whole = parts.reshape([n * b for n, b in zip(blocks.counts, blocks.block)])
    return whole[tuple(slice(side) for side in blocks.shape)]


def own(blocks):
    """Which elements of `rows` are the tensor's own and not padding."""
    return blocks.rows(torch.ones(blocks.shape, dtype=torch.bool))
