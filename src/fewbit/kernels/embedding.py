# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows that are asked for are gathered packed, and only they are dequantized.

Many models have a subclass of their own that looks rows up and then scales them. Its forward runs as it is; while it
does, its `weight` is a stand-in without memory, and the look-up in it is answered from the codes.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import not_embedding, weight_of
from fewbit.kernels._rows import rows_at
from fewbit.modules.frozen import Terms

SPEED = 50


def refuses(layer: Any, terms: Terms) -> str | None:
    """Embeddings of any grid."""
    return not_embedding(layer)


class Kernel(Base):
    """`table[index]`."""

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        self.plain = layer.float_class.forward is nn.Embedding.forward
        self.shape = layer.coded["weight"].own_shape
        self.here = threading.local()

    @property
    def stand_in(self) -> Tensor | None:  # type: ignore[override]
        """What the layer shows as its float weight; other threads may be in the same layer."""
        return None if torch.compiler.is_compiling() else getattr(self.here, "stand_in", None)

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        if self.plain:
            return look_up(layer, x)
        if torch.compiler.is_compiling():  # a compiler takes only the rows it needs by itself
            return layer.own_forward(x)  # type: ignore[no-any-return]
        dtype = layer.coded["weight"].dtype
        self.here.stand_in = torch.empty((), dtype=dtype, device=x.device).expand(self.shape)
        try:
            with _LookUp(layer, self.here.stand_in):
                return layer.own_forward(x)  # type: ignore[no-any-return]
        finally:
            self.here.stand_in = None


def look_up(layer: Any, index: Tensor) -> Tensor:
    """Rows of a layer's table, in the dtype of its float weight."""
    values = rows_at(weight_of(layer), index.reshape(-1)).dequantize(layer.coded["weight"].dtype)
    return values.reshape(*index.shape, values.shape[-1])


class _LookUp(TorchFunctionMode):
    """Answers look-ups in the stand-in from the codes, and gives everybody else the float table."""

    def __init__(self, layer: Any, stand_in: Tensor):
        super().__init__()
        self.layer, self.stand_in = layer, stand_in

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if all(arg is not self.stand_in for arg in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func is torch.embedding:
            return look_up(self.layer, args[1])
        if func is F.embedding:
            return look_up(self.layer, args[0] if args else kwargs["input"])
        if getattr(func, "__name__", "") == "__get__":  # its dtype, device or shape
            return func(*args, **kwargs)
        weight = weight_of(self.layer).dequantize(self.stand_in.dtype)
        args = [weight if arg is self.stand_in else arg for arg in args]
        return func(*args, **{name: weight if arg is self.stand_in else arg for name, arg in kwargs.items()})
