# SPDX-License-Identifier: Apache-2.0
"""Weights and activations of few bits, on top of the zeros that are there; every one of them stays a zero.

Symmetric types, and those with a zero point of their own, have a code for zero; `gptq`, by which narrow weights are
settled, holds the zeros of a weight that was pruned. Where a zero is lost all the same, the record says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fewbit.data.keys import is_count
from fewbit.engine.delivery import Delivery
from fewbit.engine.fitting import without_input
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan, describe
from fewbit.engine.planning import make_plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.run import require_data, view_of
from fewbit.engine.static import refuse_schemes
from fewbit.engine.usual import usual
from fewbit.errors import UsageError, nearest
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.presets import PRESETS, preset
from fewbit.sparsity.calibration import batch_of
from fewbit.sparsity.job import Job


@dataclass(frozen=True)
class Settings:
    """How the model is quantized.

    Args:
        preset: a preset's name: `w8a8`, `w8a8_dynamic`, `w4a16` ….
        samples: how many calibration samples are read; those of the call if not said.
        ignore: layers that stay in float, by name, glob or `re:`.

    >>> Settings().preset
    'w8a8'
    """

    preset: str = "w8a8"
    samples: int | None = None
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(
                f"there is no preset {self.preset!r}", where="preset", expected=nearest(str(self.preset), PRESETS)
            )
        if self.samples is not None and not is_count(self.samples):
            raise UsageError(f"samples={self.samples!r}", where="samples", expected="a whole number from 1 up")


def refuse(settings: Settings, model: Any, job: Job) -> None:
    """Static activations and no data; a layer to be ignored that is not there; codes that ONNX has no types for.

    Raises:
        UsageError: one of these.
    """
    view = view_of(model)
    plan = make_plan(view, _configured(settings, view, job))
    if job.calibration is None:
        require_data(plan, None)
    if "place" in view.can:
        _refuse_graph(plan, view)


def _refuse_graph(plan: Plan, view: ModelView) -> None:
    """Ask what is otherwise found out when the codes are written: whether a graph can hold them."""
    from fewbit.backends.graph.weight_codes import storage_type

    if plan.static:
        refuse_schemes(plan)
        return
    plan = without_input(plan, view)
    dynamic = {each.point.layer for each in plan.activations if each.dynamic}
    for each in plan.weights:
        layer, grid = each.point.layer, each.grid
        if layer not in dynamic:
            storage_type(grid.dtype, layer)
            continue
        integer = grid.dtype.is_integer and grid.dtype.bits <= 8 and not grid.free_zero
        if not integer or each.block not in (each.point.shape, (1, *each.point.shape[1:])):
            raise UsageError(
                f"{describe(grid)} for a layer whose input is rounded in each call",
                where=layer,
                expected="int8 or uint8 codes by tensor or channel, as in w8a8_dynamic",
                try_="another preset",
            )


def run(model: Any, settings: Settings, job: Job) -> Any:
    """The model with codes in the place of weights; a line of the record for each layer."""
    view = view_of(model)
    zeros = _zeros(view)
    quantizer = ModelQuantizer(_configured(settings, view, job))
    correct = None if job.calibration is None else "fast_bias_correction"
    options = Options.read({"batch_size": batch_of(view.signature(), job)}, correct=correct, prepare=None)
    result = quantizer.quantize_view(
        view,
        job.calibration,
        model=model,
        samples=settings.samples or job.samples,
        progress=job.progress,
        options=options,
    )
    _count_lost(zeros, result, quantizer)
    made = Delivery(result, None, options)(quantizer, result)
    job.record.lines += quantizer.record.lines
    job.record.facts["quantize"] = {"preset": settings.preset, **quantizer.record.facts}
    return made


def _configured(settings: Settings, view: ModelView, job: Job) -> Config:
    """What the preset means for this model."""
    config = usual(preset(settings.preset), view, named=True, data=job.calibration is not None)
    return config.excluding(settings.ignore) if settings.ignore else config


def _zeros(view: ModelView) -> dict[str, Any]:
    """Where each weight is exactly zero."""
    found = {point.name: view.read(point) == 0 for point in view.points(lambda point: point.role is Role.weight)}
    return {name: zero for name, zero in found.items() if bool(zero.any())}


def _count_lost(zeros: dict[str, Any], result: ModelView, quantizer: ModelQuantizer) -> None:
    """Say of each weight whose zeros did not all stay how many were lost; graphs keep codes apart from what is read."""
    if "place" in result.can:
        return
    for point in result.points(lambda point: point.role is Role.weight and point.name in zeros):
        lost = int((zeros[point.name] & (result.read(point) != 0)).sum())
        if lost:
            quantizer.record.note("zeros-lost", f"{lost:,} weights that were zero are not any more", where=point.name)
