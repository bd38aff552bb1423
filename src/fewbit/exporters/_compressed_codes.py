# SPDX-License-Identifier: Apache-2.0
"""The tensors that a reader of compressed-tensors finds for one layer, from its codes and scales.

Codes of packed integers stand in 32-bit words: element i begins at bit i · bits of its row, lowest bits first, and may
run into the next word; each is moved up by half its range, so that none is negative. Zero points are packed likewise,
along the outputs. Up to compressed-tensors 0.17 codes of 3, 5, 6 and 7 bits did not run into the next word: such a
checkpoint needs a reader of 0.18 or later.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.exporters._compressed_scheme import INTEGERS, MXFP4, MXFP8, NVFP4, PACKED, Scheme
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor


def code_entry(scheme: Scheme, shape: tuple[int, ...], read: Callable[[], QTensor]) -> Entry:
    """The codes of a weight, under the format's name for them; made when it is their turn.

    Args:
        scheme: of the layer.
        shape: `[out, in]`.
        read: gives the weight.
    """
    out, width = shape
    bits = scheme.weights.num_bits
    if scheme.format == PACKED:
        return Entry("weight_packed", torch.int32, (out, -(-width * bits // 32)), lambda: _packed_codes(read()))
    if scheme.format in (NVFP4, MXFP4):  # the lower four bits hold the even column, as ours do
        return Entry("weight_packed", torch.uint8, (out, width // 2), lambda: read().packed)
    if scheme.format == INTEGERS:
        return Entry("weight", torch.int8, shape, lambda: _signed(read().codes(), read().grid))
    return Entry("weight", torch.float8_e4m3fn, shape, lambda: read().codes())


def scale_tensors(
    scheme: Scheme, weight: QTensor, dtype: torch.dtype, super_scale: Tensor | None = None
) -> dict[str, Tensor]:
    """What stands beside the codes of a weight.

    Args:
        scheme: of the layer.
        weight: its weight.
        dtype: of the float weight; scales that it holds exactly are written in it, others in float32.
        super_scale: for nvfp4, the one that several layers share, instead of the weight's own.
    """
    if scheme.format in (MXFP4, MXFP8):
        return {"weight_scale": weight.scale}  # the exponent byte, as ours is kept
    if scheme.format == NVFP4:
        shared = _super_scale(weight) if super_scale is None else super_scale
        return {
            "weight_scale": weight.scale if super_scale is None else rescaled(weight, shared),
            "weight_global_scale": shared.reciprocal().reshape(1),  # readers divide by it
        }
    qparams = weight.qparams
    found = {"weight_scale": held(_laid(qparams.step, scheme, weight.shape), dtype)}
    if scheme.format == PACKED:
        found["weight_shape"] = torch.tensor(weight.shape, dtype=torch.int64)
        if not scheme.weights.symmetric:
            assert qparams.zero_point is not None
            zero = _laid(qparams.zero_point, scheme, weight.shape) - weight.grid.dtype.lowest
            found["weight_zero_point"] = _words(zero.to(torch.uint8).T, scheme.weights.num_bits).T.contiguous()
    return found


def input_tensors(quantizer: ActivationQuantizer, dtype: torch.dtype) -> dict[str, Tensor]:
    """The scale and the zero point of an input that were found beforehand; nothing for one found in each call."""
    if quantizer.scale is None:
        return {}
    found = {"input_scale": held(quantizer.scale.reshape(1), dtype)}
    if quantizer.grid.asymmetric:
        assert quantizer.zero_point is not None
        found["input_zero_point"] = _signed(quantizer.zero_point.reshape(1), quantizer.grid)
    return found


def held(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales in a dtype that holds them exactly: the given one, or else float32."""
    return scale.to(dtype) if torch.equal(scale.to(dtype).float(), scale) else scale


def rescaled(weight: QTensor, super_scale: Tensor) -> Tensor:
    """The block scales of an nvfp4 weight under another super scale; NaN where e4m3 does not hold one exactly."""
    wanted = weight.qparams.scale.double() * _super_scale(weight).double() / super_scale.double()
    fits = wanted.abs() <= torch.finfo(torch.float8_e4m3fn).max
    rounded = wanted.where(fits, torch.nan).float().to(torch.float8_e4m3fn)
    return torch.where(rounded.double() == wanted, rounded.float(), torch.nan).to(torch.float8_e4m3fn)


def _super_scale(weight: QTensor) -> Tensor:
    assert weight.super_scale is not None
    return weight.super_scale


def _laid(values: Tensor, scheme: Scheme, shape: tuple[int, ...]) -> Tensor:
    """One number a block in the shape its strategy has; a tensor's only one is repeated where rows are asked for."""
    if scheme.weights.strategy == "tensor":
        return values.reshape(1)
    return values.expand(shape[0], 1) if scheme.weights.strategy == "channel" else values


def _packed_codes(weight: QTensor) -> Tensor:
    """Our bytes have the same order. Moving a code up by half its range turns its sign bit round, in place."""
    bits = weight.grid.dtype.bits
    half = torch.full((1, weight.shape[1]), -int(weight.grid.dtype.lowest), dtype=torch.uint8)
    return _as_words(weight.packed.view(torch.uint8) ^ pack(half, Dtype[f"uint{bits}"]))


def _words(codes: Tensor, bits: int) -> Tensor:
    """Codes `[rows, n]` from 0 up as words `[rows, ceil(n * bits / 32)]`."""
    # A copy with strides of its own: those of a single row may be anything, and bytes are then not seen as words.
    return _as_words(pack(codes.clone(memory_format=torch.contiguous_format), Dtype[f"uint{bits}"]))


def _as_words(packed: Tensor) -> Tensor:
    """Bytes `[rows, n]` as words, each row filled up with zeros."""
    padded = F.pad(packed, (0, -packed.shape[-1] % 4))
    return padded.clone(memory_format=torch.contiguous_format).view(torch.int32)


def _signed(codes: Tensor, grid: Grid) -> Tensor:
    """Codes or zero points as int8 around zero."""
    middle = 0 if grid.dtype.signed else 1 << (grid.dtype.bits - 1)
    return (codes.to(torch.int16) - middle).to(torch.int8)
