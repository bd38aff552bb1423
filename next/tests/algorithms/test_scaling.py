# SPDX-License-Identifier: Apache-2.0
"""AWQ, SmoothQuant, equalization and bias correction on layers that are really rounded and run."""

import numpy as np
import pytest
import torch

from fewbit.algorithms import awq, bias_correction, equalization, smooth_quant
from fewbit.algorithms._base import BiasProblem, InputMoments, ScaledLayer, ScalingProblem
from fewbit.algorithms._scale_search import search_scales
from fewbit.algorithms._scaling import ScalingError
from fewbit.errors import DataError, UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max

INT4 = QuantizationGrid(Dtype.int4, QSchemeType.per_group, group_size=32)
INT8, TENSOR8 = QuantizationGrid(Dtype.int8, QSchemeType.per_channel), QuantizationGrid(Dtype.int8)
ALL = (awq.ALGORITHM, smooth_quant.ALGORITHM, equalization.ALGORITHM)
LIBRARIES = {"numpy": lambda x: x, "torch": torch.from_numpy}


def rounded(x: np.ndarray, grid: QuantizationGrid | None, importance=None) -> np.ndarray:
    if grid is None:
        return x
    if importance is not None:
        return fake_quantize(x, search_scales(x, grid, importance))
    block = grid.weight_block(x.shape)
    low, high = BlockShape(x.shape, block).extremes(x)
    return fake_quantize(x, qparams_from_min_max(low, high, grid, block))


def outliers(rows: int = 512, width: int = 64, seed: int = 0) -> np.ndarray:
    """Inputs with a few large channels, as in language models."""
    rng = np.random.default_rng(seed)
    size = np.where(rng.random(width) < 0.06, 30.0, 1.0) * rng.uniform(0.5, 2, width)
    return (rng.normal(size=(rows, width)) * size).astype(np.float32)


def moments(x: np.ndarray, make=lambda x: x) -> InputMoments:
    square = np.square(x).mean(0)
    return InputMoments(len(x), second_moment=make(square), absmax=make(np.abs(x).max(0)), mean=make(x.mean(0)))


def consumer(seed: int, x: np.ndarray, grid=INT4, activation=None, make=lambda x: x, out: int = 48) -> ScaledLayer:
    weight = np.random.default_rng(seed).normal(size=(out, x.shape[1])).astype(np.float32)
    return ScaledLayer(make(weight), range(x.shape[1]), grid, moments(x, make), activation)


def output_error(layer: ScaledLayer, x: np.ndarray, factors: np.ndarray, search: bool = False) -> float:
    """Both sides really rounded, with and without scaling."""
    by = factors.astype(np.float32)
    weight = np.asarray(layer.weight)
    scaled, inputs = weight / by, x * by
    importance = np.square(inputs).mean(0) if search else None
    rounded_inputs = inputs if layer.activation_grid is None else rounded(inputs, layer.activation_grid)
    reference = x @ weight.T
    difference = rounded_inputs @ rounded(scaled, layer.grid, importance).T - reference
    return float(np.square(difference).sum() / np.square(reference).sum())


@pytest.mark.parametrize("library", LIBRARIES)
def test_awq_lowers_the_output_error_of_int4(library):
    x, other = np.split(outliers(1024), 2)
    layers = [consumer(seed, x, make=LIBRARIES[library]) for seed in (1, 2, 3)]
    scaling = awq.ALGORITHM.scale(ScalingProblem("x", 64, layers))
    assert scaling.error < 0.9 * scaling.error_unscaled
    for layer in layers:
        after = output_error(layer, other, scaling.factors, search=True)
        assert after < 0.95 * output_error(layer, other, np.ones(64), search=True)
    lattice = ScalingError(ScalingProblem("x", 64, layers), search=True)
    assert scaling.error <= 1.02 * min(lattice(smoothing) for _, smoothing in awq._candidates(lattice, 20))


@pytest.mark.parametrize("library", LIBRARIES)
def test_smooth_quant_lowers_the_output_error_of_w8a8(library):
    x = outliers()
    layers = [consumer(seed, x, INT8, TENSOR8, LIBRARIES[library]) for seed in (1, 2)]
    scaling = smooth_quant.ALGORITHM.scale(ScalingProblem("x", 64, layers))
    for layer in layers:
        assert output_error(layer, x, scaling.factors) < 0.25 * output_error(layer, x, np.ones(64))
    one = smooth_quant.ALGORITHM.scale(ScalingProblem("x", 64, layers), alpha=0.5)
    assert one.error >= scaling.error and one.facts == {"alpha": 0.5}


