# SPDX-License-Identifier: Apache-2.0
"""Products of integers for kernels: activations as int8, int8 matrices, PyTorch's 4-bit weights, oneDNN convolutions.

What runs on tensors that a compiler cannot look into is a custom operator of the namespace `fewbit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.backends.torch.layers import ActivationQuantizer, exporting
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import quantize
from fewbit.numerics.rounding import RoundType

LARGE = 1 << 20
"""Elements of a weight from which oneDNN's layout pays: 0.4 instead of 6 ms for 2 tokens and 4096 x 4096."""
LONGEST = 1 << 16
"""Features; the sum of more products of bytes may leave int32."""
FEW_TOKENS = 80
"""With more, PyTorch's 4-bit kernel is slower than a product with tiles that are dequantized once."""
_TILE = 1 << 20
_PACKED_ROWS = 64  # a multiple of the rows that any processor packs together
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127  # bounds of scales and ranges in `qparams_from_min_max`
_ONE_SCALE = (QSchemeType.per_tensor, QSchemeType.per_token)
_WORDS = {8: torch.int64, 16: torch.complex128}
_NO_ZERO = torch.zeros(1, dtype=torch.int32)


class Int8Activation(NamedTuple):
    """x = (integers - zero) * scale.

    Args:
        integers: int8; those of unsigned types moved down by 128, and `zero` with them.
        scale: float32, one or one per token `[tokens, 1]`.
        zero: float32 with integers, shaped like `scale`, or `None`.
    """

    integers: Tensor
    scale: Tensor
    zero: Tensor | None


def int8_refusal(quantizer: ActivationQuantizer) -> str | None:
    """Why an activation cannot be int8 with one scale, or one per token."""
    grid = quantizer.grid
    if not grid.dtype.is_integer or grid.dtype.bits > 8:
        return f"activations are {grid.dtype.name}, not integers of 8 bits"
    if grid.free_zero:
        return "the zero points of activations are not integers"
    return None if grid.granularity in _ONE_SCALE else f"activations are scaled {grid.granularity.value}"


def int8_encoder(quantizer: ActivationQuantizer) -> Callable[[Tensor], Int8Activation]:
    """What makes an activation `[tokens, features]` int8, exactly as `numerics.quantize` does, in few passes.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> int8_encoder(ActivationQuantizer(QuantizationGrid(Dtype.int8)))(torch.tensor([[0.5, -1.0]])).integers
    tensor([[  64, -127]], dtype=torch.int8)
    """
    grid = quantizer.grid
    scales = _scale_function(quantizer)
    lowest, highest, storage = grid.dtype.lowest, grid.dtype.highest, getattr(torch, grid.dtype.storage)

    def encode(x: Tensor) -> Int8Activation:
        x = x.float()
        scale, zero = scales(x)
        steps = x / scale
        if zero is None:
            steps.round_()  # the cast makes NaN zero
        else:
            steps.nan_to_num_(0.0).round_().add_(zero)
        return _as_signed(steps.clamp_(lowest, highest).to(storage), scale, zero)

    def encode_any(x: Tensor) -> Int8Activation:
        qparams = quantizer.qparams(x)
        return _as_signed(quantize(x, qparams), qparams.step, qparams.zero_point)

    return encode if grid.rounding is RoundType.half_even else encode_any


def _scale_function(quantizer: ActivationQuantizer) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """What computes scale and zero point of an activation."""
    grid = quantizer.grid
    lowest, highest = grid.dtype.lowest, grid.dtype.highest
    half, by_token = (highest - lowest) / 2, grid.granularity is QSchemeType.per_token

    def fixed(x: Tensor) -> tuple[Tensor, Tensor | None]:
        assert quantizer.scale is not None
        step = quantizer.scale if quantizer.global_scale is None else quantizer.scale * quantizer.global_scale
        return step, quantizer.zero_point

    def axes(x: Tensor) -> tuple[int, ...]:
        return (-1,) if by_token else tuple(range(x.ndim))

    def symmetric(x: Tensor) -> tuple[Tensor, Tensor | None]:
        # The scale of zeros alone may be anything: their integers are zeros.
        return _divide(x.abs().amax(axes(x), keepdim=True), half).clamp_(_SMALLEST, _LARGEST / half), None

    def asymmetric(x: Tensor) -> tuple[Tensor, Tensor | None]:
        low = x.amin(axes(x), keepdim=True).clamp_(-_LARGEST, 0.0)
        high = x.amax(axes(x), keepdim=True).clamp_(0.0, _LARGEST)
        scale = _divide(high.mul_(0.5) - low * 0.5, half).clamp_(min=_SMALLEST)
        return scale, (lowest - (low / scale).round_()).clamp_(lowest, highest)

    def any_other(x: Tensor) -> tuple[Tensor, Tensor | None]:
        qparams = quantizer.qparams(x)
        return qparams.step, qparams.zero_point

    if not quantizer.dynamic:
        return fixed
    plain = QuantizationGrid(
        grid.dtype, grid.granularity, symmetric=grid.symmetric, rounding=grid.rounding, seed=grid.seed
    )
    if grid.replace(axis=plain.axis, group_size=plain.group_size, block_size=plain.block_size) != plain:
        return any_other
    if grid.asymmetric:
        return asymmetric
    return any_other if grid.has_zero_point else symmetric


