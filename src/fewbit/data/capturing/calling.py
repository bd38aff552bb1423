# SPDX-License-Identifier: Apache-2.0
"""Calling a module with what a loader yields: batches spread over its parameters, tensors on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.data.capturing.binding import Binder
from fewbit.data.tree import flatten, is_tensor, map_leaves

Call = tuple[tuple[Any, ...], dict[str, Any]]


def spread(binder: Binder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call a single container was meant as: a dict of parameter names as keywords, a list as positions.

    >>> spread(Binder(lambda ids, mask=None: None), ({"ids": 1, "mask": 2},), {})
    ((), {'ids': 1, 'mask': 2})
    >>> spread(Binder(lambda x, y: None), ([1, 2],), {})
    ((1, 2), {})
    """
    if len(args) != 1 or kwargs:
        return args, kwargs
    batch = args[0]
    if isinstance(batch, Mapping) and batch:
        declared = set(binder.parameters)
        if all(key in declared for key in batch) or (binder.open_ended and any(key in declared for key in batch)):
            return (), dict(batch)
    if (
        isinstance(batch, Sequence)
        and not isinstance(batch, str)
        and not binder.fits(args, {})
        and binder.fits(batch, {})
    ):
        return tuple(batch), {}
    return args, kwargs


def on_device_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The same call with every tensor on the model's device; a model spread over several places its inputs itself."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or (device := devices.pop()).type == "meta":
        return args, kwargs
    away = any(
        hasattr(leaf, "device") and is_tensor(leaf) and leaf.device != device for _, leaf in flatten((args, kwargs))
    )
    if not away:
        return args, kwargs
    moved: Call = map_leaves(
        lambda leaf: leaf.to(device) if is_tensor(leaf) and hasattr(leaf, "to") else leaf, (args, kwargs)
    )
    return moved
