# SPDX-License-Identifier: Apache-2.0
"""A layer in another class for as long as it is trained.

As with quantized layers the module itself stays: its class becomes a subclass of its own class, with a mixin in front.
Names of parameters, hooks and whoever holds the module are not touched, and copies and pickles are of the same class.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn

from fewbit.modules.quantized import Quantized, quantized_class


def dress(module: nn.Module, mixin: type) -> None:
    """Put a mixin in front of a module's class, in place."""
    worn: Any = module
    base: Any = type(module)
    worn.__class__ = dressed_class(mixin, base)


def undress(module: nn.Module) -> None:
    """Give a module back the class it had before `dress`, in place."""
    worn: Any = module
    worn.__class__ = worn.plain_class


@cache
def dressed_class(mixin: type, base: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `base` with a mixin in front; made once."""
    body = {"plain_class": base, "__reduce__": _reduce, "__module__": __name__}
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), body)


def _reduce(module: Any) -> tuple[Any, ...]:
    cls = type(module)
    names = tuple(module.coded) if issubclass(cls.plain_class, Quantized) else None
    base = cls.plain_class if names is None else module.float_class
    return _rebuild, (cls.__mro__[1], base, names), module.__getstate__()


def _rebuild(mixin: type, base: Any, names: tuple[str, ...] | None) -> nn.Module:
    plain: Any = base if names is None else quantized_class(base, names)
    cls = dressed_class(mixin, plain)
    return cls.__new__(cls)
