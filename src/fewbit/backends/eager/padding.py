# SPDX-License-Identifier: Apache-2.0
"""Which positions of an activation are padding, from the mask among the arguments the model was called with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.calling import Item
from fewbit.data.capturing.binding import Binder
from fewbit.data.tree import flatten
from fewbit.errors import UsageError

_DECODER_TOKENS = ("decoder_input_ids", "labels")


def masks_of(model: nn.Module, item: Item) -> list[Tensor]:
    """The masks among an item's arguments: bool `[batch, positions]`, true where there is a token, each once.

    By name: `…attention_mask` and `…padding_mask` are one where there is a token, torch's `…key_padding_mask` is true
    (or -inf) where there is none. Masks with more axes say who may look at whom, not what is padding. A decoder without
    a mask of its own has no padding: its mask is all true, so that the encoder's is not taken for it.
    """
    found: list[Tensor] = []
    named = _named(model, item)
    if not any(name == "decoder_attention_mask" and leaf is not None for name, leaf in named):
        tokens = [leaf for name, leaf in named if name in _DECODER_TOKENS and isinstance(leaf, Tensor)]
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and tokens and tokens[0].ndim == 2:
            found.append(torch.ones_like(tokens[0], dtype=torch.bool))
    for name, leaf in named:
        if not isinstance(leaf, Tensor) or leaf.ndim != 2:
            continue
        if name.endswith("key_padding_mask"):
            mask = ~leaf if leaf.dtype is torch.bool else leaf == 0
        elif name.endswith(("attention_mask", "padding_mask")) and bool(((leaf == 0) | (leaf == 1)).all()):
            mask = leaf != 0
        else:
            continue
        if not any(mask.shape == other.shape and bool((mask == other).all()) for other in found):
            found.append(mask)
    return found


def _named(model: nn.Module, item: Item) -> list[tuple[str, Any]]:
    try:
        named: Any = Binder(model.forward).bind(*item)
    except UsageError:
        named = item[1]
    return [(path.rpartition(".")[2], leaf) for path, leaf in flatten(named)]


class Positions:
    """Takes padding out of the activations of one item.

    Args:
        masks: of this item, as `masks_of` finds them.
        position_first: whether the model has layers that take `[positions, batch, features]`.
    """

    def __init__(self, masks: list[Tensor], *, position_first: bool = False):
        self._masks = [] if all(bool(mask.all()) for mask in masks) else masks
        self._position_first = position_first
        self._rows: dict[tuple[int, bool], Tensor] = {}

    @property
    def has_padding(self) -> bool:
        """Whether there is anything to take out."""
        return bool(self._masks)

    def select(self, x: Tensor, features: int) -> tuple[Tensor, bool]:
        """The positions of an activation that are no padding.

        Args:
            x: the activation.
            features: its feature axis.

        Returns:
            `[positions, features]`, and whether padding could be told apart; if not, every position is there.
        """
        x = x.movedim(features, -1)
        flat = x.reshape(-1, x.shape[-1])
        if not self._masks:
            return flat, True
        fitting = [(i, turned) for i in range(len(self._masks)) for turned in self._orders(i, x.shape[:-1])]
        if len(fitting) == 1:
            rows = self._kept_rows(*fitting[0]).to(x.device)
            count = self._masks[fitting[0][0]].numel()
            each = flat.shape[0] // count  # several rows a position, such as heads
            return flat.reshape(count, each * flat.shape[1])[rows].reshape(-1, flat.shape[1]), True
        pooled = any(flat.shape[0] == mask.shape[0] for mask in self._masks)  # one row a sample holds no padding
        return flat, pooled and not fitting

    def _orders(self, index: int, lead: torch.Size) -> list[bool]:
        """The ways a mask can be laid over the leading axes of an activation: as it is (false), turned (true)."""
        mask = self._masks[index]
        straight = lead[:2] == mask.shape or (len(lead) == 1 and lead[0] == mask.numel())
        turned = self._position_first and lead[:2] == mask.T.shape
        return [False] * straight + [True] * turned

    def _kept_rows(self, index: int, turned: bool) -> Tensor:
        if (index, turned) not in self._rows:
            mask = self._masks[index].T if turned else self._masks[index]
            self._rows[index, turned] = mask.flatten().nonzero().flatten()
        return self._rows[index, turned]
