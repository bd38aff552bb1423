# SPDX-License-Identifier: Apache-2.0
"""Whether two things are the same, told by a hash of what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LOOKED_AT = 64


def digest(value: Any) -> str:
    """A hash of numbers, texts, tensors, arrays, and lists and dicts of them.

    >>> digest({"a": [1, 2.5]}) == digest({"a": (1, 2.5)}), digest([1]) == digest([2])
    (True, False)
    """
    taken = blake2b(digest_size=12)
    for piece in _pieces(value):
        taken.update(piece)
        taken.update(b"\0")
    return taken.hexdigest()


def model_digest(model: nn.Module) -> str:
    """A hash of a model's build and of up to 64 values of each tensor, spread over it.

    Training changes every one of them, so it tells models apart that were not trained the same way.
    """
    found = [(name, tuple(tensor.shape), str(tensor.dtype), _some(tensor)) for name, tensor in _tensors(model)]
    return digest([type(model).__name__, found])


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // _LOOKED_AT)
    return flat[::stride][:_LOOKED_AT]


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        yield f"{tuple(value.shape)}{value.dtype}".encode()
        yield value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, np.ndarray):
        yield f"{value.shape}{value.dtype}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for name in value:
            yield str(name).encode()
            yield from _pieces(value[name])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        for each in value:
            yield from _pieces(each)
    elif hasattr(value, "tobytes"):  # a picture, a number of numpy's
        yield bytes(value.tobytes())
    else:
        yield value if isinstance(value, bytes) else str(value).encode()