def _divide(x: Tensor, by: float) -> Tensor:
    """x / by, rounded as a float32 division: CUDA and compilers may multiply by the reciprocal."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x.div_(by)
    return (x.double() / by).float()


def _as_signed(integers: Tensor, scale: Tensor, zero: Tensor | None) -> Int8Activation:
    if integers.dtype is torch.int8:
        return Int8Activation(integers, scale, zero)
    assert zero is not None  # unsigned types have one
    return Int8Activation(integers.bitwise_xor(128).view(torch.int8), scale, zero - 128)


# int8 matrices.


class Int8Matrix:
    """A weight [out, in] in int8, and its products with int8 activations; sums are exact in int32.

    Args:
        weight: int8, [out, in].
        keep: do not store it in oneDNN's layout.
    """

    def __init__(self, weight: Tensor, *, keep: bool = False):
        self.is_packed = not keep and weight.device.type == "cpu" and weight.numel() >= LARGE and has_onednn()
        self.weight: Tensor = torch.ops.onednn.qlinear_prepack(weight, None) if self.is_packed else weight

    def product(self, integers: Tensor, step: Tensor) -> Tensor:
        """step * Σ integers * weight: int8 [m, in] and float32 [out] to float32 [m, out]."""
        if self.is_packed and not exporting():
            moved = integers.bitwise_xor(-128).view(torch.uint8)  # oneDNN is fast with unsigned activations only
            return _call(packed_linear, _packed_linear)(moved, self.weight, step)
        weight = constant(self.integers) if self.is_packed else self.weight
        sums = _int_mm(integers, weight)
        # A CPU is slow at two types in one operation.
        return sums.float().mul_(step) if sums.device.type == "cpu" else sums * step

    def integers(self) -> Tensor:
        """int8, [out, in]."""
        return self.weight.to_dense().t().contiguous() if self.is_packed else self.weight


@cache
def has_onednn() -> bool:
    """Whether PyTorch's oneDNN multiplies integers on this processor, and gets the extremes right."""
    weight = torch.arange(-128, 128, dtype=torch.int8).reshape(8, 32)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        x = weight.flip(0, 1)
        out = packed_linear(x.bitwise_xor(-128).view(torch.uint8), packed, torch.ones(8))
        same = torch.equal(packed.to_dense().t(), weight)
        return same and torch.equal(out, (x.long() @ weight.long().t()).float())
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


def _int_mm(x: Tensor, weight: Tensor) -> Tensor:
    """int8 [m, in] and [out, in] to int32 [m, out]; cuBLAS needs more than 16 rows."""
    if x.device.type == "cpu":
        return torch._int_mm(x, weight.t())
    # A compiler may not know yet how many rows there are.
    more = 17 if torch.compiler.is_compiling() else max(17 - x.shape[0], 0)
    return torch._int_mm(F.pad(x, (0, 0, 0, more)), weight.t())[: x.shape[0]]


def packed_linear(x: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """step * Σ (x - 128) * weight: uint8 [m, in] and oneDNN's layout of int8 [out, in] to float32 [m, out]."""
    run = torch.ops.onednn.qlinear_pointwise.default
    out: Tensor = run(x, 1.0, 128, weight, step, _NO_ZERO, None, 1.0, 0, torch.float32, "none", [], "")
    return out


_packed_linear = torch.library.custom_op("fewbit::packed_linear", packed_linear, mutates_args=())


@_packed_linear.register_fake
def _(x: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], step.shape[0]), dtype=torch.float32)


