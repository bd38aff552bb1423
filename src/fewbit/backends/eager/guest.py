# SPDX-License-Identifier: Apache-2.0
"""Running somebody's model as a guest: everything is as it was afterwards, also when the model fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.configs import with_true
from fewbit.data.capturing.modes import evaluating
from fewbit.data.randomness import Loan
from fewbit.modules.quantized import Quantized


@contextmanager
def guest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, no key-value cache, torch's short cuts closed, random state borrowed.

    Every run begins from the same random state, so a model that draws numbers gives the same answers each time.
    """
    with evaluating(model), lent_randomness(model), _buffers(model), _no_cache(model), _no_short_cuts():
        yield


def devices(model: nn.Module) -> set[torch.device]:
    """Where a model's tensors lie."""
    return {tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors}


@contextmanager
def lent_randomness(model: nn.Module) -> Iterator[None]:
    """Within the block random numbers are private and start anew, on every device of the model and on no other."""
    places = [device for device in devices(model) if device.type == "cuda"]
    with torch.random.fork_rng(places, enabled=bool(places)), Loan().lend():
        for place in places:
            with torch.cuda.device(place):
                torch.cuda.manual_seed(0)
        yield


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back: running statistics, counters, tables that grow. Codes are never written to."""
    before = [(module, dict(module._buffers), _copies(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, buffers, copies in before:
            codes = module.kept_buffers() if isinstance(module, Quantized) else ()  # put there by us on a walk
            kept = {name: module._buffers[name] for name in codes if name in module._buffers}
            module._buffers.clear()
            module._buffers.update(buffers | kept)
            for buffer, copy in copies:
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


def _copies(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    codes = module.kept_buffers() if isinstance(module, Quantized) else ()
    held = (tensor for name, tensor in module._buffers.items() if name not in codes and tensor is not None)
    return [(tensor, tensor.detach().clone()) for tensor in held if not tensor.is_meta]


@contextmanager
def _no_cache(model: nn.Module) -> Iterator[None]:
    """Without a Hugging Face model's key-value cache: it costs memory and nobody reads it here.

    A configuration that does not let itself be changed keeps its cache, since nothing worse than the cost comes of it.
    """
    changed: list[Any] = []
    try:
        for part in with_true(model, "use_cache"):
            with suppress(Exception):  # whatever somebody's class raises
                part.use_cache = False
                changed.append(part)
        yield
    finally:
        for part in changed:
            part.use_cache = True


@contextmanager
def _no_short_cuts() -> Iterator[None]:
    """Transformer layers of torch call their parts, whose inputs are watched."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
