# SPDX-License-Identifier: Apache-2.0
"""NNCF: `nncf.prune` by magnitude, in each layer (`local`) or in all (`global`), batch norms adapted afterwards.

In training zeros grow by its exponential schedule over the first two thirds; `nncf.quantize` follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nncf
import nncf.torch
from nncf.torch.function_hook.pruning.magnitude.algo import get_pruned_modules
from nncf.torch.function_hook.pruning.magnitude.schedulers import ExponentialMagnitudePruningScheduler
from torch import Tensor, nn

MODES = {
    "local": nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_LOCAL,
    "global": nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_GLOBAL,
}
AT_ONCE, CALIBRATION, UPDATES = 50, 300, 20


def one_shot(model: nn.Module, pictures: Tensor, dense: list[str], *, way: str, share: float) -> nn.Module:
    """Zeros, then the statistics of batch norms anew."""
    made = _pruned(model, pictures, dense, way, share)
    made = nncf.batch_norm_adaptation(made, nncf.Dataset(list(pictures.split(AT_ONCE))))
    return nncf.strip(made, strip_format=nncf.StripFormat.IN_PLACE, example_input=pictures[:1]).eval()


def aware(
    model: nn.Module, train: Callable[..., nn.Module], pictures: Tensor, dense: list[str], *, way: str, share: float,
    epochs: int,
) -> nn.Module:  # fmt: skip
    """Zeros that grow over the first two thirds of the epochs, then 8 bits."""
    made = _pruned(model, pictures, dense, way, 0.0)
    grows = ExponentialMagnitudePruningScheduler(
        made, mode=MODES[way], initial_ratio=0.0, target_ratio=share, target_epoch=UPDATES
    )

    def each(step: int, steps: int) -> None:
        update = min(UPDATES, int(UPDATES * step / (steps * 2 / 3)))
        if update != grows.epoch:
            grows.step(update)
            grows.epoch = update

    train(made, each=each)
    return nncf.quantize(made.eval(), nncf.Dataset(list(pictures.split(AT_ONCE))), subset_size=CALIBRATION)


def weights(model: nn.Module, pictures: Tensor) -> dict[str, Tensor]:
    """The weights with its masks in them; zero is a code."""
    found = {name: value.detach() for name, value in model.named_parameters()}
    masks = {name: hook.binary_mask for name, hook in get_pruned_modules(model).items()}
    return found | {name: found[name] * mask for name, mask in masks.items()}


def _pruned(model: nn.Module, pictures: Tensor, dense: list[str], way: str, share: float) -> Any:
    ignored = nncf.IgnoredScope(patterns=[f".*{name.replace('.', '[./]')}.*" for name in dense])
    return nncf.prune(model, MODES[way], ratio=share, ignored_scope=ignored, examples_inputs=pictures[:1])
