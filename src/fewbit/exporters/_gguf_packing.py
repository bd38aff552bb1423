# SPDX-License-Identifier: Apache-2.0
"""Each tensor's type in the file, its bytes, and how near they come to its values; and the same read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.errors import require
from fewbit.exporters import _gguf_kquants, _gguf_mapping
from fewbit.exporters._base import Destined
from fewbit.exporters._gguf_tensors import Held
from fewbit.exporters._gguf_types import BLOCKS, FLOATS, for_grid, for_width


def misfits(weights: Sequence[Destined]) -> list[tuple[str, str]]:
    """The weights whose codes no type holds, as pairs of layer and reason."""
    found = []
    for each in weights:
        if each.grid is None:
            continue
        if for_grid(each.grid) is None:
            found.append((each.layer, f"no GGUF type has codes like {each.grid.dtype.name}"))
        elif len(each.shape) != 2 or each.shape[1] % 32:
            found.append((each.layer, f"a weight of shape {list(each.shape)}; blocks are 32 elements of a row"))
        elif (width := each.grid.weight_block(each.shape)[1]) % 32 and width < each.shape[1]:
            found.append((each.layer, f"groups of {width}; a block of 32 has one scale"))
    return found


def type_of(each: Held, wanted: str | None, tables: str | None) -> str:
    """The type a tensor has in the file.

    Args:
        each: the tensor.
        wanted: the type for layers; none to keep what they hold.
        tables: the same for embeddings and the head.
    """
    if len(each.shape) != 2:
        return "F32"
    chosen = tables if each.table else wanted
    if chosen is not None:
        return for_width(chosen, each.shape[1])
    if each.grid is not None:
        return for_grid(each.grid) or "F32"
    return next((name for name, dtype in FLOATS.items() if dtype == each.parameter.dtype), "F32")


def pack(each: Held, kind: str, importance: Tensor | None) -> tuple[NDArray[Any], dict[str, Any]]:
    """A tensor's bytes in the file, and how near they come to its values.

    Args:
        each: the tensor.
        kind: its type in the file.
        importance: E[x²] of each of its inputs, or none.
    """
    if kind in FLOATS:
        values = each.values()
        cast = values.to(FLOATS[kind]).contiguous()
        raw = cast.view(torch.int16) if kind == "BF16" else cast
        return raw.numpy(), _facts(cast.float(), values)
    block = BLOCKS[kind]
    if each.grid is not None and for_grid(each.grid) == kind and not misfits([each.destined()]):
        found = _gguf_mapping.map_codes(each.codes(), block)
    else:
        search = _gguf_mapping.search if block.scales is None else _gguf_kquants.search
        found = search(each.plain(), block, None if importance is None else importance.cpu())
    rows, order = each.shape[0], each.order
    packed, values = found.pack().reshape(rows, -1), found.values().reshape(rows, -1)
    if order is not None:
        packed, values = packed[order.numpy()], values[order]
    return packed, _facts(values, each.values())


def is_same(stored: Any, values: Tensor, *, exact: bool = True, error: float = 0.0) -> bool:
    """Whether a tensor of a file, decoded by the gguf library, is what it should be.

    Args:
        stored: what `gguf.GGUFReader` gives, or none.
        values: what the model holds.
        exact: whether every value shall be the same; a zero has no sign.
        error: how far it may be otherwise.
    """
    gguf = require("gguf", extra="gguf", purpose="a GGUF file")
    if stored is None or tuple(reversed(stored.shape.tolist())) != tuple(values.shape):
        return False
    decoded = torch.from_numpy(np.array(gguf.quants.dequantize(stored.data, stored.tensor_type))).view(values.shape)
    return bool(torch.equal(decoded, values)) if exact else _error(decoded, values) <= error * (1 + 1e-6)


def _facts(found: Tensor, values: Tensor) -> dict[str, Any]:
    return {"exact": bool(torch.equal(found, values)), "error": _error(found, values)}


def _error(found: Tensor, values: Tensor) -> float:
    """The squared error beside the squared values."""
    size = values.double().square().sum()
    return float((found.double() - values.double()).square().sum() / size) if size else 0.0
