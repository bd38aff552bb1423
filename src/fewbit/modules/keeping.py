# SPDX-License-Identifier: Apache-2.0
"""Buffers that keep their dtype when a model is cast.

`model.half()` casts every float buffer. Scales are no such numbers: what they are kept in belongs to the scheme, and
codes in fp8 are floats only by name. Devices still change as asked. Buffers are moved in place, as torch does with
parameters, so that two layers that share one still share it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class KeepsDtypes:
    """Mixed in front of a module class; `kept_buffers` says which buffers are meant."""

    _buffers: dict[str, Tensor | None]

    def kept_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that are moved but never cast."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: self._buffers.get(name) for name in self.kept_buffers()}
        self._buffers |= dict.fromkeys(kept)
        try:
            super()._apply(fn, recurse)  # type: ignore[misc]
        finally:
            self._buffers |= kept
        for name, buffer in kept.items():
            if buffer is not None:
                self._buffers[name] = _moved(buffer, fn)
        return self


def dtype_after(fn: Callable[[Tensor], Tensor], like: Tensor | None, dtype: torch.dtype) -> torch.dtype:
    """What a float dtype becomes under a cast of the whole model."""
    after: Any = fn(torch.empty(1, dtype=dtype, device=None if like is None else like.device)).dtype
    return after if after.is_floating_point else dtype


def _moved(buffer: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    disguised = buffer.view(_INTEGERS[buffer.element_size()])  # casts leave integers alone
    after = fn(disguised)
    if after.dtype is not disguised.dtype:  # `model.type(...)` casts integers too
        after = disguised.to(after.device)
    after = after.view(buffer.dtype)
    if not torch._has_compatible_shallow_copy_type(buffer, after):
        return after
    buffer.data = after
    return buffer
