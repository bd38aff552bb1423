# SPDX-License-Identifier: Apache-2.0
"""Training flags, kept for every submodule: a frozen batch norm in a training model comes back frozen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any


@contextmanager
def modes_kept(model: Any, *, evaluate: bool = False) -> Iterator[None]:
    """Put every submodule's training flag back at the end, whatever happened in between.

    Args:
        model: a `torch.nn.Module`.
        evaluate: switch to evaluation for the time of the block.
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        if evaluate:
            with suppress(NotImplementedError):  # an exported program has one mode only
                model.eval()
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Run a model for its answers: evaluation mode and no gradients within the block, all as before after it."""
    torch = sys.modules.get("torch")  # a module cannot be here without it
    with modes_kept(model, evaluate=True), torch.no_grad() if torch else nullcontext():
        yield
