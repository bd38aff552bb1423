# SPDX-License-Identifier: Apache-2.0
"""Quantization of PyTorch modules: observe the calibration samples once, quantize each weight, correct biases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fewbit import registry
from fewbit.algorithms._base import InputMoments, LayerProblem, WeightAlgorithm
from fewbit.backends._base import ModuleLayer
from fewbit.config.spec import QuantizationSpec
from fewbit.errors import DataError, UsageError, plural
from fewbit.graph.edits import AddBias, DynamicQuantize, Edit, EncodeWeight, InsertQDQ
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.scales import ScaleType
from fewbit.observers._base import Observer, RangeObserver, make_observer
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._rows import activation_rows, observe_weight
from fewbit.progress import Run
from fewbit.quantization.module_plan import ModuleLayerPlan, ModulePlan

Batches = Callable[[], Iterable[Any]]
"""Reads the calibration batches once more; each has `inputs` and `locations`."""

DEFAULT_OBSERVER = "min_max"
MASKED = 1e30
"""Larger magnitudes are masks of attention and no part of a range."""
MOST_LOST = 0.5
"""Share of a weight's energy; a weight that loses more stays in float."""
LEAST_TO_JUDGE = 10
"""Calibration samples; with fewer a correction cannot be judged and is not applied."""
JUDGED_EVERY = 5
"""Every fifth calibration batch judges a correction and takes no part in computing it."""


@dataclass(frozen=True)
class ModuleSettings:
    """Settings of a run.

    Args:
        algorithm: for weights whose spec names neither an algorithm nor an observer; `None` for a scale search.
        parameters: of algorithms, by name.
        observer: for activations whose spec names none.
        bias_correction: whether biases compensate the shift of each layer's mean output.
    """

    algorithm: str | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observer: str = DEFAULT_OBSERVER
    bias_correction: bool = False


def quantize_module(
    original: Any, plan: ModulePlan, batches: Batches | None, run: Run, settings: ModuleSettings
) -> tuple[Any, list[dict[str, Any]]]:
    """Quantize a fork of a module.

    Args:
        original: the model; it is run, and not changed.
        plan: what becomes of each layer.
        batches: calibration data, or `None`.
        run: progress and warnings.
        settings: of this run.

    Returns:
        The quantized model, and one row per layer for the record.

    Raises:
        DataError: an activation is not a number on some sample, or the model cannot run one.
    """
    algorithms = {entry.layer.name: choose_algorithm(entry, settings) for entry in plan.layers if entry.spec("weight")}
    statistics = _Statistics(plan, algorithms, settings)
    if batches is not None and statistics.observers:
        _calibrate(original, batches, statistics, run)
    result = original.fork()
    rows = {entry.layer.name: entry.row() for entry in plan.layers}
    with run.phase("quantize", sum(entry.quantized for entry in plan.layers), "layer") as bar:
        result.apply(_edits(original, plan, algorithms, statistics, settings, rows, run, bar))
    if batches is not None and settings.bias_correction:
        _correct_biases(original, result, plan, batches, rows, run)
    return result, list(rows.values())


def choose_algorithm(entry: ModuleLayerPlan, settings: ModuleSettings) -> tuple[WeightAlgorithm, str]:
    """The algorithm for the weight of a layer, and what to say if it is another than the one asked for."""
    spec = entry.spec("weight")
    assert spec is not None
    name = spec.algorithm or ("rtn" if spec.observer_cls is not None else settings.algorithm or "scale_search")
    algorithm: WeightAlgorithm = registry.get("algorithms", name, param="algorithm") if "+" not in name else None
    if not hasattr(algorithm, "quantize") or not hasattr(algorithm, "statistics"):
        raise UsageError(
            f"{name} does not choose the integers of a weight", code="algorithm-kind", param="algorithm",
            where=entry.layer.name, expected="one algorithm for weights: rtn, scale_search, gptq",
            hint="{algorithm=gptq}",
        )  # fmt: skip
    fallback: WeightAlgorithm = registry.get("algorithms", "scale_search")
    if "hessian" in algorithm.statistics and not _has_hessian(entry.layer):
        return fallback, f"scale_search instead of {name}, which needs the input of the layer"
    if not _is_matrix_problem(entry.layer, spec) and algorithm.name != "rtn":
        return registry.get("algorithms", "rtn"), f"rtn instead of {name}: scales along another axis than the outputs"
    return algorithm, ""