def test_smooth_quant_factors_by_the_formula():
    x = outliers()
    layers = [consumer(seed, x, INT8, TENSOR8) for seed in (1, 2)]
    scaling = smooth_quant.ALGORITHM.scale(ScalingProblem("x", 64, layers), alpha=0.7, margin=0)
    largest = np.maximum(*(np.abs(layer.weight).max(0) for layer in layers)).astype(np.float64)
    absmax = np.abs(x).max(0).astype(np.float64)
    s = absmax**0.7 / largest**0.3
    s *= (absmax / s).max() / absmax.max()  # the activation reaches as far as before
    np.testing.assert_allclose(1 / scaling.factors, s, rtol=1e-6)
    assert np.abs(x * scaling.factors).max() == pytest.approx(absmax.max(), rel=1e-5)


def test_expected_error_is_the_real_one():
    """On both sides, and for any factors; inputs are independent, as the model of the error takes them to be."""
    x = np.random.default_rng(0).uniform(-1, 1, (4000, 64)).astype(np.float32)
    layer = consumer(1, x, INT8, TENSOR8)
    error = ScalingError(ScalingProblem("x", 64, [layer]), search=False)
    for seed in range(3):
        factors = np.exp(np.random.default_rng(seed).normal(size=64) * 0.5)
        assert error(1 / factors) == pytest.approx(output_error(layer, x, factors), rel=0.1)


