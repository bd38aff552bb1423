# SPDX-License-Identifier: Apache-2.0
"""int4 weights: PyTorch's kernels with bfloat16 activations, on CPU and CUDA.

The kernels take bfloat16 only. In a float32 model activations and outputs are rounded to it, which adds about a
thirtieth of the error that four bits have already; `exact` refuses that. Activations that are quantized to eight bits
lose nothing: their codes are whole numbers that bfloat16 has, and their scales are applied afterwards.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fewbit.kernels._activations import encoder, not_int8
from fewbit.kernels._base import Kernel as Base
from fewbit.kernels._int4 import FEW, int4_few, int4_linear
from fewbit.kernels._layers import as_rows, finish, not_linear, output_steps, per_output, weight_of
from fewbit.kernels._nibbles import ROWS, Cpu, Cuda, padded
from fewbit.modules.frozen import Terms, exporting
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor

SPEED = 70
_GROUPS = (256, 128, 64, 32)  # the sizes that both kernels have


def refuses(layer: Any, terms: Terms) -> str | None:
    """Linear layers with weights of four bits on an even grid, in groups of a multiple of 32."""
    other = not_linear(layer)
    coded = layer.coded.get("weight")
    if other is not None or not coded.grid.dtype.is_integer or coded.grid.dtype.bits != 4:
        return other or ""
    if terms.device.type not in ("cpu", "cuda"):
        return f"PyTorch has no int4 kernel on {terms.device.type}"
    if not hasattr(torch, "_convert_weight_to_int4pack_for_cpu"):  # older ones pack otherwise, on CUDA too
        return f"PyTorch {torch.__version__} has no _convert_weight_to_int4pack_for_cpu"
    if terms.exact and coded.dtype is not torch.bfloat16:
        return f"it rounds activations to bfloat16, and the layer is {str(coded.dtype).removeprefix('torch.')}"
    if terms.shared:
        return "other layers use the same codes, and they would have to change"
    if _group(coded) is None:
        return f"it takes whole groups of 32, 64, 128 or 256, not {coded.block[1]} of {coded.shape[1]} features"
    return None


class Kernel(Base):
    """`Σ x · ((code - 8) · scale + zero) + bias`."""

    holds: ClassVar[tuple[str, ...]] = ("weight", "scales", "step")

    def __init__(self, layer: Any, terms: Terms):
        super().__init__(terms)
        weight = weight_of(layer)
        group = _group(weight)
        assert group is not None
        self.group, self.outputs, self.like = group, weight.shape[0], weight.grid.dtype
        self.layout = Cpu() if terms.device.type == "cpu" else Cuda(weight.shape[1])
        codes = weight.codes().view(torch.uint8)
        self.weight = self.layout.pack(padded(codes.bitwise_xor(8).bitwise_and_(15) if self.like.signed else codes))
        # One scale an output can wait until after the product, where it is not rounded.
        self.step = output_steps(weight)[0] if per_output(weight) else None
        self.scales = _scales(weight, group, unit=self.step is not None)
        self.takes = ("packed",)
        if self.step is None and self._tells(weight):
            self.takes += ("scale",) if weight.zero_point is None else ("scale", "zero_point")
        self.encode = None
        if layer.input_quantizer is not None and not_int8(layer.input_quantizer) is None:
            self.encode = encoder(layer.input_quantizer)
        if layer.coded["weight"].dtype is not torch.bfloat16:
            self.note = "computes in bfloat16 (not with exact=True)"

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        if self.encode is None:
            rows = as_rows(x if layer.input_quantizer is None else layer.input_quantizer(x))
            return finish(self._product(rows.to(torch.bfloat16)).to(x.dtype), layer.bias, x)
        codes, scale, zero = self.encode(as_rows(x))
        rows = codes.to(torch.bfloat16) if zero is None else (codes - zero).to(torch.bfloat16)
        return finish(self._product(rows).float(), layer.bias, x, scale)

    def _product(self, rows: Tensor) -> Tensor:
        if exporting():
            out = int4_few(rows, self.weight, self.scales, self.group)
        elif torch.compiler.is_compiling() and statically_known_true(rows.shape[0] <= FEW[rows.device.type]):
            out = int4_few(rows, self.weight, self.scales, self.group)  # spares the dispatch of an operator in Python
        elif torch.compiler.is_compiling():
            out = torch.ops.fewbit.int4_linear(rows, self.weight, self.scales, self.group)
        else:
            out = int4_linear(rows, self.weight, self.scales, self.group)
        if out.shape[1] != self.outputs:
            out = out[:, : self.outputs]
        return out if self.step is None else out.float().mul_(self.step)

    def parts(self) -> dict[str, Tensor]:
        """Codes, and scales and zero points if they can be told from the kernel's."""
        codes = self.layout.unpack(self.weight)[: self.outputs]
        found = {"packed": pack(codes.view(torch.int8).sub_(8) if self.like.signed else codes, self.like)}
        scale, zero = self._own_scales()
        each = {"scale": scale, "zero_point": zero}
        return found | {part: each[part] for part in self.takes if part in each}

    def _own_scales(self) -> tuple[Tensor, Tensor]:
        """The weight's scales and zero points, read off the kernel's: `[out, in / group]` each."""
        scale, moved = self.scales[:, : self.outputs].transpose(0, 1).unbind(-1)
        zero = _middle(self.like) - (moved.float() / scale.float()).round_()
        return scale.contiguous(), zero.to(self.like.storage).contiguous()

    def _tells(self, weight: QTensor) -> bool:
        """Whether the weight's scales and zero points can be told from the kernel's, bit by bit."""
        if weight.grid.free_zero or weight.block != (1, self.group) or weight.scale.dtype is not torch.bfloat16:
            return False
        scale, zero = self._own_scales()
        return torch.equal(scale, weight.scale) and (weight.zero_point is None or torch.equal(zero, weight.zero_point))


def _middle(dtype: Dtype) -> float:
    """The code that stands where the kernels have 8."""
    return 0.0 if dtype.signed else 8.0


def _group(weight: Any) -> int | None:
    """The largest group of the kernels that the weight's own groups are made of."""
    width, features = weight.block[1], weight.shape[1]
    return next((size for size in _GROUPS if width % size == 0 and features % size == 0), None)


def _scales(weight: QTensor, group: int, *, unit: bool) -> Tensor:
    """Scales and zeros as the kernels want them, bfloat16 `[in / group, out, 2]`.

    Args:
        weight: with its own scales.
        group: of the kernel.
        unit: put 1 for every scale.
    """
    outputs, features = weight.shape
    qparams = weight.qparams
    step = torch.ones_like(qparams.step) if unit else qparams.step
    zero = torch.zeros_like(step)
    if qparams.zero_point is not None:
        zero = (_middle(weight.grid.dtype) - qparams.zero_point) * step
    both = torch.stack([step, zero], -1)
    high, wide = weight.block
    both = both.repeat_interleave(high, 0)[:outputs].repeat_interleave(-(-wide // group), 1)[:, : features // group]
    both = torch.nn.functional.pad(both, (0, 0, 0, 0, 0, -outputs % ROWS))
    return both.transpose(0, 1).to(torch.bfloat16).contiguous()