# int8 convolutions.


def packed_convolution(
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    weight: Tensor,
    step: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """scale * step * Σ (x - zero) * weight + bias over windows: uint8 [m, in, …] to float32.

    oneDNN answers with channels last; what follows may rely on the memory order of the input, so that comes back.
    """
    run = torch.ops.onednn.qconv_pointwise.tensor
    factors = (x, scale, zero, weight, step, _NO_ZERO, bias)
    out: Tensor = run(*factors, stride, padding, dilation, groups, 1.0, 0, torch.float32, "none", [], "")
    return out.contiguous(memory_format=_memory_format(x))


def _memory_format(x: Tensor) -> torch.memory_format:
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if channels_last is None or x.is_contiguous() or not x.is_contiguous(memory_format=channels_last):
        return torch.contiguous_format
    return channels_last


_packed_convolution = torch.library.custom_op("fewbit::packed_convolution", packed_convolution, mutates_args=())


@_packed_convolution.register_fake
def _(
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    weight: Tensor,
    step: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[-len(stride) :])]
    sides = [(n + 2 * p - span) // s + 1 for n, p, span, s in zip(x.shape[2:], padding, spans, stride)]
    shape = (x.shape[0], step.shape[0], *sides)
    return torch.empty(shape, dtype=torch.float32, device=x.device, memory_format=_memory_format(x))


def run_packed_convolution(*args: Any) -> Tensor:
    """`packed_convolution`, as an operator while a compiler looks on."""
    return _call(packed_convolution, _packed_convolution)(*args)


@cache
def has_onednn_convolution() -> bool:
    """Whether oneDNN convolves integers here, and gets the extremes right.

    Processors without VNNI add products of bytes in pairs in int16, which overflows: the largest values lie side by
    side in this test.
    """
    weight = torch.arange(-128, 128).to(torch.int8).reshape(2, 32, 2, 2)
    x = torch.arange(288).flip(0).clamp(max=255).to(torch.uint8).reshape(1, 32, 3, 3)
    geometry = ([1, 1], [1, 1], [1, 1], 1)
    try:
        packed = torch.ops.onednn.qconv_prepack(weight, torch.ones(2), 1.0, 0, *geometry, None)
        out = packed_convolution(x, torch.ones(()), torch.full((), 7), packed, torch.ones(2), None, *geometry)
        same = torch.equal(packed.to_dense().reshape(weight.shape), weight)
        return same and torch.equal(out, F.conv2d(x - 7.0, weight.float(), padding=1))
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


# 4-bit weights.


def pack_int4(integers: Tensor) -> Tensor:
    """uint8 [out, in] holding 0 to 15 as PyTorch's CPU kernel wants them, [out, in / 2]; `out` is a multiple of 16."""
    parts = [
        torch._convert_weight_to_int4pack_for_cpu(part.int(), 1) for part in integers.split(_rows_of_a_tile(integers))
    ]
    return torch.cat(parts)


def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of `pack_int4`."""
    integers = packed.new_empty(packed.shape[0], 2 * packed.shape[1])
    for rows, blocks in _int4_blocks(packed):
        columns = _in_order(blocks)
        integers[rows] = columns.transpose(1, 2).reshape(-1, columns.shape[1])
    return integers


def _rows_of_a_tile(x: Tensor) -> int:
    return max(_TILE // x.shape[1] // _PACKED_ROWS, 1) * _PACKED_ROWS


def _int4_blocks(packed: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time: which, and their bytes as [blocks, in, rows of a block / 2], columns first."""
    (rows, half), width = packed.shape, _packed_rows()
    tail = rows % width
    step = max(_rows_of_a_tile(packed) // 2 // width, 1) * width
    for start in range(0, rows - tail, step):
        stop = min(start + step, rows - tail)
        yield slice(start, stop), packed[start:stop].view(-1, 2 * half, width // 2)
    if tail:
        yield slice(rows - tail, rows), packed[rows - tail :].view(1, 2 * half, tail // 2)


def _halves(packed: Tensor) -> Tensor:
    """The integers of […, bytes]: all low halves, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1)


def _in_order(blocks: Tensor) -> Tensor:
    """The integers of packed blocks, [blocks, in, rows of a block]."""
    order = _row_order(2 * blocks.shape[2])
    integers = _halves(blocks)
    return integers if order is None else integers[..., order]


@cache
def _packed_rows() -> int:
    """How many rows this processor packs together: those whose first column comes before any second one."""
    columns = _learned_positions(_PACKED_ROWS) % 2
    first = columns[: len(columns) // 2]  # the low halves alone, one per byte
    return 2 * int(first.cumsum(0).eq(0).sum())


@cache
def _row_order(rows: int) -> Tensor | None:
    """Where each row lies among the integers of a column; `None` if in order. It depends on the processor."""
    position = _learned_positions(rows).view(2, 2, rows // 2)[:, 0].flatten() // 2  # half, column, byte
    return None if torch.equal(position, torch.arange(rows)) else position.argsort()


def _learned_positions(rows: int) -> Tensor:
    """Which element of a [rows, 2] matrix each packed half byte is, found by packing the digits of element numbers."""
    index = torch.arange(2 * rows).reshape(rows, 2)
    positions = torch.zeros(2 * rows, dtype=torch.int64)
    for shift in (0, 4):
        packed = torch._convert_weight_to_int4pack_for_cpu((index >> shift & 15).int(), 1)
        positions |= _halves(packed.flatten()).long() << shift
    return positions


def int4_linear(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    """Σ x * ((integer - 8) * scale + zero), bfloat16 [m, out].

    Args:
        x: bfloat16, [m, in].
        weight: of `pack_int4`.
        scales: scales and zeros, bfloat16, [in / group, out, 2].
        group: inputs that share a scale.
    """
    if x.shape[0] <= FEW_TOKENS:
        return torch._weight_int4pack_mm_for_cpu(x, weight, group, scales)
    out = x.new_empty(x.shape[0], scales.shape[1])
    x = x if torch.ops.mkldnn._is_mkldnn_bf16_supported() else x.float()
    values = tile = x.new_empty(0)
    for rows, blocks in _int4_blocks(weight):
        integers = _in_order(blocks)
        count, features, width = integers.shape
        if values.shape != integers.shape:  # made once: fresh memory costs more than the arithmetic on it
            values, tile = x.new_empty(integers.shape, dtype=torch.float32), x.new_empty(features, count, width)
        part = scales[:, rows].float().view(-1, count, width, 2)
        scale, zero = part.permute(3, 1, 0, 2).unsqueeze(3).contiguous()  # each [blocks, in / group, 1, rows]
        values.copy_(integers).view(count, -1, group, width).mul_(scale).add_(zero.sub_(scale, alpha=8))
        out[:, rows] = x @ tile.copy_(values.transpose(0, 1)).flatten(1)
    return out


_int4_linear = torch.library.custom_op("fewbit::int4_linear", int4_linear, mutates_args=())


@_int4_linear.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    return x.new_empty(x.shape[0], scales.shape[1])


def run_int4_linear(x: Tensor, weight: Tensor, scales: Tensor, group: int) -> Tensor:
    """`int4_linear`; in an exported program PyTorch's own operator for any number of tokens."""
    if exporting():
        return torch._weight_int4pack_mm_for_cpu(x, weight, group, scales)
    return _call(int4_linear, _int4_linear)(x, weight, scales, group)


# Bytes that hold several elements.


def byte_table(elements: Tensor) -> Tensor:
    """The values of each byte, as one number of all their bits; see `look_up`.

    Args:
        elements: the value of every pattern of 2 or 4 bits; the first element of a byte is in its lowest bits.
    """
    bits = (len(elements) - 1).bit_length()
    patterns = torch.arange(256, device=elements.device)[:, None] >> torch.arange(0, 8, bits, device=elements.device)
    values = elements.float()[patterns & (len(elements) - 1)].contiguous()
    return values.view(_WORDS[values.shape[1] * values.element_size()]).flatten()


def look_up(table: Tensor, packed: Tensor) -> Tensor:
    """float32 values [… * elements of a byte] of packed bytes; several times faster than shifts and a cast."""
    return table.index_select(0, packed.reshape(-1).int()).view(torch.float32)


# What tracers see.


def _call(function: Callable[..., Tensor], operator: Any) -> Callable[..., Tensor]:
    """The operator while a compiler looks on, else the function, which spares its dispatch."""
    compiled: Callable[..., Tensor] = operator if torch.compiler.is_compiling() else function
    return compiled


def constant(make: Callable[[], Tensor]) -> Tensor:
    """What `make` returns, computed now and not recorded by `torch.export`: no program can hold what it reads."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return make()
