# SPDX-License-Identifier: Apache-2.0
"""Kernels on integers: int8 by int8, int8 weights with float activations, int8 convolutions, 4-bit weights."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fewbit.backends.torch._products import (
    LARGE,
    LONGEST,
    Int8Matrix,
    constant,
    has_onednn_convolution,
    int8_encoder,
    int8_refusal,
    pack_int4,
    run_int4_linear,
    run_packed_convolution,
    unpack_int4,
)
from fewbit.backends.torch.layers import KernelConditions, QuantizedLayer, StoredWeight, exporting
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor

_INT4_GROUPS = (256, 128, 64, 32)


class BaseKernel:
    """What kernels have in common. `refusal` is `None` if it can run a layer, empty if the layer is of another kind."""

    name: ClassVar[str]
    wraps: bool = False

    def __init__(self, layer: QuantizedLayer, conditions: KernelConditions):
        self.conditions = conditions
        self.note = ""
        self.takes: tuple[str, ...] = ()

    def parts(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def nbytes(self) -> int:
        """Of tensors that are its own."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return sum(tensor_bytes(tensor) for tensor in tensors)


class Int8Linear(BaseKernel):
    """int8 weights and activations: one product of integers, scaled afterwards.

    With integers q and w, zero points z and v, and n features:
    Σ (q - z) (w - v) = Σ q w - v Σ q - z (Σ w - n v).
    """

    name = "int8"

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Linear layers with 8-bit weights, a scale per output, and activations of at most 8 bits."""
        other = not_linear(layer)
        if other is not None or layer.input_quantizer is None:
            return other or ""
        return _int8_weight_refusal(layer, conditions) if int8_refusal(layer.input_quantizer) is None else ""

    def __init__(self, layer: QuantizedLayer, conditions: KernelConditions):
        super().__init__(layer, conditions)
        weight = _as_rows_of_outputs(layer)
        self.step, zero = per_output(weight)
        self.unsigned = not weight.grid.dtype.signed
        self.transposed = is_transposed(layer)
        integers = weight.packed.bitwise_xor(128).view(torch.int8) if self.unsigned else weight.packed
        self.matrix = Int8Matrix(integers, keep=conditions.shared)
        self.zero = zero - 128 if self.unsigned and zero is not None else zero
        if self.zero is not None and not self.zero.any():
            self.zero = None
        # The integers are stored once: here if they had to change, else in the layer.
        self.takes = ("packed",) if self.matrix.weight is not layer._buffers.get("weight_packed") else ()
        self.encode = None if layer.input_quantizer is None else int8_encoder(layer.input_quantizer)
        self.sums: Tensor | None = None
        if layer.input_quantizer is not None and layer.input_quantizer.grid.has_zero_point:
            sums = integers.sum(1, dtype=torch.int64).float()  # exact: below 2^24
            self.sums = (sums if self.zero is None else sums - integers.shape[1] * self.zero) * self.step

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        assert self.encode is not None
        activation = self.encode(as_rows(x))
        out = self.matrix.product(activation.integers, self.step)
        if self.zero is not None:
            out -= activation.integers.sum(-1, keepdim=True, dtype=torch.int32).float() * (self.zero * self.step)
        if activation.zero is not None and self.sums is not None:
            out -= activation.zero * self.sums
        return finish(out.mul_(activation.scale), layer.bias, x)

    def parts(self) -> dict[str, Tensor]:
        """The integers, if they are stored here."""
        if not self.takes:
            return {}
        integers = self.matrix.integers()
        integers = integers.t().contiguous() if self.transposed else integers
        return {"packed": integers.view(torch.uint8).bitwise_xor(128) if self.unsigned else integers}

    def nbytes(self) -> int:
        """With the integers, if they are stored here."""
        return super().nbytes() + (tensor_bytes(self.matrix.weight) if self.takes else 0)


class Int8WeightOnly(Int8Linear):
    """int8 weights, float activations: an activation is split into bytes, each of which is a product of integers.

    A token's values in units of its largest over 2^23 are integers of three bytes (two in half precision, whose outputs
    cannot show more): Σ x w = unit (65536 Σ b₂ w + 256 Σ b₁ w + Σ b₀ w), each sum exact. So float32 precision costs
    three integer products, which read the weight once: less memory traffic than one float product.
    """

    name = "int8_weight_only"

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Linear layers with 8-bit weights, a scale per output; small ones are dequantized faster."""
        other = not_linear(layer)
        if other is not None or layer.input_quantizer is not None or conditions.device.type != "cpu":
            return other or ""
        return "" if prod(layer.stored["weight"].shape) < LARGE else _int8_weight_refusal(layer, conditions)

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        rows = as_rows(x).float()
        digits, unit = split_bytes(rows, 2 if x.dtype in (torch.float16, torch.bfloat16) else 3)
        products = self.matrix.product(digits.flatten(0, 1), self.step).view(*digits.shape[:2], -1)
        out = products[0]
        for place in range(1, len(products)):
            out.add_(products[place], alpha=256**place)
        out.mul_(unit)
        if self.zero is not None:
            out -= rows.sum(-1, keepdim=True) * (self.zero * self.step)
        return finish(out, layer.bias, x)


