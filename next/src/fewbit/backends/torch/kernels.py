# SPDX-License-Identifier: Apache-2.0
"""Freezing: each quantized layer gets the first of `KERNELS` that can run it.

A kernel computes what the layer's own forward computes, faster, on integers (`integer_kernels.py`), or at least without
a float copy of the weight. A layer that all kernels refuse keeps its own forward on dequantized weights.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from fewbit.backends.torch._products import byte_table, look_up
from fewbit.backends.torch.integer_kernels import (
    BaseKernel,
    Int4Linear,
    Int8Convolution,
    Int8Linear,
    Int8WeightOnly,
    as_rows,
    finish,
    is_per_output,
    is_transposed,
    not_linear,
    per_output,
)
from fewbit.backends.torch.layers import (
    PARTS,
    KernelConditions,
    LayerKernel,
    QuantizedLayer,
    device_of,
    freeze_layer,
    thaw,
)
from fewbit.numerics.dtypes import Dtype, value_table
from fewbit.numerics.floats import float_values
from fewbit.numerics.packing import unpack
from fewbit.numerics.qtensor import QTensor

_TILE = {"cpu": 1 << 20}
"""Elements of a weight that are dequantized at a time; elsewhere 2^26, where only memory counts."""


def freeze(model: nn.Module, *, exact: bool = False) -> list[dict[str, Any]]:
    """Give every quantized layer its fastest kernel, in place; a second call changes nothing.

    Args:
        model: on the device where it shall run.
        exact: let no kernel compute less precisely than the layer's own forward. Without it, 4-bit layers of float32
            models compute in bfloat16, which adds about a thirtieth of the error that 4 bits have.

    Returns:
        One row per layer: `layer`, `kernel` (`None` if its own forward stays), `reason`, `bytes`.

    >>> freeze(nn.Linear(2, 2))
    []
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLayer)}
    users = Counter(_address(layer) for layer in layers.values())
    rows = []
    for name, layer in layers.items():
        if not layer.stored:
            continue
        shared = _address(layer) is not None and users[_address(layer)] > 1
        conditions = KernelConditions(device_of(layer), exact, shared)
        reasons: dict[str, str] = {}
        if layer.conditions != conditions:
            thaw(layer)
            reasons = freeze_layer(layer, conditions)
        rows.append(_row(name, layer, reasons))
    return rows


def unfreeze(model: nn.Module) -> None:
    """Remove every kernel, in place."""
    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            thaw(module)


def layer_bytes(layer: QuantizedLayer) -> int:
    """Bytes that a layer stores for its quantized parameters, in whatever form."""
    buffers = [layer._buffers.get(f"{name}_{part}") for name in layer.stored for part in PARTS]
    size = sum(int(buffer.nbytes) for buffer in buffers if buffer is not None)
    return size + (0 if layer.kernel is None else layer.kernel.nbytes())


def _address(layer: QuantizedLayer) -> Any:
    packed = layer._buffers.get("weight_packed")
    return None if packed is None else (str(packed.device), packed.untyped_storage().data_ptr())


def _row(name: str, layer: QuantizedLayer, reasons: dict[str, str]) -> dict[str, Any]:
    kernel = layer.kernel
    reason = [] if kernel is None or not kernel.note else [kernel.note]
    reason += [f"not {other}: {text}" for other, text in reasons.items()]
    if kernel is None:
        reason.append("no kernel: its weights are dequantized in every call")
    return {
        "layer": name, "kernel": None if kernel is None else kernel.name, "reason": "; ".join(reason),
        "bytes": layer_bytes(layer),
    }  # fmt: skip


def choose_kernel(layer: QuantizedLayer, conditions: KernelConditions) -> tuple[LayerKernel | None, dict[str, str]]:
    """The first kernel that can run a layer, and why faster ones that come close cannot."""
    reasons: dict[str, str] = {}
    for kernel in KERNELS:
        refusal = kernel.refusal(layer, conditions)
        if refusal is None:
            return kernel(layer, conditions), reasons
        if refusal:
            reasons[kernel.name] = refusal
    return None, reasons


