# SPDX-License-Identifier: Apache-2.0
"""Quantization of PyTorch modules: observe the calibration samples once, quantize each weight, correct biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from fewbit import registry
from fewbit.algorithms._base import InputMoments, WeightAlgorithm
from fewbit.backends._base import ModuleLayer
from fewbit.config.spec import QuantizationSpec
from fewbit.errors import DataError, UsageError
from fewbit.graph.edits import DynamicQuantize, Edit, EncodeWeight, InsertQDQ
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.scales import ScaleType
from fewbit.observers._base import Observer, RangeObserver, make_observer
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._rows import activation_rows
from fewbit.progress import Run
from fewbit.quantization.bias_correction import Batches, correct_biases
from fewbit.quantization.module_plan import ModuleLayerPlan, ModulePlan
from fewbit.quantization.module_weights import is_matrix_problem, quantize_weight, round_to_nearest, share_lost

DEFAULT_OBSERVER = "min_max"
MASKED = 1e30
"""Larger magnitudes are masks of attention and no part of a range."""
MOST_LOST = 0.5
"""Share of a weight's energy; a weight that loses more stays in float."""


@dataclass(frozen=True)
class ModuleSettings:
    """Settings of a run.

    Args:
        algorithm: for weights whose spec names neither an algorithm nor an observer; `None` for a scale search.
        automatic: whether the run chose the algorithm: where it does not suit a layer, another one takes its place
            without a word.
        parameters: of algorithms, by name.
        observer: for activations whose spec names none.
        bias_correction: whether biases compensate the shift of each layer's mean output.
    """

    algorithm: str | None = None
    automatic: bool = False
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
    algorithms = {
        entry.layer.name: choose_algorithm(entry, settings, has_data=batches is not None)
        for entry in plan.layers
        if entry.spec("weight")
    }
    statistics = _Statistics(plan, algorithms, settings)
    if batches is not None and statistics.observers:
        _calibrate(original, batches, statistics, run)
    result = original.fork()
    rows = {entry.layer.name: entry.row() for entry in plan.layers}
    with run.phase("quantize", sum(entry.quantized for entry in plan.layers), "layer") as bar:
        result.apply(_edits(original, plan, algorithms, statistics, settings, rows, run, bar))
    if batches is not None and settings.bias_correction:
        correct_biases(original, result, plan, batches, rows, run)
    return result, list(rows.values())


def choose_algorithm(
    entry: ModuleLayerPlan, settings: ModuleSettings, *, has_data: bool
) -> tuple[WeightAlgorithm, str]:
    """The algorithm for the weight of a layer, and what to say if it is another than the one asked for."""
    spec = entry.spec("weight")
    assert spec is not None
    name = spec.algorithm or ("rtn" if spec.observer_cls is not None else settings.algorithm or "scale_search")
    algorithm: Any = None if "+" in name else registry.get("algorithms", name, param="algorithm")
    if not hasattr(algorithm, "quantize") or not hasattr(algorithm, "statistics"):
        raise UsageError(
            f"{name} does not choose the integers of a weight", code="algorithm-kind", param="algorithm",
            where=entry.layer.name, expected="one algorithm for weights: rtn, scale_search, gptq",
            hint="{algorithm=gptq}",
        )  # fmt: skip
    if algorithm.statistics and not has_data:
        raise UsageError(
            f"{name} needs calibration data", code="data-required", param="data", where=entry.layer.name,
            expected="samples: a DataLoader, a list, a folder", hint="give {data}, or {algorithm=scale_search}",
        )  # fmt: skip
    fallback: WeightAlgorithm = registry.get("algorithms", "scale_search")
    if "hessian" in algorithm.statistics and not _has_hessian(entry.layer):
        return fallback, "" if settings.automatic else f"scale_search instead of {name}, which needs the layer's input"
    if not is_matrix_problem(entry.layer, spec) and algorithm.name != "rtn":
        return registry.get("algorithms", "rtn"), f"rtn instead of {name}: scales along another axis than the outputs"
    return algorithm, ""


def _has_hessian(layer: ModuleLayer) -> bool:
    return layer.observable and layer.op in ("matmul", "conv") and layer.groups == 1


# Calibration.


class _Statistics:
    """The observers of all activations, by the name of a value."""

    def __init__(
        self, plan: ModulePlan, algorithms: Mapping[str, tuple[WeightAlgorithm, str]], settings: ModuleSettings
    ):
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
                self._add(f"{layer.name}.{side}", observer, partial(activation_rows, grid=grid, features=axis))
            if layer.name in algorithms and layer.observable and layer.op != "gather":
                self._add_moments(layer, algorithms[layer.name][0])

    def _add_moments(self, layer: ModuleLayer, algorithm: WeightAlgorithm) -> None:
        value, own = f"{layer.name}.input", self.moments.setdefault(layer.name, {})
        if algorithm.statistics & {"hessian"}:
            own["hessian"] = make_observer("hessian")
            self._add(value, own["hessian"], partial(_columns, layer=layer))
        elif algorithm.name != "rtn":
            own["moments"] = make_observer("moments")
            self._add(value, own["moments"], partial(_features, axis=layer.features))
        if "absmax" in algorithm.statistics:
            own["absmax"] = make_observer("min_max")
            self._add(value, own["absmax"], partial(_features, axis=layer.features))

    def _add(self, value: str, observer: Observer, rows: Callable[[Array], Array]) -> None:
        self.observers.setdefault(value, []).append((observer, rows))
        self.guards.setdefault(value, FiniteGuard())

    def hooks(self) -> dict[str, Callable[[Any], None]]:
        """One function per value."""
        return {value: partial(self._observe, value) for value in self.observers}

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


def _features(x: Any, axis: int) -> Any:
    """One row per feature."""
    return x.movedim(axis, 0).flatten(1)


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
            hessian = None if moments is None else moments.hessian
            if settings.automatic and hessian is not None and moments and 8 * moments.count < len(hessian):
                algorithm = registry.get("algorithms", "scale_search")  # too few to tell how columns go together
            parameters = settings.parameters.get(algorithm.name, {})
            tensor = quantize_weight(weight, layer, spec, algorithm, moments, parameters)
            lost = share_lost(weight, tensor)
            done[layer.weight] = lost <= MOST_LOST
            row |= {"algorithm": algorithm.name, "weight_error": lost}
            row["reason"] = "; ".join(filter(None, [row["reason"], note]))
            if lost <= MOST_LOST:
                yield EncodeWeight(layer.weight, tensor)
        if not done.get(layer.weight, True):
            _stay_float(row, f"{row.get('weight', 'its weight')} would lose more than half of it", run)
            continue
        if (bias := entry.spec("bias")) is not None and layer.bias is not None:
            yield EncodeWeight(layer.bias, round_to_nearest(original.weight(layer.bias).float(), bias.grid()))
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