def split_bytes(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Signed bytes of each token's values, lowest first, and the token's unit: x ≈ unit Σ 256ⁱ bytesᵢ.

    Args:
        x: float32, [tokens, features].
        count: two or three.

    Returns:
        int8 [count, tokens, features], and float32 [tokens, 1].

    >>> digits, unit = split_bytes(torch.tensor([[1.0, -0.25]]), 2)
    >>> (digits[1] * 256.0 + digits[0]) * unit
    tensor([[ 1.0000, -0.2500]])
    """
    # Signed bytes end at 127; with 128 added to each they are the bytes of a number that is not negative.
    largest, shift = (sum(byte * 256**place for place in range(count)) for byte in (127, 128))
    # One less, for the two roundings on the way to the quotient of the largest value.
    unit = x.abs().amax(-1, keepdim=True).div_(largest - 1).clamp_(min=2.0**-126)
    moved = (x / unit).round_().add_(shift).to(torch.int32)  # below 2^24 every integer is a float32
    digits = moved.view(torch.uint8).view(*x.shape, 4)[..., :count].permute(2, 0, 1)
    return digits.bitwise_xor(128).contiguous().view(torch.int8), unit


class Int8Convolution(BaseKernel):
    """int8 convolutions on CPU by oneDNN."""

    name = "int8_conv"
    _FLOAT: ClassVar[dict[type[nn.Module], Any]] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Convolutions with int8 weights, a scale per output, and activations of at most 8 bits with one scale."""
        base, weight, quantizer = cls._base(layer), layer.stored.get("weight"), layer.input_quantizer
        if base is None or weight is None or quantizer is None or weight.grid.dtype is not Dtype.int8:
            return ""
        if layer.float_class.forward is not base.forward:
            return f"{layer.float_class.__name__} has another forward than its base class"
        if (reason := int8_refusal(quantizer)) is not None:
            return reason
        if quantizer.dynamic and quantizer.grid.granularity is not QSchemeType.per_tensor:
            return "activations are scaled per token, and a window contains several"
        if conditions.device.type != "cpu" or not has_onednn_convolution():
            return f"PyTorch has no exact int8 convolution on this {conditions.device.type}"
        if weight.grid.has_zero_point or not is_per_output(weight):
            return "its weights need one scale per output and no zero point"
        if layer.padding_mode != "zeros" or _padding(layer) is None:
            return "it pads with other values than as many zeros on both sides"
        if conditions.exact and weight.dtype is torch.float64:
            return "it computes in float32, and the layer in float64"
        if conditions.shared:
            return "other layers use the same integers"
        return "sums may leave int32" if prod(weight.shape[1:]) > LONGEST else None

    @classmethod
    def _base(cls, layer: QuantizedLayer) -> Any:
        return next((base for base in cls._FLOAT if issubclass(layer.float_class, base)), None)

    def __init__(self, layer: Any, conditions: KernelConditions):
        super().__init__(layer, conditions)
        weight = layer.qtensor("weight")
        self.shape, self.takes = weight.shape, ("packed",)
        self.geometry = (list(layer.stride), _padding(layer), list(layer.dilation), layer.groups)
        self.step = per_output(weight)[0]
        self.encode = int8_encoder(layer.input_quantizer)
        self.float = self._FLOAT[self._base(layer)]
        self.weight: Tensor = torch.ops.onednn.qconv_prepack(weight.packed, self.step, 1.0, 0, *self.geometry, None)

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        if x.ndim == len(self.shape) - 1:
            return self.run(layer, x.unsqueeze(0)).squeeze(0)
        integers, scale, zero = self.encode(x)
        bias = None if layer.bias is None else layer.bias.detach().float()
        if exporting():
            return self._run_plain(integers, scale, zero, bias).to(x.dtype)
        moved = integers.bitwise_xor(-128).view(torch.uint8)
        zero = torch.full((), 128) if zero is None else (zero + 128).int()
        return run_packed_convolution(moved, scale, zero, self.weight, self.step, bias, *self.geometry).to(x.dtype)

    def _run_plain(self, integers: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
        """With PyTorch's own operators: float products of integers, exact below 2^24."""
        values = integers.float() if zero is None else integers - zero
        channels = (-1, *(1 for _ in self.shape[2:]))
        out = self.float(values, constant(self._integers).float(), None, *self.geometry)
        out = out * (scale * self.step).reshape(channels)
        return out if bias is None else out + bias.reshape(channels)

    def _integers(self) -> Tensor:
        return self.weight.to_dense().reshape(self.shape)

    def parts(self) -> dict[str, Tensor]:
        """The integers."""
        return {"packed": self._integers()}


class Int4Linear(BaseKernel):
    """4-bit weights in groups by PyTorch's CPU kernel, in bfloat16; 8-bit activations are exact in bfloat16."""

    name = "int4"

    @classmethod
    def refusal(cls, layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
        """Linear layers with 4-bit integers in groups of a multiple of 32."""
        other, weight = not_linear(layer), layer.stored.get("weight")
        if other is not None or weight is None or not weight.grid.dtype.is_integer or weight.grid.dtype.bits != 4:
            return other or ""
        if conditions.device.type != "cpu":
            return f"it runs on CPU, not on {conditions.device.type}"
        if not hasattr(torch, "_convert_weight_to_int4pack_for_cpu"):
            return f"PyTorch {torch.__version__} has no such kernel"
        if conditions.exact and weight.dtype is not torch.bfloat16:
            return f"it rounds activations to bfloat16, and the layer is {str(weight.dtype).removeprefix('torch.')}"
        if conditions.shared:
            return "other layers use the same integers"
        block, shape = (
            (weight.block, weight.shape) if not is_transposed(layer) else (weight.block[::-1], weight.shape[::-1])
        )
        if _int4_group(block[1], shape[1]) is None:
            return f"it takes complete groups of 32, 64, 128 or 256, not {block[1]} of {shape[1]} inputs"
        return None

    def __init__(self, layer: QuantizedLayer, conditions: KernelConditions):
        super().__init__(layer, conditions)
        weight = _as_rows_of_outputs(layer)
        group = _int4_group(weight.block[1], weight.shape[1])
        assert group is not None
        self.group, self.outputs, self.dtype = group, weight.shape[0], weight.grid.dtype
        self.transposed, self.takes = is_transposed(layer), ("packed",)
        integers = weight.codes().view(torch.uint8)
        integers = integers.bitwise_xor(8).bitwise_and_(15) if self.dtype.signed else integers
        self.weight = pack_int4(F.pad(integers, (0, 0, 0, -self.outputs % 16)))
        # One scale per output is applied after the product, where it is not rounded to bfloat16.
        self.step = per_output(weight)[0] if is_per_output(weight) else None
        self.scales = _int4_scales(weight, group, ones=self.step is not None)
        quantizer = layer.input_quantizer
        self.encode = int8_encoder(quantizer) if quantizer is not None and int8_refusal(quantizer) is None else None
        if layer.stored["weight"].dtype is not torch.bfloat16:
            self.note = "computes in bfloat16"

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output."""
        if self.encode is None:
            rows = as_rows(x if layer.input_quantizer is None else layer.input_quantizer(x))
            return finish(self._product(rows.to(torch.bfloat16)).to(x.dtype), layer.bias, x)
        integers, scale, zero = self.encode(as_rows(x))
        rows = integers.to(torch.bfloat16) if zero is None else (integers - zero).to(torch.bfloat16)
        return finish(self._product(rows).float().mul_(scale), layer.bias, x)

    def _product(self, rows: Tensor) -> Tensor:
        out = run_int4_linear(rows, self.weight, self.scales, self.group)
        out = out if out.shape[1] == self.outputs else out[:, : self.outputs]
        return out if self.step is None else out.float().mul_(self.step)

    def parts(self) -> dict[str, Tensor]:
        """The integers."""
        integers = unpack_int4(self.weight)[: self.outputs]
        integers = integers.view(torch.int8).sub_(8) if self.dtype.signed else integers
        return {"packed": pack(integers.t().contiguous() if self.transposed else integers, self.dtype.bits)}


def _int4_group(width: int, features: int) -> int | None:
    """The largest group of the kernel that the weight's own groups consist of."""
    return next((size for size in _INT4_GROUPS if width % size == 0 and features % size == 0), None)


def _int4_scales(weight: QTensor, group: int, *, ones: bool) -> Tensor:
    """Scales and zeros as the kernel wants them, bfloat16 [in / group, out, 2]."""
    qparams, (outputs, features), (height, width) = weight.qparams, weight.shape, weight.block
    step = torch.ones_like(qparams.step) if ones else qparams.step
    middle = 0.0 if weight.grid.dtype.signed else 8.0
    zero = torch.zeros_like(step) if qparams.zero_point is None else (middle - qparams.zero_point) * step
    both = torch.stack([step, zero], -1).repeat_interleave(height, 0)[:outputs]
    both = both.repeat_interleave(-(-width // group), 1)[:, : features // group]
    both = F.pad(both, (0, 0, 0, 0, 0, -outputs % 16))
    return both.transpose(0, 1).to(torch.bfloat16).contiguous()


def not_linear(layer: QuantizedLayer) -> str | None:
    """Why a layer is no plain product with `weight` and `bias`; empty if it is nothing like it."""
    kind = layer.float_class
    linear = issubclass(kind, nn.Linear)
    if "weight" not in layer.stored or not (linear or is_transposed(layer)):
        return ""
    if issubclass(kind, NonDynamicallyQuantizableLinear):
        return "the attention around it reads its weight and never calls it"
    return (
        f"{kind.__name__} has another forward than its base class"
        if linear and kind.forward is not nn.Linear.forward
        else None
    )


def is_transposed(layer: QuantizedLayer) -> bool:
    """The linear layer of transformers that stores its weight as [in, out]."""
    return layer.float_class.__name__ == "Conv1D" and len(layer.stored["weight"].shape) == 2


def _int8_weight_refusal(layer: QuantizedLayer, conditions: KernelConditions) -> str | None:
    """Why a weight cannot be int8 with a scale per output; empty if it is nothing like it."""
    weight = layer.stored["weight"]
    outputs, features = weight.shape[::-1] if is_transposed(layer) else weight.shape
    if not weight.grid.dtype.is_integer or weight.grid.dtype.bits != 8:
        return ""
    if weight.grid.free_zero:
        return "its zero points are not integers"
    if not is_per_output(_as_rows_of_outputs(layer)):
        return f"its weights are scaled {weight.grid.granularity.value}, not per output"
    if features > LONGEST:
        return f"sums over {features} features may leave int32"
    if conditions.exact and weight.dtype is torch.float64:
        return "it computes in float32, and the layer in float64"
    if conditions.shared and not weight.grid.dtype.signed:
        return "other layers use the same unsigned integers"
    if conditions.device.type not in ("cpu", "cuda"):
        return f"PyTorch has no integer product on {conditions.device.type}"
    if conditions.device.type == "cuda" and (outputs % 8 or features % 8):
        return f"on CUDA both sides must be multiples of 8, and {outputs} x {features} are not"
    return None


def _as_rows_of_outputs(layer: QuantizedLayer) -> QTensor:
    """The weight as [out, in], also of the linear layer of transformers that stores [in, out]."""
    weight = layer.qtensor("weight")
    if not is_transposed(layer):
        return weight
    packed = pack(weight.codes().t().contiguous(), weight.grid.dtype.bits)
    zero = None if weight.zero_point is None else weight.zero_point.t().contiguous()
    block, scale = weight.block[::-1], weight.scale.t().contiguous()
    return QTensor(weight.grid, weight.shape[::-1], block, packed, scale, zero, weight.global_scale)


def is_per_output(weight: QTensor | StoredWeight) -> bool:
    """Whether everything that makes up one output shares one scale."""
    return weight.block[0] in (1, weight.shape[0]) and weight.block[1:] == weight.shape[1:]


def per_output(weight: QTensor) -> tuple[Tensor, Tensor | None]:
    """Step and zero point of each output, float32 [out]."""
    qparams, outputs = weight.qparams, weight.shape[0]
    zero = None if qparams.zero_point is None else qparams.zero_point.flatten().expand(outputs).contiguous()
    return qparams.step.flatten().expand(outputs).contiguous(), zero


def _padding(layer: Any) -> list[int] | None:
    """Zeros on both sides of each axis; `None` if the sides differ."""
    if layer.padding == "valid":
        return [0] * len(layer.stride)
    if layer.padding != "same":
        return list(layer.padding)
    both = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
    return None if any(total % 2 for total in both) else [total // 2 for total in both]


def as_rows(x: Tensor) -> Tensor:
    """[tokens, features], contiguous: not every kernel takes strided rows."""
    return (x if x.ndim == 2 else x.reshape(-1, x.shape[-1])).contiguous()


def finish(out: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """With the bias, in the shape and dtype that the layer's own forward gives."""
    if bias is not None:
        out = out.add_(bias) if not (bias.requires_grad and torch.is_grad_enabled()) else out + bias
    return out.to(x.dtype).view(*x.shape[:-1], out.shape[-1])


def tensor_bytes(tensor: Tensor) -> int:
    return int(torch.ops.mkldnn._nbytes(tensor)) if tensor.is_mkldnn else tensor.untyped_storage().nbytes()
