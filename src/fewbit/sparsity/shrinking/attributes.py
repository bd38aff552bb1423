# SPDX-License-Identifier: Apache-2.0
"""What modules say of their own shapes, after their tensors were cut."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

Conv = nn.modules.conv._ConvNd


def refresh(module: nn.Module, before: dict[str, Tensor]) -> None:
    """Let a module of PyTorch's own kinds say the sizes that its tensors have by now.

    Args:
        module: whose tensors were cut.
        before: its own tensors as they were.
    """
    own: Any = module
    weight: Tensor | None = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or "weight" not in before:
        return
    old = before["weight"]
    if isinstance(module, nn.Linear):
        own.out_features, own.in_features = weight.shape
    elif isinstance(module, Conv):
        # Grouped convolutions lose whole groups, which are counted along the first axis, transposed or not.
        own.groups = own.groups * weight.shape[0] // old.shape[0] if own.groups > 1 else 1
        one, other = weight.shape[0], weight.shape[1] * own.groups
        own.in_channels, own.out_channels = (one, other) if own.transposed else (other, one)
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        own.num_features = weight.shape[0]
    elif isinstance(module, nn.GroupNorm):
        own.num_groups = own.num_groups * weight.shape[0] // old.shape[0]
        own.num_channels = weight.shape[0]
    elif isinstance(module, nn.Embedding):
        own.embedding_dim = weight.shape[1]
    elif isinstance(module, nn.PReLU):
        own.num_parameters = weight.shape[0]
    elif {"nx", "nf"} <= vars(module).keys():  # GPT-2's linear layer, whose weight lies the other way round
        own.nx, own.nf = weight.shape
