# SPDX-License-Identifier: Apache-2.0
"""Mixed precision by ratio: the least sensitive layers take the narrow type, the rest eight bits."""

from __future__ import annotations

from fewbit import registry
from fewbit.algorithms._base import Problem
from fewbit.engine.plan import WeightPlan
from fewbit.engine.planning import make_plan
from fewbit.errors import UsageError
from fewbit.model.ops import EMBEDDING
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.modes import compression_config


def with_ratio(view: ModelView, config: Config, ratio: float) -> Config:
    """The configuration with the most sensitive layers moved to `int8_asym`, until `ratio` of the weights is left.

    Sensitivity is the squared error of plain rounding relative to the weight's own size: what the narrow type loses,
    measured without data.

    Args:
        view: the model.
        config: what every layer would become.
        ratio: from 0 to 1; the share of elements that keep the scheme.
    """
    if not 0 <= ratio <= 1:
        raise UsageError(f"ratio={ratio}", expected="a number from 0 to 1")
    wide = compression_config("int8_asym", all_layers=True, last_layer=None).global_quant_config
    narrow = [
        w
        for w in make_plan(view, config).weights
        if w.grid.dtype.bits < 8 and w.point.role is Role.weight and w.point.op is not EMBEDDING
    ]
    budget = ratio * sum(w.point.elements for w in narrow)
    moved = {}
    for w in sorted(narrow, key=lambda w: _sensitivity(view, w)):
        budget -= w.point.elements
        if budget < 0:
            moved[w.point.layer] = wide
    return config.with_layers(moved)


def _sensitivity(view: ModelView, planned: WeightPlan) -> float:
    weight = view.read(planned.point).float()
    rounded = registry.get("algorithms", "rtn").solve(Problem(weight, planned.grid, planned.block)).qtensor.dequantize()
    return float((rounded - weight).square().sum() / weight.square().sum().clamp(min=1e-30))
