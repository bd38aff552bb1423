# SPDX-License-Identifier: Apache-2.0
"""Calling a model with an item: tensors on its device, errors with the item's number, a small item from a large one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.guest import devices
from fewbit.data.batch import cut
from fewbit.data.tree import flatten, map_leaves
from fewbit.errors import DataError, FewbitError

Item = tuple[tuple[Any, ...], dict[str, Any]]


def call(model: nn.Module, item: Item, index: int = 0) -> Any:
    """What the model returns for an item.

    Raises:
        DataError: the model failed; with the item's number and the error's own words.
    """
    args, kwargs = on_device(model, item)
    try:
        return model(*args, **kwargs)
    except FewbitError:
        raise
    except Exception as error:
        raise DataError(
            f"the model failed on item {index}: {type(error).__name__}: {str(error)[:500]}",
            code="model-failed",
            where=f"item {index}",
            expected="an item that model(*args, **kwargs) takes",
            try_="call the model with this item by itself",
        ) from error


def on_device(model: nn.Module, item: Item) -> Item:
    """The item with every tensor on the model's device; a model spread over several places its inputs itself."""
    places = devices(model)
    if len(places) != 1 or (place := places.pop()).type == "meta":
        return item
    moved: Item = map_leaves(lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, item)
    return moved


def small(item: Item, mask: Tensor | None, samples: int = 2, positions: int = 16) -> Item:
    """A few samples and positions of an item: enough to see who feeds whom.

    Args:
        item: what the model is called with.
        mask: which positions are no padding, `[batch, positions]`, or none.
        samples: how many samples to keep.
        positions: how many positions to keep of token ids and what goes with them, `[batch, positions]`.
    """
    few: Item = cut(item, samples)
    tables = [leaf for _, leaf in flatten(few) if isinstance(leaf, Tensor) and leaf.ndim == 2]
    lengths = {leaf.shape[1] for leaf in tables if not leaf.is_floating_point()}
    if len(lengths) != 1 or (length := lengths.pop()) <= positions:
        return few
    kept = torch.arange(positions)
    if mask is not None and mask.shape[1] == length:
        kept = mask[:samples].all(0).nonzero().flatten()[:positions].cpu()
        if not len(kept):
            return few

    def shorten(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.ndim == 2 and leaf.shape[1] == length:
            return leaf[:, kept.to(leaf.device)]
        return leaf

    shortened: Item = map_leaves(shorten, few)
    return shortened
