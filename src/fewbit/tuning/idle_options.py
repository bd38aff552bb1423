# SPDX-License-Identifier: Apache-2.0
"""Settings that change nothing in the run they are given to: those of another method, of a teacher that is not there.

They are told and not refused: who trains in several runs, as `sparsify` does, gives all of them the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.tuning.options import Options

OF_TEACHERS = ("temperature", "distill_weight", "hidden_weight")


def idle(given: Mapping[str, Any], method: str, teacher: Any) -> str | None:
    """What is to be said of settings that have no effect; nothing if all have one.

    Args:
        given: the settings that the user said.
        method: which parameters learn.
        teacher: that shows how it is done, if there is one.

    >>> idle({"rank": 4, "lr": 1e-3}, "full", None)
    "rank=4 is for method='dora' or method='lora', and does nothing with method='full'"
    """
    usual = {key.name: key.default for key in Options.known()}
    said = {name: value for name, value in given.items() if value != usual.get(name)}
    owners = {name: registry.get("methods", name) for name in registry.names("methods")}
    own = getattr(owners[method], "OPTIONS", None)
    found = []
    for name, value in said.items():
        users = [f"method={other!r}" for other, module in owners.items() if name in getattr(module, "OPTIONS", ())]
        if users and own is not None and name not in own:
            shown = f"{name}={value!r}" if len(repr(value)) < 40 else name
            found.append(f"{shown} is for {' or '.join(users)}, and does nothing with method={method!r}")
    alone = [name for name in OF_TEACHERS if name in said and teacher is None]
    if alone:
        found.append(f"{', '.join(alone)} is for runs with a teacher, and there is none")
    return "; ".join(found) or None


def refuse_preset(model: nn.Module, preset: Any, method: str) -> None:
    """Refuse to make codes of codes: what a model with codes becomes is what it is.

    Raises:
        UsageError: there are codes, and a preset that says what they were to become.
    """
    reads = "preset" in getattr(registry.get("methods", method), "OPTIONS", ())
    if preset is not None and reads and _has_codes(model):
        shown = f"preset={preset!r}" if isinstance(preset, str) else "a preset"
        raise UsageError(
            f"{shown}, and the {type(model).__name__} has codes already",
            where="preset",
            expected="a float model that is quantized first, or no preset",
            try_="leave preset out: the codes are trained as they are; or give the model before it was quantized",
        )


def left_out(model: nn.Module, method: str) -> str | None:
    """What is to be said of codes that a method does not reach; nothing where it is not `full`, or there are none.

    Args:
        model: made ready by the method.
        method: which parameters learn.
    """
    if method != "full" or not _has_codes(model):
        return None
    layers = [module for module in model.modules() if isinstance(module, Quantized)]
    coded = sum(prod(each.shape) for layer in layers for each in layer.coded.values())
    floats = list(model.parameters())
    learning = sum(each.numel() for each in floats if each.requires_grad)
    count = coded + sum(each.numel() for each in floats)
    return (
        f"{learning:,} of {count:,} parameters learn: {coded:,} are codes, which method='qat' or method='lora' reaches"
    )


def _has_codes(model: nn.Module) -> bool:
    return any(isinstance(module, Quantized) for module in model.modules())