class EmbeddingRows(BaseKernel):
    """Embeddings: the rows that are asked for are gathered packed, and only they are dequantized."""

    name = "embedding"

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Embeddings of any grid whose rows have their own scales."""
        if "weight" not in layer.stored or not issubclass(layer.float_class, nn.Embedding):
            return ""
        return None if layer.max_norm is None else "max_norm changes the table while it is read"

    def __init__(self, layer: QuantizedLayer, conditions: KernelConditions):
        super().__init__(layer, conditions)
        self.wraps = layer.float_class.forward is not nn.Embedding.forward
        self._here = threading.local()

    @property
    def stand_in(self) -> Tensor | None:
        """What the layer shows as its weight while its own forward runs; other threads may be in it too."""
        return getattr(self._here, "stand_in", None)

    def run(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows; a subclass with another forward, which may scale them, runs that around the look-up."""
        if not self.wraps:
            return _table_rows(layer, *args)
        if torch.compiler.is_compiling():  # a compiler computes only the rows it needs
            return layer.float_forward(*args, **kwargs)
        weight = layer.stored["weight"]
        self._here.stand_in = torch.empty((), dtype=weight.dtype, device="meta").expand(weight.shape)
        try:
            with _TableLookUp(layer, self._here.stand_in):
                return layer.float_forward(*args, **kwargs)
        finally:
            self._here.stand_in = None


def _table_rows(layer: Any, index: Tensor) -> Tensor:
    values: Tensor = rows_at(layer.qtensor("weight"), index.reshape(-1)).dequantize(layer.stored["weight"].dtype)
    return values.reshape(*index.shape, values.shape[-1])


