# SPDX-License-Identifier: Apache-2.0
"""Telling Python objects apart by what they can do, without importing the library they come from."""

from __future__ import annotations

from typing import Any


def comes_from(value: object, *names: str) -> bool:
    """Whether a value's class or one of its bases is one of these, by full name.

    >>> import collections
    >>> comes_from(collections.Counter(), "builtins.dict")
    True
    """
    return any(f"{base.__module__}.{base.__qualname__}" in names for base in type(value).__mro__)


def is_torch_loader(value: object) -> bool:
    """A `torch.utils.data.DataLoader` or a subclass."""
    return comes_from(value, "torch.utils.data.dataloader.DataLoader")


def is_torch_dataset(value: object) -> bool:
    """A `torch.utils.data.Dataset` or a subclass: its elements carry no batch axis."""
    return comes_from(value, "torch.utils.data.dataset.Dataset")


def is_one_shot(value: Any) -> bool:
    """An iterator: a second pass over it would see nothing."""
    return hasattr(value, "__next__") and iter(value) is value
