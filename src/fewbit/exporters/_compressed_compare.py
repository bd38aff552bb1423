# SPDX-License-Identifier: Apache-2.0
"""Whether what a second reader finds of a layer is what the model holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._compressed_decode import decode
from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.floats import decode as float_values

# A reader divides by the reciprocal of our super scale: two roundings.
_TWO_ROUNDINGS = 2.0**-22


def differences(matrix: Matrix, group: Mapping[str, Any] | None, parts: Mapping[str, Tensor]) -> Iterator[str]:
    """What is not the same, in words.

    Args:
        matrix: of the model.
        group: of config.json.
        parts: the layer's tensors, by their names in it.
    """
    if group is None:
        yield "config.json does not name it"
        return
    weight = matrix.read()
    try:
        found = decode(group, parts)
    except (KeyError, ValueError) as error:  # a part that is not there, or not of its shape
        yield f"its tensors: {error}"
        return
    if not np.array_equal(found.elements, _elements(weight.codes(), weight.grid.dtype), equal_nan=True):
        yield "codes"
    qparams = weight.qparams
    if not _same(found.steps, qparams.step.double().numpy(), 0 if qparams.super_scale is None else _TWO_ROUNDINGS):
        yield "scales"
    zeros = np.zeros(()) if qparams.zero_point is None else _elements(qparams.zero_point, weight.grid.dtype)
    if not _same(found.zeros, zeros, 0):
        yield "zero points"
    yield from _input_differences(matrix.quantizer, group["input_activations"], parts)


def _input_differences(
    quantizer: ActivationQuantizer | None, said: Mapping[str, Any] | None, parts: Mapping[str, Tensor]
) -> Iterator[str]:
    if quantizer is None or said is None:
        if (quantizer is None) != (said is None):
            yield "whether its input is quantized"
        return
    grid = quantizer.grid
    ours = (grid.dtype.bits, grid.dtype.is_integer, quantizer.dynamic, not grid.asymmetric)
    if ours != (said["num_bits"], said["type"] == "int", said["dynamic"], said["symmetric"]):
        yield "what its input becomes"
    if quantizer.scale is None:
        return
    scale, zero = parts.get("input_scale"), parts.get("input_zero_point")
    if scale is None or not _same(scale.double().numpy(), quantizer.scale.double().numpy(), 0):
        yield "the input's scale"
    if grid.asymmetric:
        assert quantizer.zero_point is not None
        if zero is None or not _same(zero.double().numpy(), _elements(quantizer.zero_point, grid.dtype), 0):
            yield "the input's zero point"


def _elements(codes: Tensor, dtype: Dtype) -> NDArray[Any]:
    """Codes as the numbers they are, integers around zero."""
    if not dtype.is_integer:
        return float_values(codes, dtype).numpy()
    middle = 0 if dtype.signed else 1 << (dtype.bits - 1)
    return codes.short().numpy() - middle


def _same(theirs: NDArray[Any], ours: NDArray[Any], tolerance: float) -> bool:
    """Whether numbers are equal block by block; one number may stand for many, on either side."""
    if min(theirs.size, ours.size) > 1 and theirs.size != ours.size:
        return False
    return bool(np.allclose(theirs.reshape(-1), ours.reshape(-1), rtol=tolerance, atol=0, equal_nan=True))
