# SPDX-License-Identifier: Apache-2.0
"""The configuration of a weight mode for one model."""

from __future__ import annotations

from enum import Enum

from fewbit.algorithms._members import algorithm as member
from fewbit.engine.block_tuning import STAGE, refuse_tuning
from fewbit.engine.usual import has_moments
from fewbit.model.ops import LINEAR
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.modes import compression_config, mode_spec
from fewbit.schemes.rules import element

_NARROW = 4


def compression(
    view: ModelView,
    mode: str | Enum,
    *,
    group_size: int | None = None,
    algorithm: str | None = None,
    all_layers: bool = False,
    exclude: tuple[str, ...] = (),
    data: bool = False,
) -> Config:
    """What `compress_weights` does to a model, as a configuration.

    Args:
        view: of the model.
        mode: what weights become.
        group_size: elements that share a scale; the mode's own by default.
        algorithm: how codes are found; `"auto"` or none is a choice by bits and data.
        all_layers: give embeddings and the last layer the mode too, however narrow it is.
        exclude: layers that stay in float.
        data: whether there are samples to look at.

    Raises:
        UsageError: an algorithm that there is not, or one that tunes what cannot be run block by block.
    """
    if algorithm is None or algorithm == "auto":
        algorithm = chosen(view, mode, data=data)
    elif member(algorithm).stage == STAGE:
        refuse_tuning(view, algorithm, data=data)
    return compression_config(
        mode, group_size=group_size, algorithm=algorithm, all_layers=all_layers, last_layer=_head(view)
    ).excluding(exclude)


def chosen(view: ModelView, mode: str | Enum, *, data: bool) -> str | None:
    """The algorithm for a mode: up to four bits, with data that gives second moments, errors are made to cancel.

    At eight bits the search alone is as good as the type allows.
    """
    number = element(mode_spec(mode).given)
    narrow = number is not None and number.bits <= _NARROW
    return "gptq" if data and narrow and has_moments(view) else None


def _head(view: ModelView) -> str | None:
    """The last linear layer: what it computes is the answer, so it is the one most worth its bits."""
    return next((p.layer for p in reversed(view.points()) if p.role is Role.weight and p.op is LINEAR), None)