class _TableLookUp(TorchFunctionMode):
    """Answers look-ups in the stand-in for a table from its packed rows; any other use gets the float table."""

    def __init__(self, layer: Any, stand_in: Tensor):
        super().__init__()
        self.layer, self.stand_in = layer, stand_in

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA or all(leaf is not self.stand_in for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func == _TENSOR.device.__get__:
            return device_of(self.layer)
        if func is F.embedding and len(args) < 4 and kwargs.get("max_norm") is None:
            return _table_rows(self.layer, args[0] if args else kwargs["input"])
        weight = self.layer.qtensor("weight").dequantize(self.stand_in.dtype)
        args, kwargs = tree_map(lambda leaf: weight if leaf is self.stand_in else leaf, (args, kwargs))
        return func(*args, **kwargs)


_TENSOR: Any = torch.Tensor  # its getters, which its type does not show
_METADATA = {
    *(_TENSOR.dtype.__get__, _TENSOR.shape.__get__, _TENSOR.ndim.__get__, _TENSOR.requires_grad.__get__),
    *(_TENSOR.size, _TENSOR.dim, _TENSOR.numel, _TENSOR.__len__),
}


def rows_at(weight: QTensor, index: Tensor) -> QTensor:
    """Rows of a table in any order, each with its own copy of its scales."""
    height = weight.block[0]
    blocks = index if height == 1 else index // height
    zero = None if weight.zero_point is None else _take(weight.zero_point, blocks)
    shape, block = (index.shape[0], *weight.shape[1:]), (1, *weight.block[1:])
    packed, scale = _take(weight.packed, index), _take(weight.scale, blocks)
    return QTensor(weight.grid, shape, block, packed, scale, zero, weight.global_scale)


def _take(array: Tensor, index: Tensor) -> Tensor:
    # Not every dtype can be indexed; integers of the same size can.
    plain = {1: torch.uint8, 2: torch.int16}.get(array.element_size(), array.dtype)
    return array.view(plain).index_select(0, index).view(array.dtype)


class DequantizedTiles(BaseKernel):
    """Float products with some dequantized rows of the weight at a time: the complete float weight never exists."""

    name = "dequantize"

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Linear layers of any grid."""
        refusal = not_linear(layer)
        return "" if refusal is None and is_transposed(layer) else refusal

    def __init__(self, layer: QuantizedLayer, conditions: KernelConditions):
        super().__init__(layer, conditions)
        weight = layer.qtensor("weight")
        self.outputs, self.features = weight.shape
        self.dtype = weight.grid.dtype
        height = 1 if weight.block[0] >= self.outputs else weight.block[0]
        tile = _TILE.get(conditions.device.type, 1 << 26)
        self.rows = max(tile // (self.features * height), 1) * height
        self.step: Tensor | None = None
        self.zero: Tensor | None = None
        # Elements of up to 8 bits are exact in bfloat16; one scale per output can then be applied to the output.
        if is_per_output(weight) and weight.grid.dtype.bits <= 8:
            self.step, zero = per_output(weight)
            self.zero = None if zero is None else zero[:, None]
        # Two or four elements of a byte are looked up together, where groups lie inside rows.
        kind, (height, width) = weight.grid.dtype, weight.block
        bytewise = kind.bits in (2, 4) and height == 1 and self.features % width == 0
        self.table: Tensor | None = None
        if bytewise and self.features * kind.bits % 8 == 0 and conditions.device.type == "cpu":
            self.table = byte_table(_elements(kind))

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        rows = as_rows(x if layer.input_quantizer is None else layer.input_quantizer(x))
        step = None if x.dtype is torch.float16 else self.step  # in which unscaled sums soon overflow
        if self.outputs <= self.rows or torch.compiler.is_compiling():
            out = F.linear(rows, self._values(layer, slice(0, self.outputs), x.dtype, step))
        else:
            out = rows.new_empty(rows.shape[0], self.outputs)
            for start in range(0, self.outputs, self.rows):
                part = slice(start, min(start + self.rows, self.outputs))
                out[:, part] = F.linear(rows, self._values(layer, part, x.dtype, step))
        return finish(out if step is None else out.mul_(step), layer.bias, x)

    def _values(self, layer: Any, part: slice, dtype: torch.dtype, step: Tensor | None) -> Tensor:
        """Some rows of the weight, before scaling if there is a step per output."""
        if self.table is not None and not torch.compiler.is_compiling():
            weight = layer.qtensor("weight").rows(part.start, part.stop)
            qparams = weight.qparams
            groups = look_up(self.table, weight.packed).view(*qparams.scale.shape, -1)
            if qparams.zero_point is not None:
                groups.sub_(qparams.zero_point[..., None])
            groups = groups if step is not None else groups.mul_(qparams.step[..., None])
            return groups.view(-1, self.features).to(dtype)
        if step is None:
            values: Tensor = layer.qtensor("weight").rows(part.start, part.stop).dequantize(dtype)
            return values
        kind = self.dtype
        packed = layer._buffers["weight_packed"][part]
        integers = unpack(packed, kind.bits, self.features, signed=kind.is_integer and kind.signed)
        if not kind.is_integer:
            elements: Tensor = float_values(integers, kind.value).to(dtype)
            return elements
        return integers.to(dtype) if self.zero is None else integers.to(dtype).sub_(self.zero[part])


def _elements(kind: Dtype) -> Tensor:
    """The value of every pattern of a type of 2 or 4 bits."""
    if not kind.is_integer:
        return torch.tensor(value_table(kind.value))  # type: ignore[arg-type]
    patterns = torch.arange(1 << kind.bits)
    return patterns - (patterns >> (kind.bits - 1) << kind.bits) if kind.signed else patterns


KERNELS: tuple[Any, ...] = (Int8Linear, Int8Convolution, Int8WeightOnly, Int4Linear, EmbeddingRows, DequantizedTiles)
"""Fastest first."""
