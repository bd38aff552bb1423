# SPDX-License-Identifier: Apache-2.0
"""The protocols of algorithms: each names the statistics it needs, and every path provides them.

A file here defines `ALGORITHM`. An algorithm is a function of arrays: it runs no model and knows no backend. Its
`stage` says which protocol it follows, in the order in which a run applies them:

- `rotation`: rotates residual stream and heads, which changes nothing that a model computes (`RotationAlgorithm`);
- `scaling`: rescales channels, likewise (`ScalingAlgorithm`);
- `pruning`: sets elements of a weight to zero (`PruningAlgorithm`);
- `weight`: chooses scales and integers of one weight (`WeightAlgorithm`);
- `block`: tunes the integers of all weights of a block together (`BlockAlgorithm`);
- `bias`: corrects the mean of a layer's output (`BiasAlgorithm`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.sparsity import SparsityPattern


@dataclass(frozen=True)
class InputMoments:
    """Means over calibration rows (tokens, pixels) of the input x of a layer; x' is that of the float model.

    Args:
        count: rows.
        second_moment: x², [in].
        absmax: largest |x|, [in].
        hessian: x xᵀ, [in, in].
        input_gap: (x' - x) xᵀ, [in, in].
        output_gap: (y' - y) xᵀ, [out, in]: what the output y of this layer lacks, all earlier losses included.
        mean: x, [in].
    """

    count: int
    second_moment: Array | None = None
    absmax: Array | None = None
    hessian: Array | None = None
    input_gap: Array | None = None
    output_gap: Array | None = None
    mean: Array | None = None


@dataclass(frozen=True)
class LayerProblem:
    """A weight to quantize.

    Args:
        name: of the layer, for errors.
        weight: [out, in], float32; kernels of convolutions are flattened into `in`.
        grid: the values it may take.
        moments: of the layer's input; `None` without calibration data.
        shared: what layers that read the same input have in common, such as a factorized Hessian.
    """

    name: str
    weight: Array
    grid: QuantizationGrid
    moments: InputMoments | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class Algorithm(Protocol):
    """What every algorithm says of itself."""

    name: str
    stage: str
    statistics: frozenset[str]
    """Fields of `InputMoments` that must be there."""
    requires: str | None
    """The library it needs beyond numpy, such as torch."""
    settings: Mapping[str, Any]
    """Its own settings with their defaults."""


class WeightAlgorithm(Algorithm, Protocol):
    """Chooses scales and integers for one weight; stage `weight`."""

    def quantize(self, problem: LayerProblem, **settings: Any) -> QTensor:
        """The quantized weight."""
        ...


@dataclass(frozen=True)
class PruningProblem:
    """A weight to prune. Elements that are zero already stay zero and count as pruned.

    Args:
        name: of the layer, for errors.
        weight: [out, in] or [out, in, kernel…], float32.
        pattern: how many zeros, and which together.
        moments: of the layer's input; of a convolution those of its windows, `in` and kernel flattened.
        shared: what layers that read the same input have in common, such as a factorized Hessian.
    """

    name: str
    weight: Array
    pattern: SparsityPattern
    moments: InputMoments | None = None
    shared: dict[str, Any] = field(default_factory=dict)


class PruningAlgorithm(Algorithm, Protocol):
    """Chooses which elements of a weight become zero, and what the others become; stage `pruning`."""

    def prune(self, problem: PruningProblem, **settings: Any) -> Array:
        """The pruned weight: of the same shape, with the zeros of the pattern."""
        ...


@dataclass(frozen=True)
class ScaledLayer:
    """A layer on one side of channels that can be rescaled.

    Args:
        weight: [out, in] or [out, in / groups, kernel…].
        channels: the factor that belongs to each input channel (of a consumer) or output channel (of a producer); -1
            for channels that have none.
        grid: of the weight; `None` if it stays float.
        moments: of the layer's input: `second_moment` and `absmax` per input channel.
        activation_grid: of the layer's input; `None` if it stays float.
        groups: of a convolution.
    """

    weight: Array
    channels: Sequence[int]
    grid: QuantizationGrid | None = None
    moments: InputMoments | None = None
    activation_grid: QuantizationGrid | None = None
    groups: int = 1


@dataclass(frozen=True)
class ScalingProblem:
    """Channels that may be multiplied by positive factors if the weights that read them are divided by them.

    Args:
        name: of the activation or the family of channels, for errors.
        size: number of factors.
        consumers: layers that read the channels.
        producers: layers whose outputs are the channels; only those with a matrix matter here.
    """

    name: str
    size: int
    consumers: Sequence[ScaledLayer]
    producers: Sequence[ScaledLayer] = ()


@dataclass(frozen=True)
class Scaling:
    """Factors, and what they are expected to be worth.

    Args:
        factors: [size], float64: activations (and the rows of producers) are multiplied by them, the columns of
            consumers divided. `None` if scaling does not pay.
        error: expected squared output error of the consumers with these factors, relative to their output.
        error_unscaled: the same without factors.
        facts: the choice, as plain data for the record.
    """

    factors: np.ndarray | None
    error: float
    error_unscaled: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class ScalingAlgorithm(Algorithm, Protocol):
    """Chooses factors for channels; stage `scaling`. The graph says which channels, a backend applies the factors."""

    def scale(self, problem: ScalingProblem, **settings: Any) -> Scaling:
        """The factors, if the quantized layers are expected to gain from them."""
        ...


@dataclass(frozen=True)
class RotationProblem:
    """A residual stream and value heads that may be rotated.

    Args:
        width: channels of the stream.
        centered: norms subtract the mean, so the rotation must preserve it.
        heads: sizes of value heads.
        grids: what the rotated activations are quantized to.
    """

    width: int
    centered: bool = False
    heads: Sequence[int] = ()
    grids: Sequence[QuantizationGrid] = ()


@dataclass(frozen=True)
class Rotation:
    """Orthogonal matrices, float64: x becomes x Q.

    Args:
        stream: [width, width]; `None` to leave the stream as it is.
        heads: by the size of a head.
        facts: plain data for the record.
    """

    stream: np.ndarray | None
    heads: Mapping[int, np.ndarray] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class RotationAlgorithm(Algorithm, Protocol):
    """Chooses rotations; stage `rotation`. The graph says where, a backend multiplies the weights."""

    def rotate(self, problem: RotationProblem, **settings: Any) -> Rotation:
        """The rotations of a model."""
        ...


@dataclass(frozen=True)
class BiasProblem:
    """A layer whose output mean may have moved.

    Args:
        name: of the layer, for errors.
        shift: [out], mean output of the float layer less that of the quantized one, on calibration samples.
        held_out_shift: the same on held-out samples; `None` if there are too few to judge by.
        output_square: [out], mean squared output, which errors are related to in the facts.
    """

    name: str
    shift: Array
    held_out_shift: Array | None = None
    output_square: Array | None = None


@dataclass(frozen=True)
class BiasShift:
    """What is added to a bias.

    Args:
        shift: [out], zero for channels that are not corrected; `None` if none is.
        facts: plain data for the record.
    """

    shift: Array | None
    facts: Mapping[str, Any] = field(default_factory=dict)


class BiasAlgorithm(Algorithm, Protocol):
    """Chooses what is added to the bias of a quantized layer; stage `bias`."""

    def correct(self, problem: BiasProblem, **settings: Any) -> BiasShift:
        """The correction of one layer."""
        ...


@dataclass(frozen=True)
class BlockProblem:
    """Quantized weights of one block that are tuned together, in torch.

    Args:
        name: of the block, for errors.
        weights: float weights by name.
        start: the same quantized, from any weight algorithm.
        run: output of the block with these weights (by name, float32) for some samples; differentiable in them.
        target: output of the float block for some samples.
        samples: indices to calibrate on, at least one.
        held_out: indices to judge by; the calibration samples if there are none.
    """

    name: str
    weights: Mapping[str, Array]
    start: Mapping[str, QTensor]
    run: Callable[[Mapping[str, Array], Sequence[int]], Array]
    target: Callable[[Sequence[int]], Array]
    samples: Sequence[int]
    held_out: Sequence[int] = ()


class BlockAlgorithm(Algorithm, Protocol):
    """Tunes the integers and scales of a block; stage `block`."""

    def tune(self, problem: BlockProblem, **settings: Any) -> tuple[Mapping[str, QTensor], Mapping[str, Any]]:
        """The quantized weights by name, and facts for the record."""
        ...