def _has_hessian(layer: ModuleLayer) -> bool:
    return layer.observable and layer.op in ("matmul", "conv") and layer.groups == 1


def _is_matrix_problem(layer: ModuleLayer, spec: QuantizationSpec) -> bool:
    return not spec.ch_axis or (layer.op in ("matmul", "gather") and layer.channel_axis == 0)


# Calibration.


class _Statistics:
    """The observers of all activations, by the name of a value."""

    def __init__(self, plan: ModulePlan, algorithms: Mapping[str, tuple[WeightAlgorithm, str]], settings: ModuleSettings):
        self.observers: dict[str, list[tuple[Observer, Callable[[Array], Array]]]] = {}
        self.guards: dict[str, FiniteGuard] = {}
        self.ranges: dict[str, tuple[RangeObserver, QuantizationGrid]] = {}
        self.moments: dict[str, dict[str, Observer]] = {}
        self.batch, self.mask = 0, None
        for entry in plan.layers:
            layer = entry.layer
            for side, spec in entry.static.items():
                observer = make_observer(spec.observer_cls or settings.observer, spec.observer_parameters)
                assert isinstance(observer, RangeObserver), observer.name
                grid, axis = spec.grid(), layer.features
                self.ranges[f"{layer.name}.{side}"] = observer, grid
                self._add(f"{layer.name}.{side}", observer, lambda x, grid=grid, axis=axis: activation_rows(x, grid, features=axis))
            if layer.name in algorithms and layer.observable and layer.op != "gather":
                self._add_moments(layer, algorithms[layer.name][0])

    def _add_moments(self, layer: ModuleLayer, algorithm: WeightAlgorithm) -> None:
        value, own = f"{layer.name}.input", self.moments.setdefault(layer.name, {})
        if algorithm.statistics & {"hessian"}:
            own["hessian"] = make_observer("hessian")
            self._add(value, own["hessian"], lambda x, layer=layer: _columns(x, layer))
        elif algorithm.name != "rtn":
            own["moments"] = make_observer("moments")
            self._add(value, own["moments"], lambda x, axis=layer.features: x.movedim(axis, 0).flatten(1))
        if "absmax" in algorithm.statistics:
            own["absmax"] = make_observer("min_max")
            self._add(value, own["absmax"], lambda x, axis=layer.features: x.movedim(axis, 0).flatten(1))

    def _add(self, value: str, observer: Observer, rows: Callable[[Array], Array]) -> None:
        self.observers.setdefault(value, []).append((observer, rows))
        self.guards.setdefault(value, FiniteGuard())

    def hooks(self) -> dict[str, Callable[[Any], None]]:
        """One function per value."""
        return {value: lambda x, value=value: self._observe(value, x) for value in self.observers}

    def _observe(self, value: str, x: Any) -> None:
        if not hasattr(x, "shape") or not x.is_floating_point() or not x.numel():
            return
        mask = self.mask
        if mask is not None and x.ndim == 3 and tuple(x.shape[:2]) == tuple(mask.shape):
            x = x[mask.to(x.device)]  # padding is no data
        x = self.guards[value].filter(x.detach().float(), self.batch)
        if x.numel() and float(x.abs().max()) > MASKED:
            x = x.where(x.abs() <= MASKED, 0.0)
        for observer, rows in self.observers[value]:
            observer.update(rows(x))

    def input_moments(self, layer: ModuleLayer) -> InputMoments | None:
        """What is known of the columns of a weight [out, in * kernel]."""
        own = {name: observer for name, observer in self.moments.get(layer.name, {}).items() if not observer.empty}
        if not own:
            return None
        count = int(next(iter(own.values())).observed["count"]) if "absmax" not in own else 0
        repeated = prod(layer.shape[2:])
        square = hessian = absmax = None
        if (observer := own.get("hessian")) is not None:
            hessian, square = observer.mean_product.float(), observer.mean_square  # type: ignore[attr-defined]
        elif (observer := own.get("moments")) is not None:
            square = observer.mean_square.repeat_interleave(repeated)  # type: ignore[attr-defined]
            square = None if layer.groups > 1 or layer.op == "conv_transpose" else square
        if (observer := own.get("absmax")) is not None:
            low, high = observer.observed["low"], observer.observed["high"]
            absmax = high.maximum(-low).repeat_interleave(repeated)
        return InputMoments(count, second_moment=square, absmax=absmax, hessian=hessian)


