# SPDX-License-Identifier: Apache-2.0
"""A quantized model learns with its rounding in place, and is kept as codes again at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.run import view_of
from fewbit.engine.usual import usual
from fewbit.engine.verbs import configuration
from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.schemes.config import Config
from fewbit.tuning.cache_pause import pause_cache, resume_cache
from fewbit.tuning.calling import inputs_of
from fewbit.tuning.methods import full
from fewbit.tuning.methods._base import decayed
from fewbit.tuning.options import Options
from fewbit.tuning.tasks._base import Batch
from fewbit.tuning.training_quantized import learn_quantized, settle_quantized, stretches

NEEDS_TEACHER = False
OPTIONS = ("preset", "learn_scales")

ANSWERS = ("labels", "start_positions", "end_positions")


def setup(
    model: nn.Module, options: Options, batches: Iterable[Batch] = (), teacher: nn.Module | None = None
) -> nn.Module:
    """Let the weights of a quantized model learn, and everything of it that is float; scales too if asked for.

    Args:
        model: quantized; or float, and then `options.preset` says what it becomes first.
        options: of the run.
        batches: a few to learn from, for the ranges of static activations of a model that is quantized here.
        teacher: what a quantized model was made from, if anybody says; see `starting`.

    Raises:
        UsageError: a float model, and no `preset` that says what it is to become.
    """
    original = None
    if not any(isinstance(module, Quantized) for module in model.modules()):
        original, model = model, quantized_first(model, options.preset, [inputs_only(model, each) for each in batches])
    pause_cache(model)
    known = teacher if original is None else original
    learn_quantized(
        full.setup(model, options),
        learn_scales=options.learn_scales,
        original=known,
        hold_zeros=options.hold_zeros,
        seed=options.seed,
    )
    return model


def finish(model: nn.Module) -> nn.Module:
    """The model with its weights as codes, on the grids it came with; exporters and kernels know it as before."""
    resume_cache(settle_quantized(model))
    return model


def parameter_groups(model: nn.Module, options: Options) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors without, scales that learn apart from both."""
    scales = list(stretches(model))
    apart = {id(scale) for scale in scales}
    groups = decayed(model, options)
    for group in groups:
        group["params"] = [each for each in group["params"] if id(each) not in apart]
    groups.append({"params": scales, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def inputs_only(model: nn.Module, batch: Batch) -> Any:
    """A batch as calibration data: what the model is called with, without answers."""
    args, named = inputs_of(model, batch, ANSWERS)
    return named or (args[0] if len(args) == 1 else args)


def quantized_first(model: nn.Module, preset: str | Config | None, data: Any = None) -> nn.Module:
    """A float model quantized as a preset or a number format says, weights and activations.

    Args:
        model: stays as it is.
        preset: its name, or a configuration.
        data: for the ranges of static activations; without it such a preset is refused.

    Raises:
        UsageError: no preset, an unknown one, or one that needs data where there is none.
    """
    if preset is None:
        raise UsageError(
            f"{type(model).__name__} has no quantized layers, and nothing says what it is to become",
            where="qat",
            expected="a model from fewbit.quantize, or preset=…",
            try_="preset='w4a16', or fewbit.quantize(model, data, preset=…) first",
        )
    view = view_of(model)
    config = usual(configuration(preset), view, named=isinstance(preset, str), data=bool(data))
    made: nn.Module = ModelQuantizer(config).quantize_view(view, data or None, model=model).native()
    return made
