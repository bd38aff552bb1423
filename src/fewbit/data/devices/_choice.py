# SPDX-License-Identifier: Apache-2.0
"""Which device a user means."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

from fewbit import registry
from fewbit.errors import UsageError, nearest

_ANY = ("cuda", "mps")
"""What `gpu` and `auto` look for, in this order."""


@dataclass(frozen=True)
class Target:
    """Where batches go.

    Args:
        name: as `cuda:0`.
        device: what `tensor.to` takes.
        streams: whether copies run beside the computation.
        why: how it came to be this one.
    """

    name: str
    device: Any
    streams: bool
    why: str


def choose_device(wanted: Any, *, required: bool = False) -> Target:
    """The device of a word.

    Args:
        wanted: `"gpu"`, `"auto"`, a member's name with or without a number, or a `torch.device`.
        required: whether `"gpu"` without one is an error, and not the processor with a warning.

    Raises:
        UsageError: no such device here.
    """
    text = str(wanted).strip().lower()
    name, _, number = text.partition(":")
    if name in ("gpu", "auto"):
        return _any(name, number, required)
    known = registry.names("devices")
    if name not in known:
        expected = nearest(name, ["gpu", "auto", *known])
        raise UsageError(f"there is no device {text!r}", where="target_device", expected=expected)
    member = registry.get("devices", name)
    if (why := member.missing()) is not None:
        usable = ", ".join(other for other in known if _usable(other))
        raise UsageError(
            f"target_device={text!r}: {why}",
            where="target_device",
            expected=f"one of {usable}, auto",
            try_="target_device='auto'",
        )
    return _numbered(name, member, number, text, f"{text!r} was asked for")


def _any(word: str, number: str, required: bool) -> Target:
    for name in _ANY:
        if _usable(name):
            return _numbered(name, registry.get("devices", name), number, word, f"{word!r}: the first that is here")
    reasons = "; ".join(f"{name}: {registry.get('devices', name).missing()}" for name in _ANY)
    if word == "gpu":
        if required:
            helps = "target_device='auto', or require_device=False"
            raise UsageError(f"target_device='gpu': there is none ({reasons})", where="target_device", try_=helps)
        message = (
            f"target_device='gpu', but there is none ({reasons}): batches stay on the CPU. "
            "custom_config={'require_device': True} makes this an error."
        )
        warnings.warn(message, stacklevel=4)
    return Target("cpu", registry.get("devices", "cpu").device(0), False, f"{word!r}, but there is none ({reasons})")


def _numbered(name: str, member: Any, number: str, text: str, why: str) -> Target:
    count = member.count()
    if number and (not number.isdigit() or int(number) >= count):
        plenty = f"{name}:0" if count == 1 else f"{name}:0 to {name}:{count - 1}"
        raise UsageError(f"there is no device {text!r}", where="target_device", expected=plenty)
    # Processes that `torchrun` starts on one machine take one device each.
    index = int(number) if number else int(os.environ.get("LOCAL_RANK", 0)) % max(1, count)
    device = member.device(index)
    return Target(str(device), device, bool(getattr(member, "STREAMS", False)), why)


def _usable(name: str) -> bool:
    return registry.get("devices", name).missing() is None
