# SPDX-License-Identifier: Apache-2.0
"""The weight of a module's layer as a matrix [out, in * kernel] for an algorithm, and back as it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from fewbit.algorithms._base import InputMoments, LayerProblem, WeightAlgorithm
from fewbit.backends._base import ModuleLayer
from fewbit.config.spec import QuantizationSpec
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.observers._rows import observe_weight


def quantize_weight(
    weight: Any,
    layer: ModuleLayer,
    spec: QuantizationSpec,
    algorithm: WeightAlgorithm,
    moments: InputMoments | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> QTensor:
    """Quantize the weight of a layer as it is stored; an algorithm sees it as a matrix [out, in * kernel].

    Args:
        weight: float32, as stored.
        layer: what its axes are.
        spec: complete.
        algorithm: chooses scales and integers.
        moments: of the columns.
        parameters: of the algorithm.
    """
    grid = spec.grid()
    if not is_matrix_problem(layer, spec):
        return round_to_nearest(
            weight, grid.replace(axis=layer.channel_axis if not grid.axis else 1 - layer.channel_axis)
        )
    matrix = _to_matrix(weight, layer)
    kernel = prod(layer.shape[2:])
    wide = grid.replace(
        group_size=grid.group_size * kernel if grid.group_size > 0 else grid.group_size,
        block_size=(grid.block_size[0], grid.block_size[1] * kernel),
    )
    if spec.algorithm is None and spec.observer_cls is not None:
        parameters_of_observer = spec.observer_parameters
        tensor = QTensor.encode(matrix, observe_weight(matrix, wide, spec.observer_cls, parameters_of_observer))
    else:
        problem = LayerProblem(layer.name, matrix, wide, moments)
        tensor = algorithm.quantize(problem, **(parameters or {}))
    return _as_stored(tensor, layer, grid.replace(axis=layer.channel_axis if not grid.axis else 1 - layer.channel_axis))


def round_to_nearest(tensor: Any, grid: QuantizationGrid) -> QTensor:
    """Each element to the nearest value, scales from the extremes of each block."""
    shape = tuple(tensor.shape)
    block = grid.weight_block(shape)
    return QTensor.encode(tensor, qparams_from_min_max(*BlockShape(shape, block).extremes(tensor), grid, block))


def _to_matrix(weight: Any, layer: ModuleLayer) -> Any:
    """[out, in * kernel]; rows of an embedding stay."""
    if layer.op == "conv_transpose":
        inputs, outputs, *kernel = layer.shape
        parts = weight.reshape(layer.groups, inputs // layer.groups, outputs, *kernel).transpose(1, 2)
        return parts.reshape(layer.groups * outputs, -1)
    return weight.t().contiguous() if layer.channel_axis == 1 else weight.reshape(layer.shape[0], -1)


def _as_stored(tensor: QTensor, layer: ModuleLayer, grid: QuantizationGrid) -> QTensor:
    """A quantized matrix [out, in * kernel] in the shape of the weight, with blocks that hold the same elements."""
    height, width = tensor.block
    kernel = tuple(layer.shape[2:])
    size = prod(kernel)
    columns = max(width // size, 1)
    codes, qparams = tensor.codes(), tensor.qparams
    if layer.op != "conv_transpose":
        transposed = layer.channel_axis == 1
        block = (columns, height) if transposed else (height, columns, *kernel)
        shape = tuple(layer.shape)

        def place(x: Any) -> Any:
            return x.t().contiguous() if transposed else x.reshape([*x.shape, *[1] * len(kernel)])

        stored = codes.t().contiguous() if transposed else codes.reshape(shape)
        return QTensor.from_codes(stored, _moved(qparams, grid, block[: len(shape)], place))
    inputs, outputs = layer.shape[:2]
    groups, per_group = layer.groups, inputs // layer.groups
    stored = codes.reshape(groups, outputs, per_group, *kernel).transpose(1, 2).reshape(layer.shape)
    if height >= codes.shape[0]:  # one scale for all outputs
        block = (inputs if columns >= per_group else columns, outputs, *kernel)
        return QTensor.from_codes(stored, _moved(qparams, grid, block, lambda x: x.reshape(-1, 1, *[1] * len(kernel))))

    def place_channels(x: Any) -> Any:
        rows = -(-outputs // height)
        return x.reshape(groups, rows, -1).transpose(1, 2).reshape(-1, rows, *[1] * len(kernel))

    return QTensor.from_codes(stored, _moved(qparams, grid, (min(columns, per_group), height, *kernel), place_channels))


def _moved(qparams: QParams, grid: QuantizationGrid, block: tuple[int, ...], place: Callable[[Any], Any]) -> QParams:
    zero = None if qparams.zero_point is None else place(qparams.zero_point)
    return QParams(grid, block, place(qparams.scale), zero, qparams.global_scale)


def share_lost(weight: Any, tensor: QTensor) -> float:
    """||W - Q||² / ||W||²."""
    energy = float(weight.square().sum())
    lost = float((tensor.dequantize() - weight).square().sum())
    return lost / energy if energy else 0.0


def is_matrix_problem(layer: ModuleLayer, spec: QuantizationSpec) -> bool:
    """Whether scales belong to outputs, so that an algorithm can see the weight as a matrix."""
    return not spec.ch_axis or (layer.op in ("matmul", "gather") and layer.channel_axis == 0)
