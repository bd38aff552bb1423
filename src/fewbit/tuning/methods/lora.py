# SPDX-License-Identifier: Apache-2.0
"""Small matrices beside the linear layers learn, over a base of floats or of codes, and are merged at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fewbit.tuning.adapters import add_adapters
from fewbit.tuning.cache_pause import pause_cache, resume_cache
from fewbit.tuning.merging import merge_adapters
from fewbit.tuning.options import Options

NEEDS_TEACHER = False
OPTIONS = ("rank", "alpha", "dropout", "targets", "merge")


def setup(model: nn.Module, options: Options) -> nn.Module:
    """Put adapters on the linear layers that `targets` names, or on all but the head."""
    return with_adapters(model, options, dora=False)


def finish(model: nn.Module, batches: Iterable[Any] = ()) -> nn.Module:
    """The model with its adapters merged, unless `merge=False`; what that cost is in its `fewbit_merge`.

    Args:
        model: as it was trained.
        batches: a few that it was not trained on, to measure by what merging changes.
    """
    if vars(model).pop("merge_at_end"):
        report = merge_adapters(model, batches)
        vars(model)["fewbit_merge"] = report
    resume_cache(model)
    return model


def with_adapters(model: nn.Module, options: Options, *, dora: bool) -> nn.Module:
    """What `setup` does, for LoRA or for DoRA."""
    pause_cache(model)
    vars(model)["merge_at_end"] = options.merge
    return add_adapters(
        model,
        rank=options.rank,
        alpha=options.alpha,
        dropout=options.dropout,
        targets=options.targets,
        dora=dora,
        zeros=options.hold_zeros,
    )
