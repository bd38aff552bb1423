# SPDX-License-Identifier: Apache-2.0
"""SparseML 1.8.0, the last that has code: recipes with its magnitude pruning modifiers.

In training, zeros grow by its cubic schedule over the first two thirds, then its QuantizationModifier learns 8 bits,
which fails on today's torch; ways that end in `_float` leave that out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["NM_DISABLE_ANALYTICS"] = "True"

from sparseml.pytorch.optim import ScheduledModifierManager
from torch import Tensor, nn

RECIPE = """
modifiers:
  - !EpochRangeModifier
    start_epoch: 0.0
    end_epoch: {epochs}
  - !{kind}
    init_sparsity: {initial}
    final_sparsity: {share}
    start_epoch: 0.0
    end_epoch: {until}
    update_frequency: {every}
    params: {params}
"""
CODES = """
  - !QuantizationModifier
    start_epoch: {until}
"""
KINDS = {"magnitude": "GMPruningModifier", "global": "GlobalMagnitudePruningModifier"}


def one_shot(model: nn.Module, pictures: Tensor, dense: list[str], *, way: str, share: float) -> nn.Module:
    """Zeros in one go."""
    values = {"kind": KINDS[way], "initial": share, "share": share, "epochs": 1.0, "until": 1.0, "every": 1.0}
    ScheduledModifierManager.from_yaml(RECIPE.format(**values, params=_params(model, dense))).apply(model)
    return model.eval()


def aware(
    model: nn.Module, train: Callable[..., nn.Module], pictures: Tensor, dense: list[str], *, way: str, share: float,
    epochs: int,
) -> nn.Module:  # fmt: skip
    """Zeros that grow over the first two thirds of the epochs, then 8 bits to the end."""
    until = epochs * 2 / 3
    way, _, floats = way.partition("_")
    values = {"kind": KINDS[way], "initial": 0.05, "share": share, "epochs": float(epochs), "until": until}
    recipe = RECIPE if floats else RECIPE + CODES
    text = recipe.format(**values, every=until / 20, params=_params(model, dense))
    manager = ScheduledModifierManager.from_yaml(text)

    def wrap(optimizer: Any, steps: int) -> Any:
        return manager.modify(model, optimizer, steps_per_epoch=steps)

    train(model, wrap=wrap)
    manager.finalize(model)
    return model.eval()


def weights(model: nn.Module, pictures: Tensor) -> dict[str, Tensor]:
    """Its weights, which stay floats beside their codes; zero is a code."""
    return {name: value.detach() for name, value in model.named_parameters()}


def _params(model: nn.Module, dense: list[str]) -> list[str]:
    names = [f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return [name for name in names if name.removesuffix(".weight") not in dense]
