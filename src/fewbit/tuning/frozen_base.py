# SPDX-License-Identifier: Apache-2.0
"""A quantized layer under an adapter: its codes stay as they are, and are all of it that stays in memory.

The gradient of a layer's input needs the layer's weight, so autograd would keep every dequantized weight from the
forward to the backward: a float model's memory. Here it keeps a note instead, and the weight is made of its codes again
when its turn comes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fewbit.modules.coded import Coded
from fewbit.modules.layout import to_own

_Note = tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""A weight's name, its dtype, and which part of it was kept, as `as_strided` takes it."""


class FrozenBase:
    """Mixed in front of a quantized layer that does not learn."""

    coded: dict[str, Coded]
    # By their address, and kept until the forward ends: an address that is free again may be another tensor's.
    _made: dict[int, tuple[str, Tensor]] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        self._made = {}
        try:
            with saved_tensors_hooks(self._note, self._again):
                return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._made = None

    def float_parameter(self, name: str) -> Tensor:
        """The float values of a weight, in the dtype that autocast is about to give them."""
        made = self._made
        if made is None:
            weight: Tensor = super().float_parameter(name)  # type: ignore[misc]
            return weight
        held: dict[str, Tensor] | None = getattr(self, "_held", None)
        if held is not None and name in held:
            return held[name]
        dtype = self.coded[name].dtype
        place = self._buffers[f"{name}_scale"].device.type  # type: ignore[attr-defined]
        if torch.is_autocast_enabled(place):
            dtype = torch.get_autocast_dtype(place)
        weight = self._make(name, dtype)
        made[weight.untyped_storage().data_ptr()] = name, weight
        if held is not None:
            held[name] = weight
        return weight

    def _make(self, name: str, dtype: torch.dtype) -> Tensor:
        coded, codes = self.coded[name], self.codes_of(name)  # type: ignore[attr-defined]
        return to_own(codes.dequantize(dtype), coded.axes, coded.groups)

    def _note(self, tensor: Tensor) -> Tensor | _Note:
        known = (self._made or {}).get(tensor.untyped_storage().data_ptr())
        if known is None:
            return tensor
        name, weight = known
        return name, weight.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())

    def _again(self, kept: Tensor | _Note) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        name, dtype, shape, stride, offset = kept
        return self._make(name, dtype).as_strided(shape, stride, offset)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {name: value for name, value in state.items() if name != "_made"}