def test_equalization_of_two_layers_without_data():
    """Rows of very different size and columns that make up for it, as batch norm leaves them; per-tensor scales."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(size=32) * 2)
    first = (rng.normal(size=(32, 20)) * sizes[:, None]).astype(np.float32)
    second = (rng.normal(size=(16, 32)) / sizes).astype(np.float32)
    x = rng.normal(size=(500, 20)).astype(np.float32)
    problem = ScalingProblem(
        "relu", 32, [ScaledLayer(second, range(32), TENSOR8)], [ScaledLayer(first, range(32), TENSOR8)]
    )
    scaling = equalization.ALGORITHM.scale(problem)

    def error(factors: np.ndarray) -> float:
        by = factors.astype(np.float32)
        hidden = np.maximum(x @ rounded(first * by[:, None], TENSOR8).T, 0)
        reference = np.maximum(x @ first.T, 0) @ second.T
        return float(np.square(hidden @ rounded(second / by, TENSOR8).T - reference).sum() / np.square(reference).sum())

    assert error(scaling.factors) < 0.02 * error(np.ones(32))
    ratio = np.abs(first).max(1) * scaling.factors / (np.abs(second).max(0) / scaling.factors)
    classical = scaling.facts == {"by": "weight", "alpha": 0.5, "strength": 1.0}
    assert not classical or ratio.max() / ratio.min() == pytest.approx(
        1, rel=1e-4
    )  # the classical factors: equal ranges


def test_equalization_of_a_depthwise_convolution():
    """Each channel of the consumer has its own scale, so all of the difference goes there."""
    grid = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
    rng = np.random.default_rng(0)
    x = outliers(width=16)
    depthwise = ScaledLayer(
        rng.normal(size=(16, 1, 3, 3)).astype(np.float32), range(16), grid, moments(x), TENSOR8, groups=16
    )
    scaling = equalization.ALGORITHM.scale(ScalingProblem("x", 16, [depthwise]))
    assert scaling.error < 0.5 * scaling.error_unscaled
    channels = np.abs(x).max(0) * scaling.factors
    assert channels.max() / channels.min() < 1.5


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_nothing_to_gain_is_no_scaling(algorithm):
    """Equal channels, or weights that stay float."""
    x = np.random.default_rng(0).choice([-1.0, 1.0], (64, 32)).astype(np.float32)
    weight = np.random.default_rng(1).choice([-1.0, 1.0], (8, 32)).astype(np.float32)
    for grid in (INT8, None):
        layer = ScaledLayer(weight, range(32), grid, moments(x))
        scaling = algorithm.scale(ScalingProblem("x", 32, [layer]))
        assert scaling.factors is None and scaling.facts["reason"] and scaling.error == scaling.error_unscaled


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_channels_that_share_a_factor_and_channels_without_one(algorithm):
    """Grouped-query attention: several input channels per factor; a concatenation: channels of another producer."""
    x = outliers(width=64)
    x[:, 3] = 0
    rng = np.random.default_rng(2)
    index = np.concatenate([np.repeat(np.arange(16), 3), np.full(16, -1)])
    layer = ScaledLayer(rng.normal(size=(24, 64)).astype(np.float32), index, INT4, moments(x), TENSOR8)
    producer = ScaledLayer(rng.normal(size=(16, 8)).astype(np.float32), range(16), TENSOR8, moments(x[:, :8]))
    scaling = algorithm.scale(ScalingProblem("x", 16, [layer], [producer]), margin=0)
    if scaling.factors is not None:
        assert scaling.factors.shape == (16,) and (scaling.factors > 0).all() and np.isfinite(scaling.factors).all()
        assert scaling.error < scaling.error_unscaled


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_dead_and_extreme_channels(algorithm):
    x = outliers(width=64)
    x[:, :4] = 0
    x[:, 5] *= 1e8
    layer = consumer(1, x, INT4, TENSOR8)
    layer.weight[:, 7] = 0
    scaling = algorithm.scale(ScalingProblem("x", 64, [layer]), margin=0)
    if scaling.factors is not None:
        assert scaling.factors[7] == pytest.approx(1) and (scaling.factors[:4] == 1).all()
        assert scaling.factors.max() <= 1.01e4 and scaling.factors.min() >= 0.99e-4


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_wrong_problems_are_errors(algorithm):
    x = outliers()
    layer = consumer(1, x)
    with pytest.raises(UsageError, match="64 channels of 32 factors"):
        algorithm.scale(ScalingProblem("x", 32, [layer]))
    layer.weight[0, 0] = np.nan
    with pytest.raises(DataError, match="not finite"):
        algorithm.scale(ScalingProblem("x", 64, [layer]))
    with pytest.raises(UsageError, match="margin"):
        algorithm.scale(ScalingProblem("x", 64, [consumer(1, x)]), margin=1.0)


@pytest.mark.parametrize("options", [
    {"padding": 1}, {"padding": 2, "dilation": 2, "groups": 2}, {"stride": 2, "padding": 1},
])  # fmt: skip
def test_shift_of_a_convolution_is_exact(options):
    """From the mean of what each kernel element meets, for every padding, stride, dilation and group."""
    torch.manual_seed(0)
    groups = options.get("groups", 1)
    x = torch.randn(3, 4, 9, 8).relu() + 0.3
    weight = torch.randn(6, 4 // groups, 3, 3)
    grid = QuantizationGrid(Dtype.int3, QSchemeType.per_channel)
    quantized = torch.from_numpy(rounded(weight.flatten(1).numpy(), grid)).reshape(weight.shape)
    windows = torch.nn.functional.unfold(
        x, 3, padding=options["padding"], dilation=options.get("dilation", 1), stride=options.get("stride", 1)
    )  # [N, in · kernel, places]
    mean = windows.double().mean((0, 2)).reshape(4, 3, 3)
    shift = bias_correction.weight_shift(weight, quantized, mean, groups)
    outputs = [torch.nn.functional.conv2d(x.double(), w.double(), **options) for w in (weight, quantized)]
    np.testing.assert_allclose(shift, (outputs[0] - outputs[1]).mean((0, 2, 3)), atol=1e-6)
    assert float(shift.abs().max()) > 0.01


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_channels_that_gain_are_corrected(library):
    make = LIBRARIES[library]
    shift, held_out = np.array([1.0, 1.0, 0.0, -2.0]), np.array([0.6, 0.4, 0.1, -2.1])
    result = bias_correction.ALGORITHM.correct(BiasProblem("fc", make(shift), make(held_out), make(np.full(4, 10.0))))
    assert result.shift.tolist() == [1, 0, 0, -2]
    assert result.facts["corrected"] == 2 and result.facts["error"] < result.facts["error_before"]


def test_a_correction_that_cannot_be_judged_is_not_applied():
    alone = bias_correction.ALGORITHM.correct(BiasProblem("fc", np.ones(3)))
    assert alone.shift is None and "too few samples" in alone.facts["reason"]
    worse = bias_correction.ALGORITHM.correct(BiasProblem("fc", np.ones(3), np.zeros(3)))
    assert worse.shift is None and worse.facts["corrected"] == 0
    with pytest.raises(DataError, match="fc"):
        bias_correction.ALGORITHM.correct(BiasProblem("fc", np.array([np.nan]), np.ones(1)))
