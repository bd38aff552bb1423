# SPDX-License-Identifier: Apache-2.0
"""What `compress_weights` is asked: one mode for all layers, or several to choose from under a budget."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from fewbit.engine.compression import compression
from fewbit.engine.mix import Mix, average_bits
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.modes import mode_spec
from fewbit.schemes.rules import element
from fewbit.schemes.widths import formats_of, modes_for

_WIDE = "int8_asym"

Modes = str | Enum | Sequence[str | Enum] | None
"""One mode, several, or none where bits say enough."""


def one_mode(mode: Modes, bits: float | None, ratio: float | None) -> str | None:
    """The mode that every layer gets; none where there is a choice.

    Raises:
        UsageError: what contradicts itself.
    """
    modes = modes_for(mode, bits)
    if ratio is None:
        return modes[0] if len(modes) == 1 else None
    if bits is not None:
        raise UsageError(f"bits={bits} and ratio={ratio}", where="bits", expected="one of the two")
    return None


def mixture(
    view: ModelView,
    mode: Modes,
    *,
    bits: float | None = None,
    ratio: float | None = None,
    group_size: int | None = None,
    algorithm: str | None = None,
    all_layers: bool = False,
    exclude: tuple[str, ...] = (),
    data: bool = False,
) -> Config | Mix:
    """What `compress_weights` does to a model; where there is a choice, a mix that is settled when there is data.

    Args:
        view: of the model.
        mode: what weights become; several, of which each layer gets one.
        bits: that a weight has at most, on average and scales included; a whole number is a mode.
        ratio: the share of the weights that become `mode`; the others become `int8_asym`.
        group_size: elements that share a scale; the modes' own by default.
        algorithm: how codes are found; `"auto"` or none is a choice by bits and data.
        all_layers: embeddings and the last layer get, or have a choice of, the modes too, however narrow they are.
        exclude: layers that stay in float.
        data: whether there are samples to look at.

    Raises:
        UsageError: what contradicts itself, or a budget that is too small for any choice.
    """

    def alone(name: str) -> Config:
        return compression(view, name, group_size=group_size, algorithm=algorithm, all_layers=all_layers,
                           exclude=exclude, data=data)  # fmt: skip

    single, modes = one_mode(mode, bits, ratio), modes_for(mode, bits)
    config = alone(single or modes[0])
    if single is not None:
        return config
    how = _algorithm(config)
    if ratio is not None:
        number = element(mode_spec(modes[0]).given)
        if number is None or number.bits >= 8:
            return config
        narrow = mode_spec(modes[0], group_size=group_size, algorithm=how)
        return Mix(config, {modes[0]: narrow, _WIDE: mode_spec(_WIDE, algorithm=how)}, ratio=ratio)
    formats = formats_of(modes, group_size=group_size, algorithm=how)
    mix = Mix(config, formats, bits=bits)
    # Of a family, what is narrower than a mode that would do for all is left out: it loses more than can be estimated.
    for start in range(len(modes) - 1, 0, -1) if isinstance(mode, str | Enum | None) else ():
        narrower = Mix(alone(modes[start]), {name: formats[name] for name in modes[start:]}, bits=bits)
        if _fits(view, narrower):
            return narrower if start < len(modes) - 1 else narrower.config
    if not _fits(view, mix):
        least = average_bits(mix.open(view))
        raise UsageError(
            f"bits={bits} on average: {modes[0]} alone has {least:.3f}, scales included",
            where="bits",
            expected=f"{least:.3f} or more",
            try_="a larger group_size, or narrower modes to choose from",
        )
    return mix


def _fits(view: ModelView, mix: Mix) -> bool:
    """Whether the narrowest format alone is within the budget."""
    weights = mix.open(view)
    return sum(w.bytes_after for w in weights) <= mix.budget(weights)


def _algorithm(config: Config) -> str | None:
    spec = config.global_quant_config.weight if config.global_quant_config is not None else None
    return None if spec is None or isinstance(spec, str) else spec.algorithm
