# SPDX-License-Identifier: Apache-2.0
"""Whether a model is the one it was made from, byte for byte."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_unchanged(dense: Any, model: Any) -> bool:
    """Whether two models are of the same modules, or nodes, with the same settings and tensors.

    Args:
        dense: an `nn.Module` or an ONNX `ModelProto`.
        model: one of these.

    >>> from copy import deepcopy
    >>> layer = nn.Linear(2, 2)
    >>> is_unchanged(layer, deepcopy(layer)), is_unchanged(layer, nn.Linear(2, 2))
    (True, False)
    """
    if not isinstance(dense, nn.Module) or not isinstance(model, nn.Module):
        return type(dense) is type(model) and bool(dense == model)
    made = [[(name, *_made(each)) for name, each in one.named_modules()] for one in (dense, model)]
    first, second = dense.state_dict(), model.state_dict()
    if made[0] != made[1] or first.keys() != second.keys():
        return False
    return all(_same(first[name], second[name]) for name in first)


def _made(module: nn.Module) -> tuple[type, str, dict[str, Any]]:
    """What a module is, but for its tensors: its class, what it says of itself, and its attributes that are plain."""
    plain = {name: value for name, value in vars(module).items() if name != "training" and _is_plain(value)}
    return type(module), module.extra_repr(), plain


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | complex | str)


def _same(first: Any, second: Any) -> bool:
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return bool(first == second)
    alike = (first.dtype, first.shape, first.device) == (second.dtype, second.shape, second.device)
    return alike and torch.equal(first, second)
