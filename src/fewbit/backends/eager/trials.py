# SPDX-License-Identifier: Apache-2.0
"""Trials: is an input scaled channel by channel when the output that feeds it is?

The output of a layer is replaced by noise, each channel multiplied by a power of two, and what its readers are about to
read is compared with what they read of the noise alone. Powers of two are exact in every float type, so a reader whose
input is scaled channel by channel shows exactly that, and over a few runs the powers spell the number of the channel.
Each layer is then handed the input it had in the first run of all, so that no trial disturbs another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.affine import along
from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.guest import lent_randomness
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.tracing import Trace
from fewbit.data.tree import flatten

POWERS = (-7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8)
"""The digits a channel's number is written in; 0 is left for channels that nobody scaled."""

Channels = tuple[int | None, ...] | None
"""For each input channel the output channel it comes from, -1 for none of them, None where it was zero throughout.

None as a whole where the input was not scaled channel by channel.
"""


@dataclass(frozen=True)
class Candidate:
    """Channels of a layer's output, and everyone who reads any of them."""

    producer: str
    channels: tuple[int, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """What trials are made on: the model, its layers, an item, and the trace of that item."""

    model: nn.Module
    layers: dict[str, Layer]
    item: Item
    trace: Trace


class Trial:
    """Runs with noise in the place of some layers' outputs.

    Args:
        setting: what to run.
        together: candidates that have no layer in common.
        sign: turns the noise round.

    Attributes:
        quiet: nothing changed but the inputs of the candidates' readers.
    """

    def __init__(self, setting: Setting, together: Sequence[Candidate], sign: float):
        self._setting, self._sign = setting, sign
        self._of = {candidate.producer: candidate for candidate in together}
        self._readers = {name for candidate in together for name in candidate.readers}
        self.quiet = True
        largest = max(max(candidate.channels) for candidate in together) + 1
        digits = next(n for n in count(1) if len(POWERS) ** n >= largest)
        self._seen = [self._run(digit) for digit in (None, *range(digits))]

    def channels(self, candidate: Candidate, reader: str) -> Channels:
        """Where a reader's input channels come from."""
        features = self._setting.layers[reader].features()
        runs = [[_rows(x, features) for x in run.get(reader, [])] for run in self._seen]
        if not all(runs) or len({tuple(x.shape for x in run) for run in runs}) != 1:
            return None
        plain, *scaled = [torch.cat(run) for run in runs]  # [positions, channels] each
        powers = [_powers(one, plain) for one in scaled]
        if any(power is None for power in powers):
            return None
        return _spelled([power for power in powers if power is not None], plain, set(candidate.channels))

    def _run(self, digit: int | None) -> dict[str, list[Tensor]]:
        """One forward with the noise scaled by one digit, or as it is. Gives what the readers were about to read."""
        setting, seen = self._setting, dict[str, list[Tensor]]()
        handles: list[Any] = []
        for name in setting.trace.visits:
            layer = setting.layers[name]
            handles.append(layer.module.register_forward_pre_hook(self._before(layer, seen), with_kwargs=True))
            if name in self._of:
                handles.append(layer.module.register_forward_hook(self._after(layer, digit)))
        try:
            with lent_randomness(setting.model):
                out = call(setting.model, setting.item)
        finally:
            for handle in handles:
                handle.remove()
        self.quiet &= _all_close([leaf for _, leaf in flatten(out)], setting.trace.out)
        return seen

    def _before(self, layer: Layer, seen: dict[str, list[Tensor]]) -> Callable[..., Any]:
        visits = iter(self._setting.trace.visits[layer.name])

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            visit = next(visits, None)
            if visit is None:  # called once more than in the first run
                self.quiet = False
                return None
            if layer.name in self._readers:
                seen.setdefault(layer.name, []).append(inputs_of(layer, args, kwargs)[0].detach().clone())
            else:
                given, then = flatten((args, kwargs)), flatten(visit.call)
                self.quiet &= _all_close([leaf for _, leaf in given], [leaf for _, leaf in then])
            return visit.call

        return before

    def _after(self, layer: Layer, digit: int | None) -> Callable[..., Any]:
        candidate, features, calls = self._of[layer.name], self._setting.trace.features(layer), count()

        def after(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            channels = torch.tensor(candidate.channels, device=out.device)
            noise = _noise(out.index_select(features, channels), features, next(calls)) * self._sign
            if digit is not None:
                digits = channels // len(POWERS) ** digit % len(POWERS)
                noise = noise * along(2.0 ** torch.tensor(POWERS, device=out.device)[digits], features, noise)
            return out.index_copy(features, channels, noise.to(out.dtype))

        return after


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same up to rounding."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    if not one.numel() or bool(((one == other) | (one.isnan() & other.isnan())).all()):
        return True
    tolerance = 0.02 if one.element_size() < 4 else 1e-4
    error = torch.where(one == other, torch.zeros_like(one), (one - other).abs()).max()  # infinities may be equal
    return bool(error <= tolerance * other[other.isfinite()].abs().max().clamp(min=1e-6))


def _all_close(now: list[Any], then: list[Any]) -> bool:
    here = [leaf for leaf in now if isinstance(leaf, Tensor)]
    there = [leaf for leaf in then if isinstance(leaf, Tensor)]
    return len(here) == len(there) and all(close(a, b) for a, b in zip(here, there))


def _rows(x: Tensor, features: int) -> Tensor:
    return x.movedim(features, -1).flatten(0, -2).float() if x.ndim > 1 else x.float()[None]


def _powers(scaled: Tensor, plain: Tensor) -> Tensor | None:
    """The power of two that each channel was multiplied by, 0 for channels of zeros; none if there is no such power."""
    largest, place = plain.abs().max(0)
    there = largest > 0
    ratio = scaled.gather(0, place[None])[0].abs() / torch.where(there, largest, torch.ones_like(largest))
    power = torch.where(there, ratio, torch.ones_like(ratio)).clamp(2.0**-20, 2.0**20).log2().round()
    off = (scaled - plain * 2**power).abs() > 2.0**-6 * largest * 2**power
    outside = (power < POWERS[0]) | (power > POWERS[-1])
    return None if bool(off.any()) or bool(outside.any()) else power


def _spelled(powers: list[Tensor], plain: Tensor, known: set[int]) -> Channels:
    """The channels whose digits the powers are."""
    number = torch.zeros_like(powers[0], dtype=torch.long)
    touched = torch.zeros_like(powers[0], dtype=torch.bool)
    for place, power in enumerate(powers):
        touched |= power != 0
        number += torch.where(power < 0, power + 7, power + 6).long() * len(POWERS) ** place
    found: list[int | None] = []
    for channel, scaled, zeros in zip(number.tolist(), touched.tolist(), (plain == 0).all(0).tolist()):
        if scaled and channel not in known:
            return None
        found.append(channel if scaled else None if zeros else -1)
    return tuple(found)


def _noise(like: Tensor, features: int, seed: int) -> Tensor:
    """Noise from 0.1 to 20 in size, beyond where common clamps set in, of both signs in every channel."""
    generator = torch.Generator().manual_seed(seed)
    size = 10 ** (torch.rand(like.shape, generator=generator) * 2.3 - 1)
    by_row = like.movedim(features, -1)
    number, side = torch.arange(by_row.numel()).reshape(by_row.shape), by_row.shape[-1]
    signs = 1 - 2 * ((number // side + number % side) % 2)
    return (size * signs.movedim(-1, features)).to(like.device)
