# SPDX-License-Identifier: Apache-2.0
"""Bias correction of PyTorch modules: what a layer's mean output lost is added to its bias."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from fewbit.backends._base import ModuleLayer
from fewbit.errors import plural
from fewbit.graph.edits import AddBias
from fewbit.progress import Run
from fewbit.quantization.module_plan import ModulePlan

Batches = Callable[[], Iterable[Any]]
"""Reads the calibration batches once more; each has `inputs` and `locations`."""

LEAST_TO_JUDGE = 10
"""Calibration samples; with fewer a correction cannot be judged and is not applied."""
JUDGED_EVERY = 5
"""Every fifth calibration batch judges a correction and takes no part in computing it."""
MOST_TO_CORRECT = 100
"""Batches that a correction is computed from and judged by: means need fewer samples than extremes."""


def correct_biases(
    original: Any, result: Any, plan: ModulePlan, batches: Batches, rows: dict[str, dict[str, Any]], run: Run
) -> None:
    """Add to each bias what its layer's mean output lost on the inputs it has in the float model.

    Layers without a bias get one, convolutions in front of a batch norm among them. The correction stays only if the
    output error of the model falls on samples it was not computed from.
    """
    layers = [
        entry.layer for entry in plan.layers
        if rows[entry.layer.name]["quantized"] and entry.layer.observable and entry.layer.op != "gather"
        and entry.spec("bias") is None
    ]  # fmt: skip

    def some() -> Iterable[Any]:
        return islice(batches(), MOST_TO_CORRECT)

    with run.phase("correct bias", None, "sample") as bar:
        count = sum(len(batch) for batch in some())
        if count < LEAST_TO_JUDGE or not layers:
            bar.detail = f"not applied: {plural(count, 'sample')} cannot judge it"
            return
        shifts = _mean_shifts(original, result, layers, some, bar)
        corrected = result.fork()
        corrected.apply(AddBias(name, shift) for name, shift in shifts.items())
        before, after = _output_errors(original, [result, corrected], some)
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
