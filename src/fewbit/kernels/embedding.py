# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows that are asked for are gathered packed, and only they are dequantized.

Many models have a subclass of their own that looks rows up and then scales them. Its forward runs as it is; while it
does, its `weight` is a stand-in without memory, and the look-up in it is answered from the codes. Whatever else it does
with its weight gets the float table.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._layers import not_embedding, weight_of
from fewbit.kernels._rows import rows_at
from fewbit.modules.frozen import Terms

SPEED = 50
_ASKED: Any = torch.Tensor  # its getters, which its type does not show
_KNOWN = {  # what the stand-in can tell of the table
    *(_ASKED.dtype.__get__, _ASKED.shape.__get__, _ASKED.ndim.__get__, _ASKED.requires_grad.__get__),
    *(_ASKED.size, _ASKED.dim, _ASKED.numel, _ASKED.__len__),
}


def refuses(layer: Any, terms: Terms) -> str | None:
    """Embeddings of any grid."""
    return not_embedding(layer)


class Kernel(Base):
    """`table[index]`."""

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        self.wraps = layer.float_class.forward is not nn.Embedding.forward
        self.shape = layer.coded["weight"].own_shape
        self.here = threading.local()

    @property
    def stand_in(self) -> Tensor | None:  # type: ignore[override]
        """What the layer shows as its float weight; other threads may be in the same layer."""
        return None if torch.compiler.is_compiling() else getattr(self.here, "stand_in", None)

    def run(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer's output."""
        if not self.wraps:
            return look_up(layer, *args)
        if torch.compiler.is_compiling():  # a compiler takes only the rows it needs by itself
            return layer.own_forward(*args, **kwargs)
        # Without memory, and not uninitialised: what is overlooked below raises and gives no wrong numbers.
        self.here.stand_in = torch.empty((), dtype=layer.coded["weight"].dtype, device="meta").expand(self.shape)
        try:
            with _LookUp(layer, self.here.stand_in):
                return layer.own_forward(*args, **kwargs)
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
        if func in _KNOWN or all(leaf is not self.stand_in for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func == _ASKED.device.__get__:
            return self.layer.weight_packed.device
        index = _looked_up(func, args, kwargs)
        if index is not None and index.numel():
            return look_up(self.layer, index)
        weight = weight_of(self.layer).dequantize(self.stand_in.dtype)
        args, kwargs = tree_map(lambda leaf: weight if leaf is self.stand_in else leaf, (args, kwargs))
        return func(*args, **kwargs)


def _looked_up(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The index of a plain look-up; none for any other call."""
    if func is torch.embedding:
        return args[1] if len(args) > 1 else kwargs["indices"]
    if func is not F.embedding or (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
        return None
    return args[0] if args else kwargs["input"]