def _columns(x: Any, layer: ModuleLayer) -> Any:
    """What one output of a layer multiplies its weights with, [in * kernel, positions]."""
    if layer.op == "matmul":
        return x.flatten(0, -2).T
    from torch.nn import functional

    stride, padding, dilation, mode = layer.geometry
    if x.ndim < len(layer.shape):
        x = x.unsqueeze(0)
    pads = [side for before, after in reversed(padding) for side in (before, after)]
    x = functional.pad(x, pads, mode="constant" if mode == "zeros" else mode)
    for axis, size in enumerate(layer.shape[2:]):
        span = dilation[axis] * (size - 1) + 1
        x = x.unfold(2 + axis, span, stride[axis])[..., :: dilation[axis]]
    kernel = range(x.ndim - len(layer.shape) + 2, x.ndim)
    others = [axis for axis in range(x.ndim) if axis not in (1, *kernel)]
    return x.permute(1, *kernel, *others).reshape(prod(layer.shape[1:]), -1)


def _calibrate(original: Any, batches: Batches, statistics: _Statistics, run: Run) -> None:
    samples: list[str] = []
    with run.phase("calibrate", None, "sample") as bar, original.session(observe=statistics.hooks()) as session:
        for batch in batches():
            where = str(batch.locations[0]) if batch.locations else ""
            samples.append(where)
            statistics.batch, statistics.mask = len(samples) - 1, _padding_mask(batch.inputs)
            session.call(batch.inputs, where)
            bar.advance(len(batch))
    for value, guard in statistics.guards.items():
        bad = guard.result()
        if bad is not None and bad.nan:
            name, _, side = value.rpartition(".")
            raise DataError(
                f"the {side} of {name} has {bad}", code="activations-not-finite", where=samples[bad.sample],
                expected="finite activations on the calibration data",
                hint="find what brings NaN into this sample, or compute in float32",
            )  # fmt: skip


def _padding_mask(inputs: Mapping[str, Any]) -> Any:
    """True for tokens, [samples, tokens], if some are padding."""
    import torch

    for name, value in inputs.items():
        if not hasattr(value, "shape") or len(value.shape) != 2:
            continue
        if name.endswith(("attention_mask", "padding_mask")) and not name.endswith("key_padding_mask"):
            mask = torch.as_tensor(value).bool()
            return None if bool(mask.all()) else mask
    return None


# Weights.


def _edits(
    original: Any,
    plan: ModulePlan,
    algorithms: Mapping[str, tuple[WeightAlgorithm, str]],
    statistics: _Statistics,
    settings: ModuleSettings,
    rows: dict[str, dict[str, Any]],
    run: Run,
    bar: Any,
) -> Iterator[Edit]:
    done: dict[str, bool] = {}
    for entry in plan.layers:
        if not entry.quantized:
            continue
        bar.advance()
        layer, row = entry.layer, rows[entry.layer.name]
        unseen = [side for side in entry.static if statistics.ranges[f"{layer.name}.{side}"][0].empty]
        if unseen:
            _stay_float(row, f"no calibration sample reaches its {unseen[0]}", run)
            continue
        if (spec := entry.spec("weight")) is not None and layer.weight not in done:
            algorithm, note = algorithms[layer.name]
            weight = original.weight(layer.weight).float()
            moments = statistics.input_moments(layer)
            parameters = settings.parameters.get(algorithm.name, {})
            tensor = quantize_weight(weight, layer, spec, algorithm, moments, parameters)
            lost = _share_lost(weight, tensor)
            done[layer.weight] = lost <= MOST_LOST
            row |= {"algorithm": algorithm.name, "weight_error": lost}
            row["reason"] = "; ".join(filter(None, [row["reason"], note]))
            if lost <= MOST_LOST:
                yield EncodeWeight(layer.weight, tensor)
        if not done.get(layer.weight, True):
            _stay_float(row, f"{row.get('weight', 'its weight')} would lose more than half of it", run)
            continue
        if (bias := entry.spec("bias")) is not None and layer.bias is not None:
            yield EncodeWeight(layer.bias, _rounded(original.weight(layer.bias).float(), bias.grid()))
        for side in ("input", "output"):
            if (activation := entry.spec(f"{side}_tensors")) is not None:
                yield _activation_edit(f"{layer.name}.{side}", activation, layer, statistics)


def _stay_float(row: dict[str, Any], reason: str, run: Run) -> None:
    for name in ("weight", "input", "output", "bias", "group_size"):
        row.pop(name, None)
    row |= {"quantized": False, "reason": reason}
    run.warn(f"{row['name']} stays in float: {reason}", code="layer-float", hint="{ignore=" + row["name"] + "} says so")


def _activation_edit(value: str, spec: QuantizationSpec, layer: ModuleLayer, statistics: _Statistics) -> Edit:
    grid = spec.grid()
    if spec.is_dynamic:
        return DynamicQuantize(value, grid)
    low, high = statistics.ranges[value][0].range(grid)
    qparams = qparams_from_min_max(low, high, grid, (1,))
    if qparams.global_scale is not None:  # one factor for all of them: the product is what counts
        grid = grid.replace(scale_type=ScaleType.float32)
    return InsertQDQ(value, grid, qparams.step, qparams.zero_point, layer.features if low.numel() > 1 else None)


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
    if not _is_matrix_problem(layer, spec):
        return _rounded(weight, grid.replace(axis=layer.channel_axis if not grid.axis else 1 - layer.channel_axis))
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


def _rounded(tensor: Any, grid: QuantizationGrid) -> QTensor:
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


def _share_lost(weight: Any, tensor: QTensor) -> float:
    """||W - Q||² / ||W||²."""
    energy = float(weight.square().sum())
    lost = float((tensor.dequantize() - weight).square().sum())
    return lost / energy if energy else 0.0


# Bias correction.


def _correct_biases(
    original: Any, result: Any, plan: ModulePlan, batches: Batches, rows: dict[str, dict[str, Any]], run: Run
) -> None:
    """Add to each bias what its layer's mean output lost on the inputs it has in the float model.

    Layers without a bias get one, convolutions in front of a batch norm among them. The correction stays only if the
    outputs of the model come nearer on samples it was not computed from.
    """
    layers = [
        entry.layer for entry in plan.layers
        if rows[entry.layer.name]["quantized"] and entry.layer.observable and entry.layer.op != "gather"
        and entry.spec("bias") is None
    ]  # fmt: skip
    with run.phase("correct bias", None, "sample") as bar:
        count = sum(len(batch) for batch in batches())
        if count < LEAST_TO_JUDGE or not layers:
            bar.detail = f"not applied: {plural(count, 'sample')} cannot judge it"
            return
        shifts = _mean_shifts(original, result, layers, batches, bar)
        corrected = result.fork()
        corrected.apply(AddBias(name, shift) for name, shift in shifts.items())
        before, after = _output_errors(original, [result, corrected], batches)
        better = after < before
        bar.detail = f"output error {before:.2e} -> {after:.2e}" + ("" if better else ", not applied")
        if better:
            result.apply(AddBias(name, shift) for name, shift in shifts.items())
            for name in shifts:
                rows[name]["bias_correction"] = True


def _mean_shifts(original: Any, result: Any, layers: list[ModuleLayer], batches: Batches, bar: Any) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}

    def hook(layer: ModuleLayer) -> Callable[[Any, Any], None]:
        axis = layer.features

        def observe(x: Any, out: Any) -> None:
            if not x.numel():
                return
            difference = (out.float() - result.run_layer(layer.name, x).float()).movedim(axis, 0).flatten(1)
            if bool(difference.isfinite().all()):
                sums[layer.name] = sums.get(layer.name, 0) + difference.double().sum(1)
                counts[layer.name] = counts.get(layer.name, 0) + difference.shape[1]

        return observe

    with original.session(observe={f"{layer.name}.call": hook(layer) for layer in layers}) as session:
        for number, batch in enumerate(batches()):
            if number % JUDGED_EVERY:
                session.call(batch.inputs)
            bar.advance(len(batch))
    return {name: (total / counts[name]).float() for name, total in sums.items()}


def _output_errors(original: Any, candidates: list[Any], batches: Batches) -> list[float]:
    """Squared error of the outputs of each candidate, on the batches that judge."""
    import numpy as np

    errors = [0.0 for _ in candidates]
    sessions = [model.session() for model in (original, *candidates)]
    try:
        for number, batch in enumerate(batches()):
            if number % JUDGED_EVERY == 0:
                expected, *others = (session.run(batch.inputs).outputs for session in sessions)
                for index, outputs in enumerate(others):
                    for name, value in expected.items():
                        if np.issubdtype(value.dtype, np.floating):
                            difference = np.nan_to_num(outputs[name].astype(np.float64) - value, nan=np.inf)
                            errors[index] += float(np.square(difference).sum())
    finally:
        for session in sessions:
            session.close()
    return errors
